"""Shifting and scaling of channels, for NumPy and CuPy arrays alike."""

import numpy as np

from mpchain.kernels.operation import Operation
from mpchain.typing import Array

_CACHED = 1 << 16  # elements: of larger arrays one sample at a time is worked on


@Operation
def shift_and_scale(x: Array, mean: Array, scale: Array, beta: Array) -> Array:
    """(x - mean) scale + beta, of arrays that broadcast to x, in one piece of memory.

    Example:
        >>> shift_and_scale(np.array([[1.0, 7.0]]), *np.ones((3, 1, 2)))
        array([[1., 7.]])
    """
    dtype = np.result_type(x.dtype, mean.dtype, scale.dtype, beta.dtype)
    if type(x) is not np.ndarray or x.size <= _CACHED or len(mean) > 1:
        y = np.subtract(x, mean, dtype=dtype)
        y *= scale
        y += beta
        return y
    y = np.empty(x.shape, dtype)
    for sample, part in zip(x, y):
        np.subtract(sample, mean[0], out=part)
        part *= scale[0]
        part += beta[0]
    return y
