"""Normalization links."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain.configuration import config, get_dtype
from mpchain.initializers import generate_array, get_initializer
from mpchain.link import Link
from mpchain.typing import Axes, DTypeLike, InitialValue, Input
from mpchain.variable import Parameter, Variable


def _decay(link, finetune):
    """Returns the decay of this step. During fine-tuning, the decay gives all batches equal
    weights."""
    if not finetune:
        return link.decay
    link.N += 1
    return 1 - 1 / link.N


class BatchNormalization(Link):
    """Batch normalization: :func:`mpchain.functions.batch_normalization` with its parameters.

    If ``config.train`` is True, the link normalizes with the statistics of the batch and updates
    their moving averages; otherwise, the link normalizes with the moving averages.

        >>> bn = L.BatchNormalization(3)
        >>> y = bn(np.random.randn(50, 3).astype(np.float32) + 7)
        >>> bn.avg_mean.round(1)  # 0.9 of 0 and 0.1 of 7
        array([0.7, 0.7, 0.7], dtype=float32)

    Args:
        size: shape of the parameters; None infers it from the first input: the size of its axis 1,
            or of the axes that are not in ``axis``.
        decay: weight of the old moving averages at each step.
        eps: added to the variance.
        dtype: dtype of parameters and averages; None means ``config.dtype`` (float32 for
            ``mixed16``).
        use_gamma, use_beta: whether to scale and to shift.
        initial_gamma, initial_beta, initial_avg_mean, initial_avg_var: initializers, numbers or
            arrays; None means one for the scale and the variance, and zero for the shift and the
            mean.
        axis: the axes to reduce; None means all axes except the axes of ``size``, which follow the
            first axis.

    Attributes:
        gamma, beta (Parameter): scale and shift, of shape ``size``; None if not used.
        avg_mean, avg_var (array): the moving averages, of shape ``size``, persistent; None before
            the first call if ``size`` is None.
        N (int): number of batches of fine-tuning so far, persistent.

    See S. Ioffe and C. Szegedy, Batch normalization, ICML 2015.
    """

    gamma: Any = None
    beta: Any = None
    running_statistics = ("avg_mean", "avg_var", "N")
    _normalize = staticmethod(F.batch_normalization)

    def __init__(
        self,
        size: int | tuple[int, ...] | None = None,
        decay: float = 0.9,
        eps: float = 2e-5,
        dtype: DTypeLike = None,
        use_gamma: bool = True,
        use_beta: bool = True,
        initial_gamma: InitialValue = None,
        initial_beta: InitialValue = None,
        axis: Axes = None,
        initial_avg_mean: InitialValue = None,
        initial_avg_var: InitialValue = None,
    ) -> None:
        super().__init__()
        self.size = size
        self.decay = decay
        self.eps = eps
        self.axis = (axis,) if isinstance(axis, int) else axis
        self._dtype = get_dtype(dtype, map_mixed16=np.float32)
        self._initial_averages = (
            0 if initial_avg_mean is None else initial_avg_mean,
            1 if initial_avg_var is None else initial_avg_var,
        )
        with self.init_scope():
            if use_gamma:
                self.gamma = self._parameter(1 if initial_gamma is None else initial_gamma)
            if use_beta:
                self.beta = self._parameter(0 if initial_beta is None else initial_beta)
        for name, value in (("avg_mean", None), ("avg_var", None), ("N", 0)):
            self.add_persistent(name, value)
        if size is not None:
            self._initialize((size,) if isinstance(size, int) else tuple(size))

    def _parameter(self, initial):
        return Parameter(get_initializer(initial, self._dtype))

    def _initialize(self, shape):
        """Initializes the parameters and averages that are not initialized."""
        for name in sorted(self._params):
            param = self.__dict__[name]
            if not param.is_initialized:
                param.initialize(shape)
        for name, initial in zip(("avg_mean", "avg_var"), self._initial_averages):
            if getattr(self, name) is None:
                initializer = get_initializer(initial, self._dtype)
                setattr(self, name, generate_array(initializer, shape, None, device=self.device))

    def _shape_for(self, x):
        if self.axis is None:
            return x.shape[1:2]
        reduced = {a % x.ndim for a in self.axis}
        return tuple(n for i, n in enumerate(x.shape) if i not in reduced)

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        size = self.size if self.avg_mean is None else self.avg_mean.shape
        yield "size", size[0] if isinstance(size, tuple) and len(size) == 1 else size
        yield from (("decay", self.decay), ("eps", self.eps), ("dtype", str(self._dtype)))
        yield from (("use_gamma", self.gamma is not None), ("use_beta", self.beta is not None))

    def _scale_and_shift(self):
        gamma = self.xp.ones_like(self.avg_mean) if self.gamma is None else self.gamma
        beta = self.xp.zeros_like(self.avg_mean) if self.beta is None else self.beta
        return gamma, beta

    def start_finetuning(self) -> None:
        """Restarts the moving averages, for calls with ``finetune=True``."""
        self.N = 0

    def forward(self, x: Input, *, finetune: bool = False) -> Variable:
        """Normalizes a batch.

        Args:
            x: Variable or array (N, C, ...), floating point.
            finetune: whether to average all batches since :meth:`start_finetuning` with equal
                weights instead of by ``decay``.

        Returns:
            Variable of the shape of ``x``.
        """
        if self.avg_mean is None or any(
            p is not None and not p.is_initialized for p in (self.gamma, self.beta)
        ):
            self._initialize(self._shape_for(x))
        gamma, beta = self._scale_and_shift()
        if not config.train:
            averages = self.avg_mean, self.avg_var
            return F.fixed_batch_normalization(x, gamma, beta, *averages, self.eps, self.axis)
        options = {"eps": self.eps, "axis": self.axis}
        if not config.in_recomputing:  # recomputation is not counted
            options |= {"running_mean": self.avg_mean, "running_var": self.avg_var}
            options["decay"] = _decay(self, finetune)
        return self._normalize(x, gamma, beta, **options)


class BatchRenormalization(BatchNormalization):
    """Batch renormalization: :func:`mpchain.functions.batch_renormalization` with parameters.

    Unlike in :class:`BatchNormalization`, the result is close to the normalization with the moving
    averages even in training, within the limits ``rmax`` and ``dmax``. With the default limits, the
    result is that of :class:`BatchNormalization`.

        >>> bn = L.BatchRenormalization(3, rmax=3, dmax=5)
        >>> bn(np.ones((5, 3, 4, 4), np.float32)).shape
        (5, 3, 4, 4)

    Args:
        size: shape of the parameters.
        rmax: upper limit of the scale correction, at least 1.
        dmax: upper limit of the shift correction, at least 0.
        decay: weight of the old moving averages. The other arguments (there is no ``axis``) and the
            attributes are the same as for :class:`BatchNormalization`.

    Raises:
        TypeError: ``size`` is None.

    See S. Ioffe, Batch renormalization: towards reducing minibatch dependence in batch-normalized
    models, NIPS 2017.
    """

    _mean_before = _var_before = None

    def __init__(
        self,
        size: int | tuple[int, ...],
        rmax: float = 1,
        dmax: float = 0,
        decay: float = 0.9,
        eps: float = 2e-5,
        dtype: DTypeLike = None,
        use_gamma: bool = True,
        use_beta: bool = True,
        initial_gamma: InitialValue = None,
        initial_beta: InitialValue = None,
        initial_avg_mean: InitialValue = None,
        initial_avg_var: InitialValue = None,
    ) -> None:
        if size is None:
            raise TypeError("BatchRenormalization: size must be given, but is None")
        scaling = use_gamma, use_beta, initial_gamma, initial_beta
        averages = {"initial_avg_mean": initial_avg_mean, "initial_avg_var": initial_avg_var}
        super().__init__(size, decay, eps, dtype, *scaling, **averages)
        self.rmax = rmax
        self.dmax = dmax

    def forward(self, x: Input, finetune: bool = False) -> Variable:
        """Normalizes a batch.

        Args:
            x: Variable or array (N, C, ...), floating point.
            finetune: see :meth:`BatchNormalization.forward`.

        Returns:
            Variable of the shape of ``x``.
        """
        if not config.train:
            return super().forward(x)
        gamma, beta = self._scale_and_shift()
        limits = self.rmax, self.dmax, self.eps
        # A recomputation normalizes with the moving averages of the first computation.
        if config.in_recomputing:
            averages = self._mean_before, self._var_before
            return F.batch_renormalization(x, gamma, beta, *limits, *averages)
        self._mean_before, self._var_before = self.avg_mean.copy(), self.avg_var.copy()
        averages = self.avg_mean, self.avg_var, _decay(self, finetune)
        return F.batch_renormalization(x, gamma, beta, *limits, *averages, update_statistics=True)


class DecorrelatedBatchNormalization(Link):
    """Whitening: :func:`mpchain.functions.decorrelated_batch_normalization` with its averages.

    If ``config.train`` is True, the link whitens with the statistics of the batch and updates their
    moving averages; otherwise, the link whitens with the moving averages.

        >>> bn = L.DecorrelatedBatchNormalization(4, groups=2)
        >>> bn(np.random.randn(50, 4).astype(np.float32)).shape
        (50, 4)

    Args:
        size: number of channels.
        groups: number of groups of channels; it must divide ``size``.
        decay: weight of the old moving averages at each step.
        eps: added to the variances.
        dtype: dtype of the averages.

    Attributes:
        avg_mean (array): the moving average of the means, (groups, size / groups), persistent.
        avg_projection (array): the moving average of the projections,
            (groups, size / groups, size / groups), persistent.
        N (int): number of batches of fine-tuning so far, persistent.

    Raises:
        ValueError: ``groups`` does not divide ``size``.

    See L. Huang et al., Decorrelated batch normalization, CVPR 2018.
    """

    running_statistics = ("avg_mean", "avg_projection", "N")

    def __init__(
        self,
        size: int,
        groups: int = 16,
        decay: float = 0.9,
        eps: float = 2e-5,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__()
        if groups < 1 or size % groups:
            raise ValueError(
                f"DecorrelatedBatchNormalization: groups={groups} must divide size={size}"
            )
        self.groups = groups
        self.decay = decay
        self.eps = eps
        width = size // groups
        dtype = get_dtype(dtype, map_mixed16=np.float32)
        self.add_persistent("avg_mean", np.zeros((groups, width), dtype))
        self.add_persistent("avg_projection", np.tile(np.eye(width, dtype=dtype), (groups, 1, 1)))
        self.add_persistent("N", 0)

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        yield from (("size", self.avg_mean.size), ("groups", self.groups))
        yield from (("decay", self.decay), ("eps", self.eps), ("dtype", str(self.avg_mean.dtype)))

    def start_finetuning(self) -> None:
        """Restarts the moving averages, for calls with ``finetune=True``."""
        self.N = 0

    def forward(self, x: Input, *, finetune: bool = False) -> Variable:
        """Whitens a batch.

        Args:
            x: Variable or array (N, size, ...), floating point.
            finetune: whether to average all batches since :meth:`start_finetuning` with equal
                weights instead of by ``decay``.

        Returns:
            Variable of the shape of ``x``.
        """
        averages = self.avg_mean, self.avg_projection
        if not config.train:
            return F.fixed_decorrelated_batch_normalization(x, *averages, self.groups)
        options = {"groups": self.groups, "eps": self.eps}
        if not config.in_recomputing:  # recomputation is not counted
            options |= dict(zip(("running_mean", "running_projection"), averages))
            options["decay"] = _decay(self, finetune)
        return F.decorrelated_batch_normalization(x, **options)


# The links below normalize each sample separately, in the same way in training and inference.


class _SampleNormalization(Link):
    """Base of links that normalize each sample, with a scale and, except for one link, a shift."""

    _dtype = None

    def __init__(self, size: int, eps: float, **initials: InitialValue) -> None:
        super().__init__()
        self.eps = eps
        with self.init_scope():
            for name, initial in initials.items():
                setattr(self, name, Parameter(get_initializer(initial, self._dtype), size))

    def _initialize(self, shape):
        for name in sorted(self._params):
            param = self.__dict__[name]
            if not param.is_initialized:
                param.initialize(shape)

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        size = self.gamma.shape if self.gamma.is_initialized else None
        yield "size", size[0] if size is not None and len(size) == 1 else size
        yield "eps", self.eps


def _initials(gamma, beta):
    return {"gamma": 1 if gamma is None else gamma, "beta": 0 if beta is None else beta}


class LayerNormalization(_SampleNormalization):
    """Layer normalization: :func:`mpchain.functions.layer_normalization` with its parameters.

        >>> L.LayerNormalization(2)(np.array([[1.0, 3.0]], np.float32)).array.round(3)
        array([[-1.,  1.]], dtype=float32)

    Args:
        size: shape of the parameters, which is the shape of the last axes of the input; None infers
            it from the last axis of the first input.
        eps: added to the variance.
        initial_gamma, initial_beta: initializers, numbers or arrays; None means one and zero.

    Attributes:
        gamma, beta (Parameter): scale and shift, of shape ``size``.
    """

    def __init__(
        self,
        size: int | tuple[int, ...] | None = None,
        eps: float = 1e-6,
        initial_gamma: InitialValue = None,
        initial_beta: InitialValue = None,
    ) -> None:
        super().__init__(size, eps, **_initials(initial_gamma, initial_beta))

    def forward(self, x: Input) -> Variable:
        """Normalizes each sample of a Variable or array x (..., size); returns a Variable (...,
        size)."""
        self._initialize(x.shape[-1:])
        return F.layer_normalization(x, self.gamma, self.beta, self.eps)


class RMSNormalization(_SampleNormalization):
    """RMS normalization: :func:`mpchain.functions.rms_normalization` with its parameter.

        >>> L.RMSNormalization(2)(np.array([[1.0, -1.0]], np.float32)).array.round(3)
        array([[ 1., -1.]], dtype=float32)

    Args:
        size: see :class:`LayerNormalization`.
        eps: added to the mean square.
        initial_gamma: initializer, number or array; None means one.

    Attributes:
        gamma (Parameter): scale, of shape ``size``.
    """

    def __init__(
        self,
        size: int | tuple[int, ...] | None = None,
        eps: float = 1e-5,
        initial_gamma: InitialValue = None,
    ) -> None:
        super().__init__(size, eps, gamma=1 if initial_gamma is None else initial_gamma)

    def forward(self, x: Input) -> Variable:
        """Normalizes each sample of a Variable or array x (..., size); returns a Variable (...,
        size)."""
        self._initialize(x.shape[-1:])
        return F.rms_normalization(x, self.gamma, self.eps)


class _ChannelNormalization(_SampleNormalization):
    """Base of links with a scale and a shift for each channel, which are float32 if
    ``config.dtype`` is mixed16."""

    def __init__(
        self,
        size: int | None = None,
        eps: float = 1e-5,
        initial_gamma: InitialValue = None,
        initial_beta: InitialValue = None,
    ) -> None:
        self._dtype = get_dtype(None, map_mixed16=np.float32)
        super().__init__(size, eps, **_initials(initial_gamma, initial_beta))


class GroupNormalization(_ChannelNormalization):
    """Group normalization: :func:`mpchain.functions.group_normalization` with its parameters.

        >>> L.GroupNormalization(groups=2, size=4)(np.ones((5, 4, 8, 8), np.float32)).shape
        (5, 4, 8, 8)

    Args:
        groups: number of groups of channels; it must divide ``size``.
        size: number of channels; None infers it from the first input.
        eps: added to the variance.
        initial_gamma, initial_beta: initializers, numbers or arrays; None means one and zero.

    Attributes:
        gamma, beta (Parameter): scale and shift of the channels, (size,).
    """

    def __init__(
        self,
        groups: int,
        size: int | None = None,
        eps: float = 1e-5,
        initial_gamma: InitialValue = None,
        initial_beta: InitialValue = None,
    ) -> None:
        super().__init__(size, eps, initial_gamma, initial_beta)
        self.groups = groups

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        yield "groups", self.groups
        yield from super().printable_specs

    def forward(self, x: Input) -> Variable:
        """Normalizes each sample of a Variable or array x (N, size, ...); returns a Variable of the
        same shape."""
        self._initialize(x.shape[1:2])
        return F.group_normalization(x, self.groups, self.gamma, self.beta, self.eps)


class InstanceNormalization(_ChannelNormalization):
    """Instance normalization: :func:`mpchain.functions.instance_normalization` with parameters.

        >>> L.InstanceNormalization(4)(np.ones((5, 4, 8, 8), np.float32)).shape
        (5, 4, 8, 8)

    Args:
        size: number of channels; None infers it from the first input.
        eps: added to the variance.
        initial_gamma, initial_beta: initializers, numbers or arrays; None means one and zero.

    Attributes:
        gamma, beta (Parameter): scale and shift of the channels, (size,).
    """

    def forward(self, x: Input) -> Variable:
        """Normalizes each channel of each sample of x (N, size, ...); returns a Variable of the
        same shape."""
        self._initialize(x.shape[1:2])
        return F.instance_normalization(x, self.gamma, self.beta, self.eps)
