"""Normalization of small arrays, by compiled loops that compute the bits of the reference.

For a few hundred elements, NumPy's calls take many times as long as the arithmetic. Since the bits
are the same, a loop can take over in the middle of a program: it does so when the reference has
taken about as long as the compilation, and if both have the same results then.

The sum of a row is NumPy's pairwise sum; see N. J. Higham, The accuracy of floating point
summation, SIAM J. Sci. Comput. 14, 1993.
"""

import functools
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.formulas.text import compile_text
from mpchain.kernels import reference, thresholds
from mpchain.kernels.cpu.compiler import Switch, compile_written_loop, load_numba, why_not_compiled
from mpchain.kernels.operation import SINGLE_OR_DOUBLE, Operation

WAITING = "NumPy has not yet taken as long as a compilation"
"""The reason against a loop that may take over later."""

_CALL = 1 << 12  # the number of elements that NumPy computes in the time of a call


def replaces(operation: Operation, n_calls: int, find: Callable, refuse: Callable) -> Callable:
    """Decorator: adds a kernel that replaces an operation's reference when it pays.

    Args:
        operation: the operation, whose reference returns several arrays.
        n_calls: the number of NumPy's calls in the reference.
        find: a function of the operation's arguments that returns the kernel's compiled loop.
        refuse: see :meth:`Operation.kernel`.

    Example:
        >>> @Operation
        ... def twice(x):
        ...     return (x + x,)
        >>> @replaces(twice, 1, lambda x: None, lambda x: None)
        ... def twice_in_a_loop(x):
        ...     return (2 * x,)
        >>> twice(np.ones(2))
        (array([2., 2.]),)
        >>> print(twice.explain(np.ones(2)))
        twice: numba_small: no: NumPy has not yet taken as long as a compilation
        twice: reference: runs
    """

    def add(compute):
        _Replacement(operation, n_calls, find, refuse, compute)
        return compute

    return add


class _Replacement:
    """Decides when a kernel replaces a reference; see :func:`replaces`."""

    def __init__(self, operation, n_calls, find, refuse, compute):
        self._n_elements, self._find, self._refuse = n_calls * _CALL, find, refuse
        self._switch, self._reason, self._compute = Switch(), WAITING, compute
        self._reference = operation.kernels[-1].compute
        operation.kernel("numba_small", self._why_not, SINGLE_OR_DOUBLE)(compute)
        (self._kernel,) = (k for k in operation.kernels if k.compute is compute)
        operation.plan_reference(self._plan)

    def _why_not(self, *args):
        return self._refuse(*args) or self._reason

    def _plan(self, *args):
        return self._count if self._kernel.refuse(*args) == WAITING else None

    def _count(self, *args):
        """Computes the reference, and counts its time until the loop takes over."""
        expected = self._reference(*args)
        n = max(args[0].size, self._n_elements)
        if self._reason == WAITING and self._switch.is_due(n, lambda: self._find(*args)):
            self._reason = why_not_compiled()
            if self._reason is None and not _are_same(self._compute(*args), expected):
                self._reason = "NumPy's results differ on this machine"
            thresholds.forget()  # the operation chooses again
        return expected


def _are_same(found, expected):
    return all(x.tobytes() == y.tobytes() for x, y in zip(found, expected, strict=True))


@functools.cache
def _compiled(text):
    jit = load_numba().njit
    known: dict[str, Any] = {"np": np}
    known |= {name: np.uintp(i) for i, name in enumerate(_NUMBERS.split(), 1)}
    known["pairwise"] = jit(compile_text("pairwise", _FEW, known))
    for _ in range(_HALVINGS):
        known = {"pairwise_half": known["pairwise"]}
        known["pairwise"] = jit(compile_text("pairwise", _MANY, known))
    # caches are keyed by the text
    text = f"{text.strip()}\n    # {zlib.crc32((_FEW + _MANY * _HALVINGS).encode())}"
    return compile_written_loop("small arrays", text, {"pairwise": known["pairwise"]})


# numba compiles the texts below.

_NUMBERS = "ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT"  # unsigned
_FEW = """
def pairwise(x, begin, n):
    if n < 8:
        total = x.dtype.type(0)
        for i in range(begin, begin + n):
            total += x[i]
        return total
    place = np.uintp(begin)  # an index without sign needs no test for negative numbers
    a, b, c, d = x[place], x[place + ONE], x[place + TWO], x[place + THREE]
    e, f, g, h = x[place + FOUR], x[place + FIVE], x[place + SIX], x[place + SEVEN]
    for i in range(1, n // 8):
        place += EIGHT
        a, b, c, d = a + x[place], b + x[place + ONE], c + x[place + TWO], d + x[place + THREE]
        e, f = e + x[place + FOUR], f + x[place + FIVE]
        g, h = g + x[place + SIX], h + x[place + SEVEN]
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(begin + n - n % 8, begin + n):
        total += x[i]
    return total
"""
# A recursive function would be shorter, but numba cannot load recursive functions from its cache.
_MANY = """
def pairwise(x, begin, n):
    if n <= 128:
        return pairwise_half(x, begin, n)
    half = n // 2 - n // 2 % 8
    return pairwise_half(x, begin, half) + pairwise_half(x, begin + half, n - half)
"""
_HALVINGS = 5
_LONGEST = 2048  # halved five times, rows of this length have at most 128 elements
_SAMPLES = """
def normalize(x, gamma, beta, eps, y, mean, inverse_std):
    n, zero, one = x.shape[1], x.dtype.type(0), x.dtype.type(1)
    count, eps = x.dtype.type(n), x.dtype.type(eps)
    for row in range(len(x)):
        values, results = x[row], y[row]
        middle = (zero + pairwise(values, 0, n)) / count
        for i in range(n):
            deviation = values[i] - middle
            results[i] = deviation * deviation
        scale = one / np.sqrt((zero + pairwise(results, 0, n)) / count + eps)
        for i in range(n):
            results[i] = (values[i] - middle) * scale * gamma[i] + beta[i]
        mean[row], inverse_std[row] = middle, scale
"""
_SAMPLES_BACKWARD = """
def differentiate(g, x, gamma, mean, inverse_std, gx, g_gamma, g_beta):
    n, zero = x.shape[1], x.dtype.type(0)
    count = x.dtype.type(n)
    g_gamma[:], g_beta[:] = zero, zero
    for row in range(len(x)):
        values, of_y, results = x[row], g[row], gx[row]
        middle, scale = mean[row], inverse_std[row]
        for i in range(n):
            product = of_y[i] * ((values[i] - middle) * scale)
            g_gamma[i] += product
            g_beta[i] += of_y[i]
            results[i] = product * gamma[i]
        along = (zero + pairwise(results, 0, n)) / count
        for i in range(n):
            results[i] = of_y[i] * gamma[i]
        shift = (zero + pairwise(results, 0, n)) / count
        for i in range(n):
            results[i] = (results[i] - ((values[i] - middle) * scale * along + shift)) * scale
"""
# Arrays are (samples, channels, elements), and the sums of a channel's elements are pairwise.
_CHANNELS = """
def normalize(x, gamma, beta, eps, y, mean, inverse_std, var):
    (n_samples, n_channels, n), one = x.shape, x.dtype.type(1)
    count, eps = x.dtype.type(n_samples * n), x.dtype.type(eps)
    mean[:], var[:] = 0, 0
    for sample in range(n_samples):
        for c in range(n_channels):
            mean[c] += pairwise(x[sample, c], 0, n)
    mean /= count
    for sample in range(n_samples):
        for c in range(n_channels):
            for i in range(n):
                deviation = x[sample, c, i] - mean[c]
                y[sample, c, i] = deviation * deviation
            var[c] += pairwise(y[sample, c], 0, n)
    for c in range(n_channels):
        var[c] /= count
        inverse_std[c] = one / np.sqrt(var[c] + eps)
    for sample in range(n_samples):
        for c in range(n_channels):
            middle, scale, shift = mean[c], inverse_std[c] * gamma[c], beta[c]
            for i in range(n):
                y[sample, c, i] = (x[sample, c, i] - middle) * scale + shift
"""
_CHANNELS_BACKWARD = """
def differentiate(g, x, gamma, mean, inverse_std, gx, g_gamma, g_beta):
    n_samples, n_channels, n = x.shape
    count = x.dtype.type(n_samples * n)
    g_gamma[:], g_beta[:] = 0, 0
    for sample in range(n_samples):
        for c in range(n_channels):
            for i in range(n):
                normalized = (x[sample, c, i] - mean[c]) * inverse_std[c]
                gx[sample, c, i] = g[sample, c, i] * normalized
            g_gamma[c] += pairwise(gx[sample, c], 0, n)
            g_beta[c] += pairwise(g[sample, c], 0, n)
    for sample in range(n_samples):
        for c in range(n_channels):
            along, shift, scale = g_gamma[c] / count, g_beta[c] / count, gamma[c] * inverse_std[c]
            for i in range(n):
                normalized = (x[sample, c, i] - mean[c]) * inverse_std[c]
                gx[sample, c, i] = (g[sample, c, i] - (normalized * along + shift)) * scale
"""
# Arrays are (rows, channels), and the rows are added one after the other.
_COLUMNS = """
def normalize(x, gamma, beta, eps, y, mean, inverse_std, var):
    (n, n_channels), one = x.shape, x.dtype.type(1)
    count, eps = x.dtype.type(n), x.dtype.type(eps)
    mean[:], var[:] = 0, 0
    for row in range(n):
        for c in range(n_channels):
            mean[c] += x[row, c]
    mean /= count
    for row in range(n):
        for c in range(n_channels):
            deviation = x[row, c] - mean[c]
            var[c] += deviation * deviation
    for c in range(n_channels):
        var[c] /= count
        inverse_std[c] = one / np.sqrt(var[c] + eps)
    for row in range(n):
        for c in range(n_channels):
            y[row, c] = (x[row, c] - mean[c]) * (inverse_std[c] * gamma[c]) + beta[c]
"""
_COLUMNS_BACKWARD = """
def differentiate(g, x, gamma, mean, inverse_std, gx, g_gamma, g_beta):
    n, n_channels = x.shape
    count = x.dtype.type(n)
    g_gamma[:], g_beta[:] = 0, 0
    for row in range(n):
        for c in range(n_channels):
            g_gamma[c] += g[row, c] * ((x[row, c] - mean[c]) * inverse_std[c])
            g_beta[c] += g[row, c]
    for row in range(n):
        for c in range(n_channels):
            normalized = (x[row, c] - mean[c]) * inverse_std[c]
            changed = normalized * (g_gamma[c] / count) + g_beta[c] / count
            gx[row, c] = (g[row, c] - changed) * (gamma[c] * inverse_std[c])
"""


def _refuse_samples(x, gamma, axis, *others):
    if not all([a.dtype == x.dtype and a.flags.c_contiguous for a in (x, gamma, *others)]):
        return "arrays of another dtype or with gaps"
    if axis != (-1,) and axis != (x.ndim - 1,):
        return "normalization over more than the last axis"
    if gamma.ndim != 1 or gamma.size != x.shape[-1] or x.ndim < 2:
        return "another shape of gamma"
    if not 1 < gamma.size <= _LONGEST or not 0 < x.size < thresholds.compiled_samples:
        return _SIZE
    return None


_SIZE = "an array that is empty or too large, or whose rows have too many elements or only one"


@replaces(
    reference.sample_normalization,
    11,
    lambda *_: _compiled(_SAMPLES),
    lambda x, gamma, beta, axis, eps: _refuse_samples(x, gamma, axis, beta),
)
def _sample_normalization(x, gamma, beta, axis, eps):
    """Computes the same as the reference."""
    y, (*kept, n) = np.empty(x.shape, x.dtype), x.shape
    mean, inverse_std = np.empty((*kept, 1), x.dtype), np.empty((*kept, 1), x.dtype)
    numbers = gamma, beta, eps, y.reshape(-1, n), mean.reshape(-1), inverse_std.reshape(-1)
    _compiled(_SAMPLES)(x.reshape(-1, n), *numbers)
    return y, mean, inverse_std


@replaces(
    reference.sample_normalization_gradient,
    20,
    lambda *_: _compiled(_SAMPLES_BACKWARD),
    lambda g, x, gamma, *others: _refuse_samples(x, gamma, others[-1], g, *others[:-1]),
)
def _sample_normalization_gradient(g, x, gamma, mean, inverse_std, axis):
    """Computes the same as the reference."""
    gx, g_gamma, g_beta = np.empty(x.shape, x.dtype), np.empty_like(gamma), np.empty_like(gamma)
    rows, statistics = (-1, gamma.size), (mean.reshape(-1), inverse_std.reshape(-1))
    results = gx.reshape(rows), g_gamma, g_beta
    _compiled(_SAMPLES_BACKWARD)(g.reshape(rows), x.reshape(rows), gamma, *statistics, *results)
    return gx, g_gamma, g_beta


def _refuse_batch(x, axis, *others):
    if not all([a.dtype == x.dtype and a.flags.c_contiguous for a in (x, *others)]):
        return "arrays of another dtype or with gaps"
    if x.ndim < 2 or axis != (0, *range(2, x.ndim)):
        return "other channels than those of the second axis"
    # with one channel, or one element of a channel, NumPy would join axes and sum in another order
    if x.shape[1] < 2 or (x.ndim > 2 and math.prod(x.shape[2:]) < 2):
        return "one channel, or channels of one element"
    if x.ndim == 2:
        return None if x.size else _SIZE
    is_short = math.prod(x.shape[2:]) <= _LONGEST
    return None if is_short and 0 < x.size < thresholds.compiled_images else _SIZE


def _batch(x, *arrays):
    """Returns the shape in which a loop reads arrays like ``x``, and the given arrays as
    vectors."""
    shape = x.shape if x.ndim == 2 else (*x.shape[:2], math.prod(x.shape[2:]))
    return shape, [a.reshape(-1) for a in arrays]


@replaces(
    reference.batch_normalization,
    12,
    lambda x, *_: _compiled(_COLUMNS if x.ndim == 2 else _CHANNELS),
    lambda x, gamma, beta, axis, eps: _refuse_batch(x, axis, gamma, beta),
)
def _batch_normalization(x, gamma, beta, axis, eps):
    """Computes the same as the reference."""
    y, mean, inverse_std, var = np.empty(x.shape, x.dtype), *np.empty((3, *gamma.shape), x.dtype)
    shape, (gamma, beta, *statistics) = _batch(x, gamma, beta, mean, inverse_std, var)
    loop = _compiled(_COLUMNS if x.ndim == 2 else _CHANNELS)
    loop(x.reshape(shape), gamma, beta, eps, y.reshape(shape), *statistics)
    return y, mean, inverse_std, var


@replaces(
    reference.batch_normalization_gradient,
    14,
    lambda g, x, *_: _compiled(_COLUMNS_BACKWARD if x.ndim == 2 else _CHANNELS_BACKWARD),
    lambda g, x, gamma, mean, inverse_std, axis: _refuse_batch(
        x, axis, g, gamma, mean, inverse_std
    ),
)
def _batch_normalization_gradient(g, x, gamma, mean, inverse_std, axis):
    """Computes the same as the reference."""
    gx, g_gamma, g_beta = np.empty(x.shape, x.dtype), *np.empty((2, *gamma.shape), x.dtype)
    shape, numbers = _batch(x, gamma, mean, inverse_std)
    of_parameters = g_gamma.reshape(-1), g_beta.reshape(-1)
    loop = _compiled(_COLUMNS_BACKWARD if x.ndim == 2 else _CHANNELS_BACKWARD)
    loop(g.reshape(shape), x.reshape(shape), *numbers, gx.reshape(shape), *of_parameters)
    return gx, g_gamma, g_beta
