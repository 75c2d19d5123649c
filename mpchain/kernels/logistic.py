"""The logistic function of arrays, with an error of a few units in the last place even for tiny
results."""

import numpy as np

from mpchain.kernels import thresholds
from mpchain.typing import Array

try:
    # With scalar limits, this ufunc is several times as fast as np.minimum and np.maximum.
    from numpy._core import umath

    _clip = vars(umath)["clip"]
except (ImportError, KeyError):  # another version of NumPy may lack the ufunc, which is private

    def _clip(x, low, high, out=None):
        return np.minimum(np.maximum(x, low, out=out), high, out=out)


# This maps dtypes to minus infinity, one, and a number above which the function rounds to one.
_NUMBERS = {np.dtype(d): [np.array(n, d) for n in (-np.inf, 1, 40)] for d in "fd"}


def logistic(x: Array, out: Array | None = None) -> Array:
    """Returns exp(x) / (exp(x) + 1), elementwise.

    The formula (tanh(x / 2) + 1) / 2 would lose all digits where exp(x) is smaller than the
    precision. The quotient loses no digits, and limiting x keeps the exponential from overflowing.

    Args:
        x: a floating-point array of NumPy or CuPy.
        out: a NumPy array for the result, which may be ``x``; None means a new array.

    Example:
        >>> logistic(np.array([-100.0, 0.0, 100.0]))
        array([3.72007598e-44, 5.00000000e-01, 1.00000000e+00])
    """
    if not isinstance(x, np.ndarray) or not x.ndim:
        e = np.exp(-np.absolute(x))
        return np.where(np.less(x, 0), e, 1) / (e + 1)
    # half precision is computed in single precision, because exp(40) overflows in half precision
    if x.dtype not in _NUMBERS:
        return np.positive(logistic(x.astype(np.float32)).astype(x.dtype), out=out)
    low, one, high = _NUMBERS[x.dtype]
    if x.size > thresholds.logistic_block and x.__class__ is np.ndarray and x.flags.c_contiguous:
        out = np.empty_like(x) if out is None else out
        if out.flags.c_contiguous:
            _in_blocks(x.ravel(), out.ravel(), low, one, high)
            return out
    e = _clip(x, low, high, out=out)
    np.exp(e, out=e)
    return np.divide(e, e + one, out=e)


def _in_blocks(x, y, low, one, high):
    """Computes the logistic function block by block, so that temporary arrays stay in the
    caches."""
    work = np.empty(thresholds.logistic_block, x.dtype)
    for i in range(0, x.size, thresholds.logistic_block):
        e = _clip(
            x[i : i + thresholds.logistic_block],
            low,
            high,
            out=y[i : i + thresholds.logistic_block],
        )
        np.exp(e, out=e)
        np.divide(e, np.add(e, one, out=work[: e.size]), out=e)


def limited(x: Array, low: float, high: float, out: Array | None = None) -> Array:
    """Returns min(max(x, low), high), elementwise.

    Args:
        x: array of NumPy or CuPy.
        low, high: numbers, or arrays that broadcast.
        out: a NumPy array for the result, which may be ``x``; None means a new array.

    Example:
        >>> limited(np.array([-3.0, 0.5, 3.0]), -1, 2)
        array([-1. ,  0.5,  2. ])
    """
    if isinstance(x, np.ndarray):
        return _clip(x, low, high, out=out)
    return np.minimum(np.maximum(x, low), high)
