"""Random orthogonal matrices."""

import math

import numpy as np

from mpchain.initializers.random import RandomInitializer

_FITS = {
    "auto": lambda n_out, n_in: True,
    "projection": lambda n_out, n_in: n_out <= n_in,
    "basis": lambda n_out, n_in: n_out == n_in,
    "embedding": lambda n_out, n_in: n_out >= n_in,
}


class Orthogonal(RandomInitializer):
    """Fills arrays with a random matrix whose rows, or columns if these are fewer, are orthonormal.

    All axes but the first are taken as one; the distribution is the uniform one over all such
    matrices.

    Args:
        scale (float): factor on the matrix.
        dtype, rng: see :class:`RandomInitializer`.
        mode (str): what shape (outputs, inputs) to insist on: ``'projection'`` outputs <= inputs,
            ``'embedding'`` outputs >= inputs, ``'basis'`` equality, ``'auto'`` nothing.

    Raises:
        ValueError: ``mode`` is another; when called, the shape does not fit or the array is empty.

    See A. Saxe et al., Exact solutions to the nonlinear dynamics of learning in deep linear neural
    networks, ICLR 2014.
    """

    def __init__(self, scale=1.1, dtype=None, mode="auto", *, rng=None):
        if mode not in _FITS:
            raise ValueError(f"Orthogonal: mode must be one of {', '.join(_FITS)}, not {mode!r}")
        super().__init__(scale, dtype, rng=rng)
        self.mode = mode

    def draw(self, rng, shape):
        n_out = shape[0] if shape else 1
        n_in = math.prod(shape[1:])
        if n_out * n_in == 0:
            raise ValueError(f"Orthogonal: the array must not be empty, but has shape {shape}")
        if not _FITS[self.mode](n_out, n_in):
            raise ValueError(
                f"Orthogonal: shape {shape} has {n_in} inputs and {n_out} outputs, "
                f"which cannot make an orthogonal {self.mode}"
            )
        q, r = np.linalg.qr(rng.normal(0.0, 1.0, (max(n_out, n_in), min(n_out, n_in))))
        # The signs make the decomposition unique, without which q would not be uniform.
        q *= np.where(np.diag(r) < 0, -self.scale, self.scale)
        return (q.T if n_out < n_in else q).reshape(shape)
