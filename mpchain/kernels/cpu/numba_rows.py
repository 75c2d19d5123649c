"""Layer and group normalization in loops for numba, row by row.

The elements of a row are normalized together. A row is a sample of a layer (n_rows, size), or a
group of channels of a sample (n_rows, channels, pixels). Sums are in double precision. Sums over
rows are computed in parts that do not depend on the number of threads.
"""

import functools
import math

import numpy as np

from mpchain.kernels import reference, thresholds
from mpchain.kernels.cpu.channels_last import as_plain, empty
from mpchain.kernels.cpu.compiler import why_not_compiled
from mpchain.kernels.cpu.numba_cpu import TOO_SMALL
from mpchain.kernels.cpu.numba_threads import in_parts_of
from mpchain.kernels.operation import SINGLE_OR_DOUBLE


def _groups(x, gamma, axis):
    """Returns the number of groups of channels that have parameters; 0 for layer normalization;
    None for unsupported shapes."""
    if tuple(a % x.ndim for a in axis) != tuple(range(x.ndim - len(axis), x.ndim)):
        return None
    if gamma.shape == x.shape[x.ndim - len(axis) :]:
        return 0
    is_of_groups = x.ndim == 4 and len(axis) == 2 and gamma.shape == (1, *x.shape[1:3], 1)
    return x.shape[1] if is_of_groups else None


def _refuse(axis, x, *others):
    gamma = others[0]
    if any(other.dtype != x.dtype for other in others):
        return "arrays of another dtype"
    if not x.size or x.size < thresholds.compiled_samples:
        return TOO_SMALL
    return "another shape of gamma" if _groups(x, gamma, axis) is None else why_not_compiled()


@functools.lru_cache(maxsize=256)
def _shapes(shape, of_gamma, axis):
    """Returns the shapes of the statistics, of arrays in rows, and of parameters."""
    kept, of_row = shape[: -len(axis)], shape[-len(axis) :]
    statistics, n_rows = (*kept, *(1 for _ in axis)), math.prod(kept)
    if of_gamma == of_row:
        return statistics, (n_rows, math.prod(of_row)), (math.prod(of_row),)
    return statistics, (n_rows, shape[2], math.prod(shape[3:])), shape[1:3]


def _in_rows(x, shape):
    return as_plain(x).reshape(shape)


@reference.sample_normalization.kernel(
    "numba_cpu",
    lambda x, gamma, beta, axis, eps: _refuse(axis, x, gamma, beta),
    SINGLE_OR_DOUBLE,
)
def _sample_normalization(x, gamma, beta, axis, eps, out=None):
    """Computes the same as the reference, one row at a time."""
    kept, of_rows, of_parameters = _shapes(x.shape, gamma.shape, axis)
    y = empty(x.shape, x.dtype, out=out)
    mean, inverse_std = np.empty(kept, x.dtype), np.empty(kept, x.dtype)
    loop = _normalize_layers if len(of_rows) == 2 else _normalize_groups
    arrays = _in_rows(x, of_rows), y.reshape(of_rows)
    parameters = gamma.reshape(of_parameters), beta.reshape(of_parameters)
    statistics = mean.reshape(-1), inverse_std.reshape(-1)
    in_parts_of(loop, of_rows[0], x.size, *arrays, eps, *parameters, *statistics)
    return y, mean, inverse_std


@reference.sample_normalization_gradient.kernel(
    "numba_cpu",
    lambda g, x, gamma, mean, inverse_std, axis: _refuse(axis, x, gamma, g, mean, inverse_std),
    SINGLE_OR_DOUBLE,
)
def _sample_normalization_gradient(g, x, gamma, mean, inverse_std, axis, out=None):
    """Computes the same as the reference, one row at a time."""
    _, of_rows, of_parameters = _shapes(x.shape, gamma.shape, axis)
    gx, n_rows = empty(x.shape, x.dtype, out=out), of_rows[0]
    arrays = _in_rows(g, of_rows), _in_rows(x, of_rows), gx.reshape(of_rows)
    n_each = max(thresholds.sum_part // (x.size // n_rows), 1)
    sums = np.zeros((-(-n_rows // n_each), 2, *of_parameters))
    loop = _normalize_layers_backward if len(of_rows) == 2 else _normalize_groups_backward
    numbers = gamma.reshape(of_parameters), mean.reshape(-1), inverse_std.reshape(-1), sums
    in_parts_of(loop, len(sums), x.size, n_each, *arrays, *numbers)
    total = sums[0] if len(sums) == 1 else sums.sum(axis=0)
    of_gamma, of_beta = total.astype(x.dtype).reshape(2, *gamma.shape)
    return gx, of_gamma, of_beta


# numba compiles the functions below.


def _normalize_layers(begin, end, x, y, eps, gamma, beta, mean, inverse_std):
    n = x.shape[1]
    for row in range(begin, end):
        total = 0.0
        for i in range(n):
            total += x[row, i]
        mean[row] = total / n
        middle = total / n
        total = 0.0
        for i in range(n):
            deviation = x[row, i] - middle
            total += deviation * deviation
        inverse_std[row] = 1 / math.sqrt(total / n + eps)
        center, scale = mean[row], inverse_std[row]
        for i in range(n):
            y[row, i] = (x[row, i] - center) * scale * gamma[i] + beta[i]


def _normalize_groups(begin, end, x, y, eps, gamma, beta, mean, inverse_std):
    _, channels, size = x.shape
    for row in range(begin, end):
        group, n = row % gamma.shape[0], channels * size
        total = 0.0
        for c in range(channels):
            for i in range(size):
                total += x[row, c, i]
        mean[row] = total / n
        middle = total / n
        total = 0.0
        for c in range(channels):
            for i in range(size):
                deviation = x[row, c, i] - middle
                total += deviation * deviation
        inverse_std[row] = 1 / math.sqrt(total / n + eps)
        center, inverse = mean[row], inverse_std[row]
        for c in range(channels):
            scale, shift = inverse * gamma[group, c], beta[group, c]
            for i in range(size):
                y[row, c, i] = (x[row, c, i] - center) * scale + shift


def _normalize_layers_backward(begin, end, n_each, g, x, gx, gamma, mean, inverse_std, sums):
    n_rows, n = x.shape
    means = np.empty(2, x.dtype)
    for part in range(begin, end):
        of_gamma, of_beta = sums[part, 0], sums[part, 1]
        for row in range(part * n_each, min((part + 1) * n_each, n_rows)):
            center, inverse = mean[row], inverse_std[row]
            total = along_x = 0.0
            for i in range(n):
                normalized = (x[row, i] - center) * inverse
                total += g[row, i] * gamma[i]
                along_x += g[row, i] * gamma[i] * normalized
                of_gamma[i] += g[row, i] * normalized
                of_beta[i] += g[row, i]
            means[0], means[1] = total / n, along_x / n * inverse
            shift, slope = means[0], means[1]
            for i in range(n):
                gx[row, i] = (g[row, i] * gamma[i] - shift - (x[row, i] - center) * slope) * inverse


def _normalize_groups_backward(begin, end, n_each, g, x, gx, gamma, mean, inverse_std, sums):
    n_rows, channels, size = x.shape
    means = np.empty(2, x.dtype)
    for part in range(begin, end):
        for row in range(part * n_each, min((part + 1) * n_each, n_rows)):
            center, inverse, group = mean[row], inverse_std[row], row % gamma.shape[0]
            total = along_x = 0.0
            for c in range(channels):
                of_g = of_x = 0.0
                for i in range(size):
                    of_g += g[row, c, i]
                    of_x += g[row, c, i] * ((x[row, c, i] - center) * inverse)
                sums[part, 0, group, c] += of_x
                sums[part, 1, group, c] += of_g
                total += of_g * gamma[group, c]
                along_x += of_x * gamma[group, c]
            n = channels * size
            means[0], means[1] = total / n * inverse, along_x / n * inverse * inverse
            shift, slope = means[0], means[1]
            for c in range(channels):
                scale = gamma[group, c] * inverse
                for i in range(size):
                    gx[row, c, i] = g[row, c, i] * scale - shift - (x[row, c, i] - center) * slope
