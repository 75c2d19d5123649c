"""An initializer that draws random orthogonal matrices."""

import math
from typing import Any

import numpy as np

from mpchain.initializers.random import RandomInitializer, Rng
from mpchain.typing import Array, DTypeLike

_FITS = {
    "auto": lambda n_out, n_in: True,
    "projection": lambda n_out, n_in: n_out <= n_in,
    "basis": lambda n_out, n_in: n_out == n_in,
    "embedding": lambda n_out, n_in: n_out >= n_in,
}


class Orthogonal(RandomInitializer):
    """Fills arrays with a random matrix whose rows are orthonormal; if there are fewer columns than
    rows, the columns are orthonormal.

    All axes except the first are merged. The distribution is uniform over all such matrices.

        >>> W = L.Linear(5, 3, initialW=Orthogonal(scale=1)).W.array
        >>> (W @ W.T).round(5) + 0.0
        array([[1., 0., 0.],
               [0., 1., 0.],
               [0., 0., 1.]], dtype=float32)

    Args:
        scale: factor on the matrix.
        dtype, rng: see :class:`RandomInitializer`.
        mode: required shape (outputs, inputs): ``'projection'`` outputs <= inputs, ``'embedding'``
            outputs >= inputs, ``'basis'`` outputs == inputs, ``'auto'`` any.

    Raises:
        ValueError: ``mode`` is not one of these; when the initializer is called, the shape does not
            match ``mode``, or is empty.

    See A. Saxe et al., Exact solutions to the nonlinear dynamics of learning in deep linear neural
    networks, ICLR 2014.
    """

    def __init__(
        self, scale: float = 1.1, dtype: DTypeLike = None, mode: str = "auto", *, rng: Rng = None
    ) -> None:
        if mode not in _FITS:
            raise ValueError(f"Orthogonal: mode must be one of {', '.join(_FITS)}, not {mode!r}")
        super().__init__(scale, dtype, rng=rng)
        self.mode = mode

    def draw(self, rng: Any, shape: tuple[int, ...]) -> Array:
        n_out = shape[0] if shape else 1
        n_in = math.prod(shape[1:])
        if n_out * n_in == 0:
            raise ValueError(f"Orthogonal: the array must not be empty, but has shape {shape}")
        if not _FITS[self.mode](n_out, n_in):
            raise ValueError(
                f"Orthogonal: shape {shape} has {n_in} inputs and {n_out} outputs, "
                f"which mode={self.mode!r} does not allow"
            )
        q, r = np.linalg.qr(rng.normal(0.0, 1.0, (max(n_out, n_in), min(n_out, n_in))))
        # The signs make the decomposition unique; without them, q would not be uniformly
        # distributed.
        q *= np.where(np.diag(r) < 0, -self.scale, self.scale)
        return (q.T if n_out < n_in else q).reshape(shape)
