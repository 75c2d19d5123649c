"""Kernels whose loops numba compiles, because NumPy would pass through memory many times."""

import functools
import math

import numpy as np

from mpchain.configuration import config
from mpchain.kernels import reference, thresholds
from mpchain.kernels.cpu.channels_last import (
    TO_LAST,
    as_last,
    as_plain,
    empty_last,
    is_only_last,
    result,
    rows,
)
from mpchain.kernels.cpu.compiler import compiled, kept, why_not_compiled
from mpchain.kernels.cpu.numba_threads import in_parts_of
from mpchain.kernels.cpu.small_arrays import replaces
from mpchain.kernels.operation import SINGLE_OR_DOUBLE
from mpchain.kernels.philox import random_words
from mpchain.typing import Array

TOO_SMALL = "too small to compile for"
"""The reason by which kernels refuse small arrays."""


def _refuse_normalization(x, gamma, axis):
    if gamma.dtype != x.dtype:
        return "gamma of another dtype"
    if x.ndim < 3 or axis != (0, *range(2, x.ndim)):
        return "not over all axes but the second"
    if x.size == 0 or math.prod(x.shape[2:]) < 4:
        return "too few elements of a channel side by side"
    return TOO_SMALL if x.size < thresholds.compiled else why_not_compiled()


def _by_channels(x):
    return as_plain(x).reshape(*x.shape[:2], -1)


@reference.batch_normalization.kernel(
    "numba_cpu",
    lambda x, gamma, beta, axis, eps: _refuse_normalization(x, gamma, axis),
    SINGLE_OR_DOUBLE,
)
def _batch_normalization(x, gamma, beta, axis, eps, out=None):
    """Computes the same as the reference."""
    y = result(x.shape, x.dtype, x, out=out)
    # these are mean, inverse_std and var
    statistics = [np.empty(gamma.shape, x.dtype) for _ in range(3)]
    numbers = [v.reshape(-1) for v in (gamma, beta, *statistics)]
    if is_only_last(x):
        _normalize_last(rows(x), rows(y), eps, *numbers)
    else:
        in_parts_of(_normalize, gamma.size, x.size, _by_channels(x), _by_channels(y), eps, *numbers)
    return y, *statistics


# compiled loops raise no warnings, so NumPy's warnings are turned off too
@np.errstate(all="ignore")
def _normalize_last(x, y, eps, gamma, beta, mean, inverse_std, var):
    """Computes what :func:`_normalize` computes, for arrays with channels last, given as matrices
    (pixels, channels)."""
    n, pivot = len(x), x[0].astype(np.float64)
    # In double precision, sums of squared differences from a pivot lose no accuracy that single
    # precision has.
    total, squares = _sums_of_columns(_moments, x, pivot)
    mean[:] = pivot + total / n
    var[:] = np.maximum(squares / n - (total / n) ** 2, 0)
    inverse_std[:] = 1 / np.sqrt(var + eps)
    numbers = mean, inverse_std * gamma, beta
    in_parts_of(_normalize_rows, n, x.size // thresholds.light_loop, x, y, *numbers)


@np.errstate(all="ignore")
def _normalize_last_backward(g, x, gx, gamma, mean, inverse_std, g_gamma, g_beta):
    """Computes what :func:`_normalize_backward` computes, for arrays with channels last, given as
    matrices (pixels, channels)."""
    g_beta[:], along_x = _sums_of_columns(_sums_with_gradient, x, g, mean)
    g_gamma[:] = along_x * inverse_std
    scale, n = gamma * inverse_std, x.dtype.type(len(x))
    numbers = mean, scale, scale * inverse_std * g_gamma / n, scale * g_beta / n
    in_parts_of(
        _normalize_rows_backward, len(x), x.size // thresholds.light_loop, g, x, gx, *numbers
    )


def _sums_of_columns(function, x, *arrays):
    """Returns two sums for each column, by a loop over parts of the rows. The parts do not depend
    on the number of threads."""
    n_rows = max(thresholds.sum_part // x.shape[1], 4)
    sums = np.zeros((-(-len(x) // n_rows), 2, x.shape[1]))
    in_parts_of(function, len(sums), x.size // thresholds.light_loop, n_rows, x, *arrays, sums)
    return sums.sum(axis=0)


@reference.batch_normalization_gradient.kernel(
    "numba_cpu",
    lambda g, x, gamma, mean, inverse_std, axis: _refuse_normalization(x, gamma, axis),
    SINGLE_OR_DOUBLE,
)
def _batch_normalization_gradient(g, x, gamma, mean, inverse_std, axis, out=None):
    """Computes the same as the reference."""
    gx = result(x.shape, x.dtype, x, out=out)
    # these are g_gamma and g_beta
    of_parameters = [np.empty(gamma.shape, x.dtype) for _ in range(2)]
    numbers = [v.reshape(-1) for v in (gamma, mean, inverse_std, *of_parameters)]
    n = x.dtype.type(x.size // gamma.size)
    if is_only_last(x):
        _normalize_last_backward(*map(rows, (as_last(g), x, gx)), *numbers)
    else:
        arrays = map(_by_channels, (g, x, gx))
        in_parts_of(_normalize_backward, gamma.size, x.size, *arrays, n, *numbers)
    return gx, *of_parameters


def _refuse_scaling(x, *parameters):
    of_channels = tuple(n if i == 1 else 1 for i, n in enumerate(x.shape))
    if any(p.dtype != x.dtype or p.shape != of_channels for p in parameters):
        return "not a number of the dtype of x for each channel"
    return _refuse_normalization(x, parameters[0], (0, *range(2, x.ndim)))


@reference.shift_and_scale.kernel("numba_cpu", _refuse_scaling, SINGLE_OR_DOUBLE)
def _shift_and_scale(x, mean, scale, beta, out=None):
    """Computes the same as the reference in one pass."""
    y = result(x.shape, x.dtype, x, out=out)
    numbers = [v.reshape(-1) for v in (mean, scale, beta)]
    if is_only_last(x):
        compiled(_normalize_rows)(0, x.size // x.shape[1], rows(x), rows(y), *numbers)
    else:
        compiled(_shift_and_scale_channels)(_by_channels(x), _by_channels(y), *numbers)
    return y


def _refuse_pooling(x, window):
    if len(window.ksize) not in (1, 2):
        return "not one or two spatial axes"
    is_small = x.shape[0] * x.shape[1] * math.prod(window.in_size) < thresholds.compiled
    return TOO_SMALL if is_small else why_not_compiled()


def _planes(x):
    """Returns an array (N, C, height, width) or (N, C, width) as (N * C, height, width)."""
    size = (1,) * (4 - x.ndim) + x.shape[2:]
    return as_plain(x).reshape(x.shape[0] * x.shape[1], *size)


def _pixels(x):
    """Returns an array with channels last as (N, height, width, C); sequences have one row."""
    pixels = x.transpose(TO_LAST[x.ndim])
    return pixels if x.ndim == 4 else pixels[:, None]


def _geometry(window):
    """Returns the sizes, strides, paddings and dilations of rows and columns."""
    if len(window.ksize) == 1:
        return 1, *window.ksize, 1, *window.stride, 0, *window.pad, 1, *window.dilate
    return *window.ksize, *window.stride, *window.pad, *window.dilate


def _refuse_small_pooling(x, places, window):
    if len(window.ksize) not in (1, 2):
        return "not one or two spatial axes"
    is_small = 0 < x.shape[0] * x.shape[1] * math.prod(window.in_size) < thresholds.compiled
    if not (is_small and x.flags.c_contiguous and places.flags.c_contiguous):
        return "empty or too large, or with gaps"
    return None


@reference.max_windows.kernel("numba_cpu", _refuse_pooling, SINGLE_OR_DOUBLE)
def _max_windows(x, window, out=None):
    """Computes the same as the reference."""
    shape = (*x.shape[:2], *window.out_size)
    y = result(shape, x.dtype, x, out=out)
    if is_only_last(x):
        places = empty_last(shape, np.int32)
        arrays = list(map(_pixels, (x, y, places)))
        in_parts_of(_over_pixels("find maxima"), len(x), x.size, *arrays, *_geometry(window))
        return y, places
    places = np.empty(shape, np.int32)
    arrays = list(map(_planes, (x, y, places)))
    in_parts_of(_find_maxima, len(arrays[0]), x.size, *arrays, *_geometry(window))
    return y, places


@reference.place_in_windows.kernel(
    "numba_cpu", lambda y, places, window: _refuse_pooling(y, window), SINGLE_OR_DOUBLE
)
def _place_in_windows(y, places, window):
    """Computes the same as the reference."""
    shape = (*y.shape[:2], *window.in_size)
    if is_only_last(places):
        x = empty_last(shape, y.dtype)
        arrays = list(map(_pixels, (x, as_last(y), places)))
        in_parts_of(_over_pixels("add at places"), len(x), x.size, *arrays, *_geometry(window))
        return x
    x = np.zeros(shape, y.dtype)
    arrays = list(map(_planes, (x, y, places)))
    in_parts_of(_add_at_places, len(arrays[0]), x.size, *arrays, *_geometry(window))
    return x


@replaces(
    reference.max_windows,
    12,
    lambda *_: _find_maxima,
    lambda x, window: _refuse_small_pooling(x, x, window),
)
def _max_small_windows(x, window):
    """Computes the same as the reference."""
    return _max_windows(x, window)


def _refuse_small_places(y, places, window):
    spans = [(k - 1) * d + 1 for k, d in zip(window.ksize, window.dilate)]
    if math.prod([-(-span // stride) for span, stride in zip(spans, window.stride)]) > 2:
        return "sums of three or more windows, which NumPy adds in another order"
    return _refuse_small_pooling(y, places, window)


@replaces(reference.place_in_windows, 14, lambda *_: _add_at_places, _refuse_small_places)
def _place_in_small_windows(y, places, window):
    """Computes the same as the reference."""
    return _place_in_windows(y, places, window)


@reference.take_from_windows.kernel(
    "numba_cpu", lambda x, places, window: _refuse_pooling(x, window), SINGLE_OR_DOUBLE
)
def _take_from_windows(x, places, window):
    """Computes the same as the reference."""
    if is_only_last(places):
        y = empty_last(places.shape, x.dtype)
        arrays = list(map(_pixels, (as_last(x), y, places)))
        in_parts_of(_over_pixels("take at places"), len(x), x.size, *arrays, *_geometry(window))
        return y
    y = np.empty(places.shape, x.dtype)
    arrays = list(map(_planes, (x, y, places)))
    in_parts_of(_take_at_places, len(arrays[0]), x.size, *arrays, *_geometry(window))
    return y


def _refuse_rows(rows, ids, n):
    return TOO_SMALL if rows.size < thresholds.compiled else why_not_compiled()


@reference.sum_rows.kernel("numba_cpu", _refuse_rows, SINGLE_OR_DOUBLE)
def _sum_rows(rows, ids, n):
    """Computes the same as the reference, one row at a time."""
    if ids.min() < -n or ids.max() >= n:
        # NumPy's kernel then raises the error of an id that is out of range.
        return reference.sum_rows.kernels[-1].compute(rows, ids, n)
    x = np.zeros((n, *rows.shape[ids.ndim :]), rows.dtype)
    flat = np.ascontiguousarray(rows).reshape(ids.size, -1)
    ids = ids.reshape(-1).astype(np.intp, copy=False)
    compiled(_add_rows)(x.reshape(n, -1), flat, ids)
    return x


def _refuse_distinct(rows, ids, n):
    if n > reference.MOST_LISTED or ids.dtype != np.intp:
        return "too many ids, or ids of another dtype"
    return _refuse_rows(rows, ids, n)


@reference.sum_distinct_rows.kernel("numba_cpu", _refuse_distinct, SINGLE_OR_DOUBLE)
def _sum_distinct_rows(rows, ids, n):
    """Computes the same as the reference, one row at a time."""
    places, present, n_present = np.empty(n, np.intp), np.empty(len(ids), np.intp), np.zeros(1, int)
    sums = np.zeros(rows.shape, rows.dtype)
    flat = np.ascontiguousarray(rows)
    compiled(_add_distinct_rows)(flat, ids, places, present, sums, n_present)
    if (m := int(n_present[0])) < 0:
        np.empty((n, 0))[ids]  # indexing raises the IndexError
    return sums[:m], present[:m]


def add_rows(x: Array, rows: Array, ids: Array) -> bool:
    """Adds ``rows[i]`` to row ``ids[i]`` of ``x``, for one i after another, in place.

    Returns:
        whether the rows were added: False for arrays that are small or that the loop does not
        support, and if ``config.kernels`` names kernels.

    Raises:
        IndexError: an id is not the index of a row of ``x``.

    Example:
        >>> add_rows(np.zeros((2, 3)), np.ones((1, 3)), np.array([1]))  # too small to compile for
        False
    """
    if _refuse_rows(rows, ids, len(x)) is not None or config.kernels:
        return False
    if not x.flags.c_contiguous or x.dtype != rows.dtype or x.dtype.name not in SINGLE_OR_DOUBLE:
        return False
    n = len(x)
    if ids.min() < -n or ids.max() >= n:
        np.empty((n, 0))[ids]  # indexing raises the IndexError
    flat = np.ascontiguousarray(rows).reshape(ids.size, -1)
    ids = ids.reshape(-1).astype(np.intp, copy=False)
    compiled(_add_rows)(x.reshape(n, -1), flat, ids)
    return True


# numba compiles the loops below. Statistics are summed in double precision; elements are loaded
# in the array's dtype.


def _normalize(begin, end, x, y, eps, gamma, beta, mean, inverse_std, var):
    n_samples, _, size = x.shape
    for c in range(begin, end):
        total = 0.0
        for n in range(n_samples):
            for i in range(size):
                total += x[n, c, i]
        mean[c] = total / (n_samples * size)
        center = mean[c]
        total = 0.0
        for n in range(n_samples):
            for i in range(size):
                deviation = x[n, c, i] - center
                total += deviation * deviation
        var[c] = total / (n_samples * size)
        inverse_std[c] = 1 / math.sqrt(var[c] + eps)
        scale, shift = inverse_std[c] * gamma[c], beta[c]
        for n in range(n_samples):
            for i in range(size):
                y[n, c, i] = (x[n, c, i] - center) * scale + shift


def _shift_and_scale_channels(x, y, mean, scale, beta):
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            center, slope, shift = mean[c], scale[c], beta[c]
            for i in range(x.shape[2]):
                y[n, c, i] = (x[n, c, i] - center) * slope + shift


def _normalize_backward(begin, end, g, x, gx, count, gamma, mean, inverse_std, g_gamma, g_beta):
    n_samples, _, size = x.shape
    for c in range(begin, end):
        center = mean[c]
        total = along_x = 0.0
        for n in range(n_samples):
            for i in range(size):
                total += g[n, c, i]
                along_x += g[n, c, i] * (x[n, c, i] - center)
        g_beta[c] = total
        g_gamma[c] = along_x * inverse_std[c]
        scale = gamma[c] * inverse_std[c]
        shift = scale * g_beta[c] / count
        slope = scale * inverse_std[c] * g_gamma[c] / count
        for n in range(n_samples):
            for i in range(size):
                gx[n, c, i] = g[n, c, i] * scale - (x[n, c, i] - center) * slope - shift


# The next four functions do the same for arrays with channels last, given as one row for each
# pixel.


def _moments(begin, end, n_rows, x, pivot, sums):
    for part in range(begin, end):
        total, squares = sums[part, 0], sums[part, 1]
        i, stop = part * n_rows, min((part + 1) * n_rows, x.shape[0])
        while i + 4 <= stop:
            for c in range(x.shape[1]):
                center = pivot[c]
                d0, d1 = x[i, c] - center, x[i + 1, c] - center
                d2, d3 = x[i + 2, c] - center, x[i + 3, c] - center
                total[c] += (d0 + d1) + (d2 + d3)
                squares[c] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)
            i += 4
        for k in range(i, stop):
            for c in range(x.shape[1]):
                deviation = x[k, c] - pivot[c]
                total[c] += deviation
                squares[c] += deviation * deviation


def _normalize_rows(begin, end, x, y, mean, scale, shift):
    for i in range(begin, end):
        for c in range(x.shape[1]):
            y[i, c] = (x[i, c] - mean[c]) * scale[c] + shift[c]


def _sums_with_gradient(begin, end, n_rows, x, g, mean, sums):
    for part in range(begin, end):
        total, along_x = sums[part, 0], sums[part, 1]
        i, stop = part * n_rows, min((part + 1) * n_rows, x.shape[0])
        while i + 2 <= stop:
            for c in range(x.shape[1]):
                center = mean[c]
                total[c] += g[i, c] + g[i + 1, c]
                along_x[c] += g[i, c] * (x[i, c] - center) + g[i + 1, c] * (x[i + 1, c] - center)
            i += 2
        for k in range(i, stop):
            for c in range(x.shape[1]):
                total[c] += g[k, c]
                along_x[c] += g[k, c] * (x[k, c] - mean[c])


def _normalize_rows_backward(begin, end, g, x, gx, mean, scale, slope, shift):
    for i in range(begin, end):
        for c in range(x.shape[1]):
            gx[i, c] = g[i, c] * scale[c] - (x[i, c] - mean[c]) * slope[c] - shift[c]


def _find_maxima(begin, end, x, y, places, rows, columns, down, right, top, left, far, wide):
    values = np.empty(y.shape[1:], x.dtype)
    flat = values.reshape(-1)
    for n in range(begin, end):
        best, where = y[n].reshape(-1), places[n].reshape(-1)
        best[:] = -np.inf
        where[:] = 0
        for a in range(rows):
            for b in range(columns):
                # Element (a, b) of each window is compared with the window's maximum so far.
                column, place = b * wide - left, np.int32(a * columns + b)
                start = min(y.shape[2], 0 if column >= 0 else (right - 1 - column) // right)
                stop = max(start, min(y.shape[2], (x.shape[2] - 1 - column) // right + 1))
                for i in range(y.shape[1]):
                    row = i * down - top + a * far
                    if row < 0 or row >= x.shape[1]:
                        values[i] = -np.inf
                        continue
                    values[i, :start] = values[i, stop:] = -np.inf
                    for j in range(start, stop):
                        values[i, j] = x[n, row, j * right + column]
                for k in range(flat.size):
                    value, old = flat[k], best[k]
                    is_better = (value > old) | ((value != value) & (old == old))
                    best[k] = value if is_better else old
                    where[k] = place if is_better else where[k]


def _add_at_places(begin, end, x, y, places, rows, columns, down, right, top, left, far, wide):
    for n in range(begin, end):
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                place = places[n, i, j]
                row = i * down - top + place // columns * far
                column = j * right - left + place % columns * wide
                if 0 <= row < x.shape[1] and 0 <= column < x.shape[2]:
                    x[n, row, column] += y[n, i, j]


def _take_at_places(begin, end, x, y, places, rows, columns, down, right, top, left, far, wide):
    for n in range(begin, end):
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                place = places[n, i, j]
                row = i * down - top + place // columns * far
                column = j * right - left + place % columns * wide
                is_inside = 0 <= row < x.shape[1] and 0 <= column < x.shape[2]
                y[n, i, j] = x[n, row, column] if is_inside else 0


# The text loops over the windows of arrays with channels last, and over those elements of a window
# that are inside the array.
_LAST = """
def run(begin, end, x, y, places, rows, columns, down, right, top, left, far, wide):
    for n in range(begin, end):
        {of_sample}
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                values, where = y[n, i, j], places[n, i, j]
                {of_window}
                for a in range(rows):
                    row = i * down - top + a * far
                    if row < 0 or row >= x.shape[1]:
                        continue
                    for b in range(columns):
                        column = j * right - left + b * wide
                        if column < 0 or column >= x.shape[2]:
                            continue
                        place, pixel = np.int32(a * columns + b), x[n, row, column]
                        for c in range(values.size):
                            value, old = pixel[c], values[c]  # read both, to be vectorized
                            {of_element}
"""
_STEPS = {
    "find maxima": (
        "pass",
        "values[:], where[:] = -np.inf, 0",
        "is_better = (value > old) | ((value != value) & (old == old)); "
        "values[c] = value if is_better else old; where[c] = place if is_better else where[c]",
    ),
    "take at places": ("pass", "values[:] = 0", "values[c] = value if where[c] == place else old"),
    "add at places": ("x[n] = 0", "pass", "pixel[c] = value + (old if where[c] == place else 0)"),
}


@functools.cache
def _over_pixels(name):
    """Returns the function, not yet compiled, that loops over the windows of arrays with channels
    last."""
    text = _LAST.format(**dict(zip(("of_sample", "of_window", "of_element"), _STEPS[name])))
    return kept(name, text)


def _add_rows(x, rows, ids):
    for i in range(ids.size):
        row = ids[i] if ids[i] >= 0 else ids[i] + len(x)
        for j in range(x.shape[1]):
            x[row, j] += rows[i, j]


def _add_distinct_rows(rows, ids, places, present, sums, n_present):
    n = 0
    for i in range(ids.size):
        row = ids[i]
        if row >= len(places):
            n_present[0] = -1
            return
        if row < 0:
            continue
        place = places[row]  # random memory if the row has not appeared
        if place < 0 or place >= n or present[place] != row:
            place = n
            places[row], present[place] = n, row
            n += 1
        for j in range(rows.shape[1]):
            sums[place, j] += rows[i, j]
    n_present[0] = n


def _refuse_words(samples, begins, n_blocks, *counters):
    is_small = 4 * len(samples) * n_blocks < thresholds.compiled
    return TOO_SMALL if is_small else why_not_compiled()


@random_words.kernel("numba_cpu", _refuse_words, ())
def _random_words(samples, begins, n_blocks, call, step, low, high):
    """Computes the same as the reference, one block at a time."""
    words = np.empty((len(samples), 4 * n_blocks), np.uint32)
    constants = [np.uint32(value % (1 << 32)) for value in (call, step, low, high)]
    in_parts_of(_draw_words, len(samples), words.size, words, samples, begins, n_blocks, *constants)
    return words


def _draw_words(begin, end, words, samples, begins, n_blocks, call, step, low, high):
    for row in range(begin, end):
        for block in range(n_blocks):
            a, b, c, d = np.uint32(begins[row] + block), call, step, np.uint32(samples[row])
            k, l = low, high
            for _ in range(10):
                first = np.uint64(a) * np.uint64(0xD2511F53)
                second = np.uint64(c) * np.uint64(0xCD9E8D57)
                a = np.uint32(second >> np.uint64(32)) ^ b ^ k
                b = np.uint32(second & np.uint64(0xFFFFFFFF))
                c = np.uint32(first >> np.uint64(32)) ^ d ^ l
                d = np.uint32(first & np.uint64(0xFFFFFFFF))
                k = np.uint32(k + np.uint32(0x9E3779B9))
                l = np.uint32(l + np.uint32(0xBB67AE85))
            words[row, 4 * block] = a
            words[row, 4 * block + 1] = b
            words[row, 4 * block + 2] = c
            words[row, 4 * block + 3] = d
