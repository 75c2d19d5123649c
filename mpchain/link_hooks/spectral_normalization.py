"""The link hook for spectral normalization."""

import numpy as np

from mpchain.configuration import config
from mpchain.functions.contraction import matmul
from mpchain.functions.recompute import remembered
from mpchain.link import Link
from mpchain.link_hooks.weight_hook import WeightHook
from mpchain.typing import Input
from mpchain.variable import Parameter, Variable


class SpectralNormalization(WeightHook):
    """Divides the weight of a link by its largest singular value during calls.

    The singular value is u^T W v. The vectors u and v come from power iteration, which continues
    from call to call in training, and are constants in derivatives.

    Add the hook with :meth:`Link.add_hook` (if ``use_gamma``, before optimizer setup) to Linear,
    EmbedID and (de)convolutions, or to other links with ``weight_name``. The link gets u as the
    persistent value ``<weight_name>_u``.

    Args:
        n_power_iteration: the number of iterations per call.
        eps: added to divisors.
        use_gamma: whether to multiply by a parameter, which becomes ``gamma`` of the link and is
            initially the largest singular value.
        factor: a number by which the singular value is divided before it divides the weight; None
            means 1.
        weight_name: the attribute of the weight in the link.
        name: name of the hook; None means ``'SpectralNormalization'``.

    Attributes:
        axis: the weight's axis of output units, for the link to which the hook was last added.

    Raises:
        ValueError: ``n_power_iteration`` is not positive, or the link has no such weight.

    Example:
        >>> layer = L.Linear(3, 2).add_hook(SpectralNormalization())

    See T. Miyato et al., Spectral normalization for generative adversarial networks, ICLR 2018.
    """

    name = "SpectralNormalization"
    axis = 0

    def __init__(
        self,
        n_power_iteration: int = 1,
        eps: float = 1e-6,
        use_gamma: bool = False,
        factor: float | None = None,
        weight_name: str = "W",
        name: str | None = None,
    ) -> None:
        if n_power_iteration < 1:
            raise ValueError(
                "SpectralNormalization: n_power_iteration must be at least 1, "
                f"but is {n_power_iteration}"
            )
        super().__init__(weight_name, name)
        self.n_power_iteration = n_power_iteration
        self.eps = eps
        self.use_gamma = use_gamma
        self.factor = factor
        self.vector_name = f"{weight_name}_u"

    def added(self, link: Link) -> None:
        super().added(link)
        self.axis = _axis(link)
        # The vector and gamma are added when the hook is added, so that they are saved, restored
        # and optimized even before their shapes are known.
        link.add_persistent(self.vector_name, None)
        if self.use_gamma:
            with link.init_scope():
                link.gamma = Parameter()
        weight = getattr(link, self.weight_name)
        if weight.array is not None:
            self._prepare(link, weight)

    def deleted(self, link: Link) -> None:
        delattr(link, self.vector_name)
        if self.use_gamma:
            del link.gamma

    def reshape_W(self, W: Input) -> Input:
        """Returns a weight as a matrix with one row for each index along :attr:`axis`."""
        return _as_matrix(W, self.axis)

    def normalize_weight(self, link: Link) -> Variable:
        """Returns the link's normalized weight, after ``n_power_iteration`` more iterations."""
        return self.replacement(link, getattr(link, self.weight_name))

    def replacement(self, link: Link, weight: Parameter) -> Variable:
        self._prepare(link, weight)
        matrix = _as_matrix(weight, _axis(link))
        u, v = remembered(lambda: self._singular_vectors(link, matrix.array))
        sigma = matmul(matmul(u, matrix), v)
        if self.factor is not None:
            sigma = sigma / self.factor
        return weight / sigma * link.gamma if self.use_gamma else weight / sigma

    def _prepare(self, link, weight):
        """Initializes the vector and gamma, if necessary."""
        matrix = _as_matrix(weight.array, _axis(link))
        if getattr(link, self.vector_name) is None:
            random = np.random if config.rng is None else config.rng
            u = random.normal(size=len(matrix)).astype(matrix.dtype)
            setattr(link, self.vector_name, link.device.send(u))
        if self.use_gamma and link.gamma.array is None:
            # NumPy does not compute singular values in float16.
            values = link.xp.linalg.svd(matrix.astype(np.float64), compute_uv=False)
            link.gamma.array = values[:1].reshape(()).astype(matrix.dtype)

    def _singular_vectors(self, link, matrix):
        """Returns approximations, improved by power iteration, of the left and right singular
        vectors of the largest singular value."""
        u = v = getattr(link, self.vector_name)
        for _ in range(self.n_power_iteration):
            v = self._normalized(u @ matrix)
            u = self._normalized(matrix @ v)
        if config.train and not config.in_recomputing:
            setattr(link, self.vector_name, u)
        return u, v

    def _normalized(self, x):
        return x / ((x * x).sum() ** 0.5 + self.eps)


def _axis(link):
    """Returns the weight's axis of output units: 1 for transposed convolutions, else 0."""
    kinds = {kind.__name__ for kind in type(link).__mro__}
    return 1 if kinds & {"Deconvolution2D", "DeconvolutionND"} else 0


def _as_matrix(weight, axis):
    """Returns the weight, Variable or array, as (out, rest)."""
    if axis:
        weight = weight.transpose(1, 0, *range(2, weight.ndim))
    return weight.reshape(len(weight), -1)
