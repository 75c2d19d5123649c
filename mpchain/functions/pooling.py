"""Pooling: one value for each window of a spatial array."""

import math
from numbers import Integral

import numpy as np

from mpchain import kernels
from mpchain.backends.cuda import get_array_module
from mpchain.functions.array import reshape
from mpchain.functions.declaration import differentiable
from mpchain.functions.indexing import get_item
from mpchain.functions.joining import concat
from mpchain.functions.rearrangement import flatten
from mpchain.functions.resampling import bins, bins_matrix, map_axis
from mpchain.kernels.window import Window
from mpchain.utils.conv import get_conv_outsize, get_deconv_outsize, spatial
from mpchain.utils.type_check import check
from mpchain.variable import as_array, as_variable


def _window(name, x, ksize, stride, pad, cover_all):
    n = x.ndim - 2
    check(n > 0, name, "x must have 3 axes or more", x=x)
    check(x.dtype.kind == "f", name, "x must be floating point", x=x)
    stride = ksize if stride is None else stride
    ksize, stride, pad = spatial(name, n, ksize=ksize, stride=stride, pad=pad)
    sizes = tuple(
        get_conv_outsize(size, k, s, p, cover_all)
        for size, k, s, p in zip(x.shape[2:], ksize, stride, pad)
    )
    check(min(sizes) > 0, name, f"the output size {sizes} must be positive", x=x, ksize=ksize)
    return Window(ksize, stride, pad, (1,) * n, 1, x.shape[2:], sizes)


# Windows as linear maps: the sum of each, and one chosen element of each; with their adjoints.


@differentiable(lambda g, window: _spread_windows.on(g, window))
def _sum_windows(x, window):
    return kernels.sum_windows(x, window)


@differentiable(lambda g, window: _sum_windows.on(g, window))
def _spread_windows(y, window):
    return kernels.spread_windows(y, window)


@differentiable(lambda g, places, window: _place_in_windows.on(g, places, window))
def _take_from_windows(x, places, window):
    return kernels.take_from_windows(x, places, window)


@differentiable(lambda g, places, window: _take_from_windows.on(g, places, window))
def _place_in_windows(y, places, window):
    return kernels.place_in_windows(y, places, window)


@differentiable(lambda g, aux, window: _place_in_windows.on(g, aux, window))
def _max_windows(x, window):
    return kernels.max_windows(x, window)


def max_pooling_nd(x, ksize, stride=None, pad=0, cover_all=True, return_indices=False):
    """Maximum of each window; of equal elements, the first gets the gradient.

    Args:
        x: Variable or array (N, C, d1, d2, ...), floating point.
        ksize (int or tuple of int): the window's size.
        stride (int or tuple of int): the windows' distance; None means ``ksize``.
        pad (int or tuple of int): elements added on both sides; they are never the maximum.
        cover_all (bool): place windows so that every element is covered.
        return_indices (bool): return also where in its window each maximum is.

    Returns:
        Variable (N, C, ...); with ``return_indices``, that and an array of integers of its shape.
    """
    return _max_pooling("max_pooling_nd", x, ksize, stride, pad, cover_all, return_indices)


def _max_pooling(name, x, ksize, stride, pad, cover_all, return_indices):
    window = _window(name, x, ksize, stride, pad, cover_all)
    y = _max_windows(x, window)
    if return_indices:
        return y, kernels.max_windows(as_variable(x).array, window)[1]
    return y


def max_pooling_2d(x, ksize, stride=None, pad=0, cover_all=True, return_indices=False):
    """Two-dimensional max pooling: :func:`max_pooling_nd` of x (N, C, H, W)."""
    check(x.ndim == 4, "max_pooling_2d", "x must have 4 axes", x=x)
    return _max_pooling("max_pooling_2d", x, ksize, stride, pad, cover_all, return_indices)


def max_pooling_1d(x, ksize, stride=None, pad=0, cover_all=True, return_indices=False):
    """One-dimensional max pooling: :func:`max_pooling_nd` of x (N, C, D)."""
    check(x.ndim == 3, "max_pooling_1d", "x must have 3 axes", x=x)
    return _max_pooling("max_pooling_1d", x, ksize, stride, pad, cover_all, return_indices)


def max_pooling_3d(x, ksize, stride=None, pad=0, cover_all=True, return_indices=False):
    """Three-dimensional max pooling: :func:`max_pooling_nd` of x (N, C, D, H, W)."""
    check(x.ndim == 5, "max_pooling_3d", "x must have 5 axes", x=x)
    return _max_pooling("max_pooling_3d", x, ksize, stride, pad, cover_all, return_indices)


def average_pooling_nd(x, ksize, stride=None, pad=0, pad_value=0):
    """Mean of each window.

    Args:
        x: Variable or array (N, C, d1, d2, ...), floating point.
        ksize (int or tuple of int): the window's size.
        stride (int or tuple of int): the windows' distance; None means ``ksize``.
        pad (int or tuple of int): elements added on both sides.
        pad_value: 0 counts padded elements as zeros; None leaves them out of the mean.

    Returns:
        Variable (N, C, ...).
    """
    return _average_pooling("average_pooling_nd", x, ksize, stride, pad, pad_value)


def _average_pooling(name, x, ksize, stride, pad, pad_value):
    check(pad_value in (0, None), name, "pad_value must be 0 or None", pad_value=pad_value)
    window = _window(name, x, ksize, stride, pad, False)
    total = _sum_windows(x, window)
    if pad_value is None and any(window.pad):
        ones = total.xp.ones((1, 1, *x.shape[2:]), x.dtype)
        return total / kernels.sum_windows(ones, window)
    return total * (1 / window.n_elements)


def average_pooling_2d(x, ksize, stride=None, pad=0):
    """Two-dimensional average pooling: :func:`average_pooling_nd` of x (N, C, H, W)."""
    check(x.ndim == 4, "average_pooling_2d", "x must have 4 axes", x=x)
    return _average_pooling("average_pooling_2d", x, ksize, stride, pad, 0)


def average_pooling_1d(x, ksize, stride=None, pad=0, pad_value=0):
    """One-dimensional average pooling: :func:`average_pooling_nd` of x (N, C, D)."""
    check(x.ndim == 3, "average_pooling_1d", "x must have 3 axes", x=x)
    return _average_pooling("average_pooling_1d", x, ksize, stride, pad, pad_value)


def average_pooling_3d(x, ksize, stride=None, pad=0, pad_value=0):
    """Three-dimensional average pooling: :func:`average_pooling_nd` of x (N, C, D, H, W)."""
    check(x.ndim == 5, "average_pooling_3d", "x must have 5 axes", x=x)
    return _average_pooling("average_pooling_3d", x, ksize, stride, pad, pad_value)


def _unpooling_window(name, x, ksize, stride, pad, outsize, cover_all):
    """The windows of the pooling that would give the shape of ``x``."""
    n = x.ndim - 2
    check(n > 0, name, "x must have 3 axes or more", x=x)
    check(x.dtype.kind == "f", name, "x must be floating point", x=x)
    stride = ksize if stride is None else stride
    steps = ksize, stride, pad = spatial(name, n, ksize=ksize, stride=stride, pad=pad)
    if outsize is None:
        axes = zip(x.shape[2:], *steps)
        outsize = tuple(get_deconv_outsize(size, k, s, p, cover_all) for size, k, s, p in axes)
        check(min(outsize) > 0, name, f"the output size {outsize} must be positive", x=x)
    (outsize,) = spatial(name, n, outsize=outsize)
    axes = zip(outsize, *steps)
    back = tuple(get_conv_outsize(size, k, s, p, cover_all) for size, k, s, p in axes)
    rule = f"pooling of outsize {outsize} must give {x.shape[2:]}, the size of x, not {back}"
    check(back == x.shape[2:], name, rule, x=x)
    return Window(ksize, stride, pad, (1,) * n, 1, outsize, x.shape[2:])


def unpooling_nd(x, ksize, stride=None, pad=0, outsize=None, cover_all=True):
    """Spreads each element over its window; where windows overlap, they add up.

    Args:
        x: Variable or array (N, C, d1, d2, ...), floating point.
        ksize (int or tuple of int): the window's size.
        stride (int or tuple of int): the windows' distance; None means ``ksize``.
        pad (int or tuple of int): elements dropped on both sides.
        outsize (int or tuple of int): spatial size of the result; None means the smallest.
        cover_all (bool): whether the pooling that is undone covered all elements.

    Returns:
        Variable (N, C, *outsize).

    Raises:
        InvalidType: pooling of an array of ``outsize`` would not give the size of ``x``.
    """
    return _unpooling("unpooling_nd", x, ksize, stride, pad, outsize, cover_all)


def _unpooling(name, x, *geometry):
    return _spread_windows(x, _unpooling_window(name, x, *geometry))


def unpooling_1d(x, ksize, stride=None, pad=0, outsize=None, cover_all=True):
    """One-dimensional unpooling: :func:`unpooling_nd` of x (N, C, D)."""
    check(x.ndim == 3, "unpooling_1d", "x must have 3 axes", x=x)
    return _unpooling("unpooling_1d", x, ksize, stride, pad, outsize, cover_all)


def unpooling_2d(x, ksize, stride=None, pad=0, outsize=None, cover_all=True):
    """Two-dimensional unpooling: :func:`unpooling_nd` of x (N, C, H, W)."""
    check(x.ndim == 4, "unpooling_2d", "x must have 4 axes", x=x)
    return _unpooling("unpooling_2d", x, ksize, stride, pad, outsize, cover_all)


def unpooling_3d(x, ksize, stride=None, pad=0, outsize=None, cover_all=True):
    """Three-dimensional unpooling: :func:`unpooling_nd` of x (N, C, D, H, W)."""
    check(x.ndim == 5, "unpooling_3d", "x must have 5 axes", x=x)
    return _unpooling("unpooling_3d", x, ksize, stride, pad, outsize, cover_all)


def upsampling_2d(x, indexes, ksize, stride=None, pad=0, outsize=None, cover_all=True):
    """Puts each element where a max pooling took its from; the others are zero.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        indexes: array of integers of the shape of ``x``: the places in the windows, as
            :func:`max_pooling_2d` returns them with ``return_indices``.
        ksize, stride, pad, cover_all: as of that pooling.
        outsize (pair of int): spatial size of the result; None means the smallest.

    Returns:
        Variable (N, C, *outsize).

    Raises:
        InvalidType: shapes or sizes do not fit.
    """
    name = "upsampling_2d"
    check(x.ndim == 4, name, "x must have 4 axes", x=x)
    indexes = as_array(indexes)
    fits = indexes.shape == x.shape and indexes.dtype.kind in "iu"
    check(fits, name, "indexes must be integers of the shape of x", indexes=indexes, x=x)
    window = _unpooling_window(name, x, ksize, stride, pad, outsize, cover_all)
    return _place_in_windows(x, indexes, window)


def spatial_pyramid_pooling_2d(x, pyramid_height, pooling=None):
    """Max pooling into 1, 4, 16, ... bins, side by side: one vector for images of any size.

    The bins of a level are of one size. Where the image ends before them, their maximum is minus
    infinity.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        pyramid_height (int): the number of levels; level ``l`` has 2^l by 2^l bins.
        pooling (str): ``'max'``, the only kind.

    Returns:
        Variable (N, C * (4^pyramid_height - 1) / 3, 1, 1).

    Raises:
        InvalidType: the rank is wrong, or there is no level.
        ValueError: another kind of pooling.

    See K. He et al., Spatial pyramid pooling in deep convolutional networks for visual recognition,
    ECCV 2014.
    """
    name = "spatial_pyramid_pooling_2d"
    if pooling != "max":
        raise ValueError(f"{name}: pooling must be 'max', not {pooling!r}")
    nonempty = x.ndim == 4 and x.dtype.kind == "f" and min(x.shape[2:]) > 0
    check(nonempty, name, "x must be floating point with 4 axes, and not empty in space", x=x)
    check(pyramid_height > 0, name, "pyramid_height must be positive", height=pyramid_height)
    levels = []
    for n in (2**level for level in range(pyramid_height)):
        ksize = tuple(-(-size // n) for size in x.shape[2:])
        pad = tuple((k * n - size) // 2 for k, size in zip(ksize, x.shape[2:]))
        y = _max_windows(x, Window(ksize, ksize, pad, (1, 1), 1, x.shape[2:], (n, n)))
        levels.append(reshape(y, (x.shape[0], x.shape[1] * n * n, 1, 1)))
    return concat(levels, 1)


def _adaptive_sizes(name, x, outsize):
    n = x.ndim - 2
    check(n > 0 and x.dtype.kind == "f", name, "x must be floating point, (N, C, d1, ...)", x=x)
    check(min(x.shape[2:]) > 0, name, "x must not be empty in space", x=x)
    if not isinstance(outsize, Integral) and len(outsize) == n:
        outsize = tuple(size if o is None else o for o, size in zip(outsize, x.shape[2:]))
    return spatial(name, n, outsize=outsize)[0]


def adaptive_average_pooling_nd(x, outsize):
    """Mean of each of equally many bins, whatever the size of ``x``.

    Bin ``i`` of ``o`` of an axis of ``n`` elements begins at floor(i n / o) and ends before
    ceil((i + 1) n / o).

    Args:
        x: Variable or array (N, C, d1, d2, ...), floating point.
        outsize (int or tuple of int): the number of bins; None for an axis leaves it as it is.

    Returns:
        Variable (N, C, *outsize).

    Raises:
        InvalidType: rank or ``outsize`` does not fit.
    """
    return _adaptive_average("adaptive_average_pooling_nd", x, outsize)


def _adaptive_average(name, x, outsize):
    x = as_variable(x)
    for axis, size in enumerate(_adaptive_sizes(name, x, outsize), 2):
        if size != x.shape[axis]:
            x = map_axis(x, bins_matrix(x.shape[axis], size), axis)
    return x


def adaptive_average_pooling_2d(x, outsize):
    """Two-dimensional case: :func:`adaptive_average_pooling_nd` of x (N, C, H, W)."""
    check(x.ndim == 4, "adaptive_average_pooling_2d", "x must have 4 axes", x=x)
    return _adaptive_average("adaptive_average_pooling_2d", x, outsize)


def adaptive_max_pooling_nd(x, outsize, return_indices=False):
    """Maximum of each of equally many bins, whatever the size of ``x``.

    The bins are those of :func:`adaptive_average_pooling_nd`; of equal elements, the first gets the
    gradient.

    Args:
        x: Variable or array (N, C, d1, d2, ...), floating point.
        outsize (int or tuple of int): the number of bins; None for an axis leaves it as it is.
        return_indices (bool): return also where each maximum is.

    Returns:
        Variable (N, C, *outsize); with ``return_indices``, that and an array of integers of its
        shape: indexes into the flattened spatial axes.

    Raises:
        InvalidType: rank or ``outsize`` does not fit.
    """
    return _adaptive_max("adaptive_max_pooling_nd", x, outsize, return_indices)


def _adaptive_max(name, x, outsize, return_indices):
    x = as_variable(x)
    sizes = _adaptive_sizes(name, x, outsize)
    every = [bins(old, size) for old, size in zip(x.shape[2:], sizes)]
    places = places_of_maxima(x.array, every)
    y = take_places(x, places)
    return (y, places) if return_indices else y


def adaptive_max_pooling_2d(x, outsize, return_indices=False):
    """Two-dimensional case: :func:`adaptive_max_pooling_nd` of x (N, C, H, W)."""
    check(x.ndim == 4, "adaptive_max_pooling_2d", "x must have 4 axes", x=x)
    return _adaptive_max("adaptive_max_pooling_2d", x, outsize, return_indices)


def places_of_maxima(x, every):
    """Where in the flattened spatial axes the maximum of each box is, the first of equal ones.

    Args:
        x: array (N, C, d1, d2, ...).
        every: for each spatial axis a list of bins (begin, end), none empty.

    Returns:
        array of integers (N, C, number of bins, ...).
    """
    xp = get_array_module(x)
    places = xp.arange(math.prod(x.shape[2:])).reshape(x.shape[2:])
    places = xp.broadcast_to(places, x.shape)
    # The last axis first: then, of equal maxima, the first in row-major order stays.
    for axis in range(x.ndim - 1, 1, -1):
        bounds = np.array(every[axis - 2])
        steps = np.arange((bounds[:, 1] - bounds[:, 0]).max())
        # Shorter bins repeat their last element.
        inside = np.minimum(bounds[:, :1] + steps, bounds[:, 1:] - 1)
        inside = (slice(None),) * axis + (xp.asarray(inside),)
        values, candidates = x[inside], places[inside]
        best = xp.expand_dims(values.argmax(axis + 1), axis + 1)
        x = xp.take_along_axis(values, best, axis + 1).squeeze(axis + 1)
        places = xp.take_along_axis(candidates, best, axis + 1).squeeze(axis + 1)
    return places


def take_places(x, places):
    """The elements of ``x`` (N, C, ...) at ``places`` (N, C, ...) of its flattened spatial axes."""
    n, c = x.shape[:2]
    first = x.xp.arange(n * c).reshape((n, c) + (1,) * (places.ndim - 2))
    return get_item(flatten(x), places + first * math.prod(x.shape[2:]))
