"""Softmax and its like for small arrays, by loops with the bits of the reference; see
:mod:`mpchain.kernels.cpu.small_arrays`."""

import numpy as np

from mpchain.kernels import reference, thresholds
from mpchain.kernels.cpu.small_arrays import compiled_with_sums, replaces
from mpchain.kernels.operation import SINGLE

# numba compiles the texts below. The order of the integers is that of the numbers, with NaN above
# infinity or below minus infinity.

_DIFFERENCES = """
    n, zero = x.shape[1], np.float32(0)
    for row in range(len(x)):
        most, least = np.int32(-2147483648), np.int32(2147483647)
        for i in range(n):
            bits = np.float32(x[row, i] * scale).view(np.int32)
            order = np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))
            most, least = max(most, order), min(least, order)
        sign = np.int32(most >> np.int32(31))
        top = np.int32(most ^ np.int32(sign & np.int32(0x7FFFFFFF))).view(np.float32)
        top = top if least >= np.int32(-2139095041) else np.float32(np.nan)
        tops[row] = top
        for i in range(n):
            y[row, i] = x[row, i] * scale - top
    differences = y.reshape(y.size)
"""
_EXPONENTIALS = f"""
def run(x, scale, y, tops, totals):
    {_DIFFERENCES.strip()}
    for i in range(y.size):
        differences[i] = exp(differences[i])
    for row in range(len(x)):
        totals[row] = zero + pairwise(y[row], 0, n)
"""
_SOFTMAX = (
    _EXPONENTIALS
    + """
        for i in range(n):
            y[row, i] /= totals[row]
"""
)
_LOG_SOFTMAX = f"""
def run(x, scale, y, tops, of_y):
    {_DIFFERENCES.strip()}
    exponentials = of_y.reshape(y.size)
    for i in range(y.size):
        exponentials[i] = exp(differences[i])
    for row in range(len(x)):
        logarithm = log(zero + pairwise(of_y[row], 0, n))
        for i in range(n):
            y[row, i] -= logarithm
"""
_SOFTMAX_GRADIENT = """
def run(g, y, scale, gx):
    n, zero = g.shape[1], np.float32(0)
    for row in range(len(g)):
        for i in range(n):
            gx[row, i] = g[row, i] * y[row, i]
        total = zero + pairwise(gx[row], 0, n)
        for i in range(n):
            gx[row, i] = (gx[row, i] - y[row, i] * total) * scale
"""
_LOG_SOFTMAX_GRADIENT = """
def run(g, y, gx):
    n, zero = g.shape[1], np.float32(0)
    for row in range(len(g)):
        total = -(zero + pairwise(g[row], 0, n))
        for i in range(n):
            gx[row, i] = exp(y[row, i]) * total + g[row, i]
"""


def _refuse(x, axis, scale=1.0, other=None):
    if axis != x.ndim - 1 and axis != -1:
        return "not along the last axis"
    if not (x.flags.c_contiguous and (other is None or other.flags.c_contiguous)):
        return "arrays with gaps"
    if type(scale) not in (int, float):
        return "a scale with which NumPy may compute in another precision"
    if x.ndim > 1 and x.shape[-1] > 1 and 0 < x.size < thresholds.compiled:
        return None
    return "empty or too large, or with rows of one element"


def _run(text, x, scale):
    """Returns the results of a loop for rows of ``x``, and the shape of one number for each row."""
    n = x.shape[-1]
    x, y, shape = x.reshape(-1, n), np.empty(x.shape, x.dtype), (*x.shape[:-1], 1)
    tops, totals = np.empty((2, len(x)), x.dtype)
    compiled_with_sums(text)(x, np.float32(scale), y.reshape(-1, n), tops, totals)
    return y, totals.reshape(shape), tops.reshape(shape)


@replaces(reference.softmax, 5, lambda *_: _SOFTMAX, _refuse, SINGLE)
def _softmax(x, axis, scale=1.0):
    """Computes the same as the reference."""
    return _run(_SOFTMAX, x, scale)[0]


@replaces(
    reference.exponentials,
    4,
    lambda *_: _EXPONENTIALS,
    lambda x: "not a matrix" if x.ndim > 2 else _refuse(x, 1),
    SINGLE,
)
def _exponentials(x):
    """Computes the same as the reference."""
    return _run(_EXPONENTIALS, x, 1)


@replaces(reference.log_softmax, 6, lambda *_: _LOG_SOFTMAX, _refuse, SINGLE)
def _log_softmax(x, axis):
    """Computes the same as the reference."""
    n, y = x.shape[-1], np.empty(x.shape, x.dtype)
    rows, tops = x.reshape(-1, n), np.empty(x.size // n, x.dtype)
    loop = compiled_with_sums(_LOG_SOFTMAX)
    loop(rows, np.float32(1), y.reshape(-1, n), tops, np.empty_like(rows))
    return y


@replaces(
    reference.softmax_gradient,
    4,
    lambda *_: _SOFTMAX_GRADIENT,
    lambda g, y, axis, scale=1.0: _refuse(g, axis, scale, y),
    SINGLE,
)
def _softmax_gradient(g, y, axis, scale=1.0):
    """Computes the same as the reference."""
    n, gx = g.shape[-1], np.empty(g.shape, g.dtype)
    rows = g.reshape(-1, n), y.reshape(-1, n)
    compiled_with_sums(_SOFTMAX_GRADIENT)(*rows, np.float32(scale), gx.reshape(-1, n))
    return gx


@replaces(
    reference.log_softmax_gradient,
    5,
    lambda *_: _LOG_SOFTMAX_GRADIENT,
    lambda g, y, axis: _refuse(g, axis, 1, y),
    SINGLE,
)
def _log_softmax_gradient(g, y, axis):
    """Computes the same as the reference."""
    n, gx = g.shape[-1], np.empty(g.shape, g.dtype)
    rows = g.reshape(-1, n), y.reshape(-1, n), gx.reshape(-1, n)
    compiled_with_sums(_LOG_SOFTMAX_GRADIENT)(*rows)
    return gx
