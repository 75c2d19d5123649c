"""Normalization of small arrays by loops with the bits of the reference; see
:mod:`mpchain.kernels.cpu.small_arrays`."""

import math

import numpy as np

from mpchain.kernels import reference, thresholds
from mpchain.kernels.cpu.small_arrays import compiled_with_sums, replaces

# numba compiles the texts below.

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


def _refuse_samples(x, gamma, axis, *others, eps=0.0):
    if type(eps) is not float:
        return _EPS
    if not all([a.dtype == x.dtype and a.flags.c_contiguous for a in (x, gamma, *others)]):
        return "arrays of another dtype or with gaps"
    if axis != (-1,) and axis != (x.ndim - 1,):
        return "normalization over more than the last axis"
    if gamma.ndim != 1 or gamma.size != x.shape[-1] or x.ndim < 2:
        return "another shape of gamma"
    return None if gamma.size > 1 and 0 < x.size < thresholds.compiled_samples else _SIZE


_SIZE = "empty or too large, or with rows of one element"
_EPS = "eps that is not a float, with which NumPy may compute in another precision"


@replaces(
    reference.sample_normalization,
    11,
    lambda *_: _SAMPLES,
    lambda x, gamma, beta, axis, eps: _refuse_samples(x, gamma, axis, beta, eps=eps),
)
def _sample_normalization(x, gamma, beta, axis, eps):
    """Computes the same as the reference."""
    y, (*kept, n) = np.empty(x.shape, x.dtype), x.shape
    mean, inverse_std = np.empty((*kept, 1), x.dtype), np.empty((*kept, 1), x.dtype)
    numbers = gamma, beta, eps, y.reshape(-1, n), mean.reshape(-1), inverse_std.reshape(-1)
    compiled_with_sums(_SAMPLES)(x.reshape(-1, n), *numbers)
    return y, mean, inverse_std


@replaces(
    reference.sample_normalization_gradient,
    20,
    lambda *_: _SAMPLES_BACKWARD,
    lambda g, x, gamma, *others: _refuse_samples(x, gamma, others[-1], g, *others[:-1]),
)
def _sample_normalization_gradient(g, x, gamma, mean, inverse_std, axis):
    """Computes the same as the reference."""
    gx, g_gamma, g_beta = np.empty(x.shape, x.dtype), np.empty_like(gamma), np.empty_like(gamma)
    rows, statistics = (-1, gamma.size), (mean.reshape(-1), inverse_std.reshape(-1))
    results = gx.reshape(rows), g_gamma, g_beta
    compiled_with_sums(_SAMPLES_BACKWARD)(
        g.reshape(rows), x.reshape(rows), gamma, *statistics, *results
    )
    return gx, g_gamma, g_beta


def _refuse_batch(x, axis, *others, eps=0.0):
    if type(eps) is not float:
        return _EPS
    if not all([a.dtype == x.dtype and a.flags.c_contiguous for a in (x, *others)]):
        return "arrays of another dtype or with gaps"
    if x.ndim < 2 or axis != (0, *range(2, x.ndim)):
        return "other channels than those of the second axis"
    # with one channel, or one element of a channel, NumPy would join axes and sum in another order
    if x.shape[1] < 2 or (x.ndim > 2 and math.prod(x.shape[2:]) < 2):
        return "one channel, or channels of one element"
    return None if 0 < x.size < thresholds.compiled or (x.ndim == 2 and x.size) else _SIZE


def _batch(x, *arrays):
    """Returns the shape in which a loop reads arrays like ``x``, and the given arrays as
    vectors."""
    shape = x.shape if x.ndim == 2 else (*x.shape[:2], math.prod(x.shape[2:]))
    return shape, [a.reshape(-1) for a in arrays]


@replaces(
    reference.batch_normalization,
    12,
    lambda x, *_: _COLUMNS if x.ndim == 2 else _CHANNELS,
    lambda x, gamma, beta, axis, eps: _refuse_batch(x, axis, gamma, beta, eps=eps),
)
def _batch_normalization(x, gamma, beta, axis, eps):
    """Computes the same as the reference."""
    y, mean, inverse_std, var = np.empty(x.shape, x.dtype), *np.empty((3, *gamma.shape), x.dtype)
    shape, (gamma, beta, *statistics) = _batch(x, gamma, beta, mean, inverse_std, var)
    loop = compiled_with_sums(_COLUMNS if x.ndim == 2 else _CHANNELS)
    loop(x.reshape(shape), gamma, beta, eps, y.reshape(shape), *statistics)
    return y, mean, inverse_std, var


@replaces(
    reference.batch_normalization_gradient,
    14,
    lambda g, x, *_: _COLUMNS_BACKWARD if x.ndim == 2 else _CHANNELS_BACKWARD,
    lambda g, x, gamma, mean, inverse_std, axis: _refuse_batch(
        x, axis, g, gamma, mean, inverse_std
    ),
)
def _batch_normalization_gradient(g, x, gamma, mean, inverse_std, axis):
    """Computes the same as the reference."""
    gx, g_gamma, g_beta = np.empty(x.shape, x.dtype), *np.empty((2, *gamma.shape), x.dtype)
    shape, numbers = _batch(x, gamma, mean, inverse_std)
    of_parameters = g_gamma.reshape(-1), g_beta.reshape(-1)
    loop = compiled_with_sums(_COLUMNS_BACKWARD if x.ndim == 2 else _CHANNELS_BACKWARD)
    loop(g.reshape(shape), x.reshape(shape), *numbers, gx.reshape(shape), *of_parameters)
    return gx, g_gamma, g_beta
