"""Links that normalise their input."""

import numpy as np

from mpchain import functions as F
from mpchain.configuration import config, get_dtype
from mpchain.initializers import generate_array, get_initializer
from mpchain.link import Link
from mpchain.variable import Parameter


class BatchNormalization(Link):
    """Batch normalisation of :func:`mpchain.functions.batch_normalization` with its parameters.

    While ``config.train`` is set, it normalises by the statistics of the batch and follows them by
    moving averages; otherwise it normalises by these averages.

    Args:
        size (int or tuple of int): shape of the parameters; None leaves it to the first input,
            whose axis 1 (or the axes not in ``axis``) it then is.
        decay (float): how much of the moving averages stays at each step.
        eps (float): added to the variance.
        dtype: that of parameters and averages; None means the configuration's (float32 for
            ``mixed16``).
        use_gamma, use_beta (bool): whether to scale and to shift.
        initial_gamma, initial_beta, initial_avg_mean, initial_avg_var: initializers, numbers or
            arrays; None is one for scale and variance, zero for the others.
        axis (int or tuple of int): the axes to reduce; None means all but those of ``size``, which
            follow the first.

    Attributes:
        gamma, beta (Parameter): scale and shift; absent if not used.
        avg_mean, avg_var (array): the moving averages, persistent.
        N (int): the number of batches of fine-tuning so far, persistent.

    See S. Ioffe and C. Szegedy, Batch normalization, ICML 2015.
    """

    gamma = None
    beta = None

    def __init__(
        self,
        size=None,
        decay=0.9,
        eps=2e-5,
        dtype=None,
        use_gamma=True,
        use_beta=True,
        initial_gamma=None,
        initial_beta=None,
        axis=None,
        initial_avg_mean=None,
        initial_avg_var=None,
    ):
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
        """Makes what is still missing of parameters and averages."""
        for param in self.params():
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
    def printable_specs(self):
        size = self.size if self.avg_mean is None else self.avg_mean.shape
        yield "size", size[0] if isinstance(size, tuple) and len(size) == 1 else size
        yield from (("decay", self.decay), ("eps", self.eps), ("dtype", str(self._dtype)))
        yield from (("use_gamma", self.gamma is not None), ("use_beta", self.beta is not None))

    def start_finetuning(self):
        """Lets the moving averages begin anew, for calls with ``finetune=True``."""
        self.N = 0

    def forward(self, x, *, finetune=False):
        """Normalises a batch.

        Args:
            x: Variable or array (N, C, ...), floating point.
            finetune (bool): whether the averages are those of all batches since
                :meth:`start_finetuning`, with equal weights, instead of moving ones.

        Returns:
            Variable of the shape of ``x``.
        """
        if self.avg_mean is None or any(
            p is not None and not p.is_initialized for p in (self.gamma, self.beta)
        ):
            self._initialize(self._shape_for(x))
        gamma = self.xp.ones_like(self.avg_mean) if self.gamma is None else self.gamma
        beta = self.xp.zeros_like(self.avg_mean) if self.beta is None else self.beta
        if not config.train:
            averages = self.avg_mean, self.avg_var
            return F.fixed_batch_normalization(x, gamma, beta, *averages, self.eps, self.axis)
        options = {"eps": self.eps, "axis": self.axis}
        if not config.in_recomputing:  # this batch was counted when it was first computed
            options |= {"running_mean": self.avg_mean, "running_var": self.avg_var}
            options["decay"] = self._decay(finetune)
        return F.batch_normalization(x, gamma, beta, **options)

    def _decay(self, finetune):
        if not finetune:
            return self.decay
        self.N += 1
        return 1 - 1 / self.N
