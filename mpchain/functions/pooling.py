"""Pooling, unpooling and upsampling."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from mpchain import kernels
from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.functions.array import reshape
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.indexing import get_item
from mpchain.functions.joining import concat
from mpchain.functions.rearrangement import flatten
from mpchain.functions.resampling import bins, bins_matrix, map_axis
from mpchain.functions.windows import check_axes, windows_onto, windows_over
from mpchain.kernels.window import Window, cache_windows
from mpchain.typing import Array, Input, Sizes
from mpchain.utils.conv import spatial
from mpchain.utils.type_check import TypeInfo, check
from mpchain.variable import Variable, as_array, as_variable


def _windows(place, name, n, x, *sizes, **options):
    """Returns the windows that ``place``, windows_over or windows_onto, makes for ``x``, which must
    be floating point with ``n`` spatial axes."""
    return _cached_windows(place, name, n, x.shape, x.dtype, *sizes, **options)


@cache_windows
def _cached_windows(place, name, n, shape, dtype, ksize, stride, pad, **options):
    x = TypeInfo(shape, dtype)
    check_axes(name, x, n)
    check(is_floating(x.dtype), name, "x must be floating point", x=x)
    return place(name, x, ksize, ksize if stride is None else stride, pad, **options)


# The next four functions are linear maps: the sum of each window, the selection of an element of
# each window, and the adjoints of both.


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


def max_pooling_nd(
    x: Input,
    ksize: Sizes,
    stride: Sizes | None = None,
    pad: Sizes = 0,
    cover_all: bool = True,
    return_indices: bool = False,
) -> Variable | Any:
    """Maximum of each window. If elements are equal, the first element receives the gradient.

    Args:
        x: Variable or array (N, C, d1, d2, ...), floating point.
        ksize: window size.
        stride: distance between windows; None means ``ksize``.
        pad: number of padded elements on each side of a spatial axis; padded elements are never the
            maximum.
        cover_all: whether to add a last window, so that windows cover all elements.
        return_indices: whether to return the index of each maximum in its window too.

    Returns:
        Variable (N, C, ...); with ``return_indices``, a pair of this Variable and an array of
        integers of its shape.

    Raises:
        InvalidType: a rank, dtype or size does not match, or the padded ``x`` is smaller than a
            window.

    Example:
        >>> F.max_pooling_nd(np.array([[[1.0, 5.0, 2.0, 3.0]]]), 2).array
        array([[[5., 3.]]])
    """
    return _max_pooling("max_pooling_nd", None, x, ksize, stride, pad, cover_all, return_indices)


def _max_pooling(name, n, x, ksize, stride, pad, cover_all, return_indices):
    window = _windows(windows_over, name, n, x, ksize, stride, pad, cover_all=cover_all)
    y = _max_windows(x, window)
    if return_indices:
        return y, kernels.max_windows(as_variable(x).array, window)[1]
    return y


def max_pooling_2d(
    x: Input,
    ksize: Sizes,
    stride: Sizes | None = None,
    pad: Sizes = 0,
    cover_all: bool = True,
    return_indices: bool = False,
) -> Variable | Any:
    """Two-dimensional max pooling: :func:`max_pooling_nd` of x (N, C, H, W).

    Example:
        >>> F.max_pooling_2d(np.arange(16.0).reshape(1, 1, 4, 4), 2).array[0, 0]
        array([[ 5.,  7.],
               [13., 15.]])
    """
    return _max_pooling("max_pooling_2d", 2, x, ksize, stride, pad, cover_all, return_indices)


def max_pooling_1d(
    x: Input,
    ksize: Sizes,
    stride: Sizes | None = None,
    pad: Sizes = 0,
    cover_all: bool = True,
    return_indices: bool = False,
) -> Variable | Any:
    """One-dimensional max pooling: :func:`max_pooling_nd` of x (N, C, D).

    Example:
        >>> F.max_pooling_1d(np.zeros((2, 3, 8)), 2).shape
        (2, 3, 4)
    """
    return _max_pooling("max_pooling_1d", 1, x, ksize, stride, pad, cover_all, return_indices)


def max_pooling_3d(
    x: Input,
    ksize: Sizes,
    stride: Sizes | None = None,
    pad: Sizes = 0,
    cover_all: bool = True,
    return_indices: bool = False,
) -> Variable | Any:
    """Three-dimensional max pooling: :func:`max_pooling_nd` of x (N, C, D, H, W).

    Example:
        >>> F.max_pooling_3d(np.zeros((2, 3, 8, 8, 8)), 2).shape
        (2, 3, 4, 4, 4)
    """
    return _max_pooling("max_pooling_3d", 3, x, ksize, stride, pad, cover_all, return_indices)


def average_pooling_nd(
    x: Input, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0, pad_value: int | None = 0
) -> Variable:
    """Mean of each window.

    Args:
        x: Variable or array (N, C, d1, d2, ...), floating point.
        ksize: window size.
        stride: distance between windows; None means ``ksize``.
        pad: number of padded elements on each side of a spatial axis.
        pad_value: 0 counts padded elements as zeros; None excludes padded elements from the mean.

    Returns:
        Variable (N, C, ...).

    Raises:
        InvalidType: a rank, dtype or size does not match, or the padded ``x`` is smaller than a
            window.

    Example:
        >>> F.average_pooling_nd(np.array([[[1.0, 5.0, 2.0, 3.0]]]), 2).array
        array([[[3. , 2.5]]])
    """
    return _average_pooling("average_pooling_nd", None, x, ksize, stride, pad, pad_value)


def _average_pooling(name, n, x, ksize, stride, pad, pad_value):
    check(pad_value in (0, None), name, "pad_value must be 0 or None", pad_value=pad_value)
    window = _windows(windows_over, name, n, x, ksize, stride, pad)
    total = _sum_windows(x, window)
    if pad_value is None and any(window.pad):
        ones = total.xp.ones((1, 1, *x.shape[2:]), x.dtype)
        return total / kernels.sum_windows(ones, window)
    return total * (1 / window.n_elements)


def average_pooling_2d(
    x: Input, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0
) -> Variable:
    """Two-dimensional average pooling: :func:`average_pooling_nd` of x (N, C, H, W).

    Example:
        >>> F.average_pooling_2d(np.arange(16.0).reshape(1, 1, 4, 4), 2).array[0, 0]
        array([[ 2.5,  4.5],
               [10.5, 12.5]])
    """
    return _average_pooling("average_pooling_2d", 2, x, ksize, stride, pad, 0)


def average_pooling_1d(
    x: Input, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0, pad_value: int | None = 0
) -> Variable:
    """One-dimensional average pooling: :func:`average_pooling_nd` of x (N, C, D).

    Example:
        >>> F.average_pooling_1d(np.zeros((2, 3, 8)), 2).shape
        (2, 3, 4)
    """
    return _average_pooling("average_pooling_1d", 1, x, ksize, stride, pad, pad_value)


def average_pooling_3d(
    x: Input, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0, pad_value: int | None = 0
) -> Variable:
    """Three-dimensional average pooling: :func:`average_pooling_nd` of x (N, C, D, H, W).

    Example:
        >>> F.average_pooling_3d(np.zeros((2, 3, 8, 8, 8)), 2).shape
        (2, 3, 4, 4, 4)
    """
    return _average_pooling("average_pooling_3d", 3, x, ksize, stride, pad, pad_value)


def unpooling_nd(
    x: Input,
    ksize: Sizes,
    stride: Sizes | None = None,
    pad: Sizes = 0,
    outsize: Sizes | None = None,
    cover_all: bool = True,
) -> Variable:
    """Copies each element to all elements of its window. Where windows overlap, the copies are
    added.

    Args:
        x: Variable or array (N, C, d1, d2, ...), floating point.
        ksize: window size.
        stride: distance between windows; None means ``ksize``.
        pad: number of elements that are removed on each side of a spatial axis.
        outsize: spatial size of the result; None means the smallest possible size.
        cover_all: the argument ``cover_all`` of the pooling that is inverted.

    Returns:
        Variable (N, C, *outsize).

    Raises:
        InvalidType: a rank or dtype does not match, or pooling of an array of ``outsize`` would not
            give the size of ``x``.

    Example:
        >>> F.unpooling_nd(np.array([[[1.0, 2.0]]]), 2).array.shape
        (1, 1, 3)
    """
    return _unpooling("unpooling_nd", None, x, ksize, stride, pad, outsize, cover_all)


def _unpooling(name, n, x, ksize, stride, pad, outsize, cover_all):
    options = {"outsize": outsize, "cover_all": cover_all}
    return _spread_windows(x, _windows(windows_onto, name, n, x, ksize, stride, pad, **options))


def unpooling_1d(
    x: Input,
    ksize: Sizes,
    stride: Sizes | None = None,
    pad: Sizes = 0,
    outsize: Sizes | None = None,
    cover_all: bool = True,
) -> Variable:
    """One-dimensional unpooling: :func:`unpooling_nd` of x (N, C, D).

    Example:
        >>> F.unpooling_1d(np.array([[[1.0, 2.0]]]), 2, cover_all=False).array
        array([[[1., 1., 2., 2.]]])
    """
    return _unpooling("unpooling_1d", 1, x, ksize, stride, pad, outsize, cover_all)


def unpooling_2d(
    x: Input,
    ksize: Sizes,
    stride: Sizes | None = None,
    pad: Sizes = 0,
    outsize: Sizes | None = None,
    cover_all: bool = True,
) -> Variable:
    """Two-dimensional unpooling: :func:`unpooling_nd` of x (N, C, H, W).

    Example:
        >>> F.unpooling_2d(np.zeros((1, 1, 2, 2)), 2, cover_all=False).shape
        (1, 1, 4, 4)
    """
    return _unpooling("unpooling_2d", 2, x, ksize, stride, pad, outsize, cover_all)


def unpooling_3d(
    x: Input,
    ksize: Sizes,
    stride: Sizes | None = None,
    pad: Sizes = 0,
    outsize: Sizes | None = None,
    cover_all: bool = True,
) -> Variable:
    """Three-dimensional unpooling: :func:`unpooling_nd` of x (N, C, D, H, W).

    Example:
        >>> F.unpooling_3d(np.zeros((1, 1, 2, 2, 2)), 2, cover_all=False).shape
        (1, 1, 4, 4, 4)
    """
    return _unpooling("unpooling_3d", 3, x, ksize, stride, pad, outsize, cover_all)


def upsampling_2d(
    x: Input,
    indexes: Input,
    ksize: Sizes,
    stride: Sizes | None = None,
    pad: Sizes = 0,
    outsize: Sizes | None = None,
    cover_all: bool = True,
) -> Variable:
    """Inverts max pooling: puts each element at the index of its maximum, and zeros elsewhere.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        indexes: array of integers of the shape of ``x``: indices in the windows, as returned by
            :func:`max_pooling_2d` with ``return_indices``.
        ksize, stride, pad, cover_all: the arguments of the inverted pooling.
        outsize: spatial size of the result; None means the smallest possible size.

    Returns:
        Variable (N, C, *outsize).

    Raises:
        InvalidType: shapes or sizes do not match.

    Example:
        >>> x = np.array([[[[1.0, 5.0], [2.0, 4.0]]]])
        >>> y, indices = F.max_pooling_2d(x, 2, return_indices=True)
        >>> F.upsampling_2d(y, indices, 2, outsize=(2, 2)).array[0, 0]
        array([[0., 5.],
               [0., 0.]])
    """
    name = "upsampling_2d"
    check_axes(name, x, 2)
    indexes = as_array(indexes)
    fits = indexes.shape == x.shape and indexes.dtype.kind in "iu"
    check(fits, name, "indexes must be integers of the shape of x", indexes=indexes, x=x)
    options = {"outsize": outsize, "cover_all": cover_all}
    window = _windows(windows_onto, name, 2, x, ksize, stride, pad, **options)
    return _place_in_windows(x, indexes, window)


def spatial_pyramid_pooling_2d(
    x: Input, pyramid_height: int, pooling: str | None = None
) -> Variable:
    """Max pooling into 1, 4, 16, ... bins, which gives vectors of the same size for images of any
    size.

    All bins of a level have the same size. The maximum of a bin outside the image is minus
    infinity.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        pyramid_height: the number of levels; level ``l`` has 2^l by 2^l bins.
        pooling: ``'max'``, the only supported value; the argument is required.

    Returns:
        Variable (N, C * (4^pyramid_height - 1) / 3, 1, 1).

    Raises:
        InvalidType: ``x`` is not floating point with 4 axes, a spatial axis is empty, or
            ``pyramid_height`` is not positive.
        ValueError: ``pooling`` is not 'max'.

    Example:
        >>> F.spatial_pyramid_pooling_2d(np.zeros((2, 3, 7, 9)), 3, "max").shape
        (2, 63, 1, 1)

    See K. He et al., Spatial pyramid pooling in deep convolutional networks for visual recognition,
    ECCV 2014.
    """
    name = "spatial_pyramid_pooling_2d"
    if pooling != "max":
        raise ValueError(f"{name}: pooling must be 'max', not {pooling!r}")
    nonempty = x.ndim == 4 and is_floating(x.dtype) and min(x.shape[2:]) > 0
    check(
        nonempty,
        name,
        "x must be floating point with 4 axes, and its spatial axes must not be empty",
        x=x,
    )
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
    check(n > 0 and is_floating(x.dtype), name, "x must be floating point, (N, C, d1, ...)", x=x)
    check(min(x.shape[2:]) > 0, name, "the spatial axes of x must not be empty", x=x)
    if not isinstance(outsize, Integral) and len(outsize) == n:
        outsize = tuple(size if o is None else o for o, size in zip(outsize, x.shape[2:]))
    return spatial(name, n, outsize=outsize)[0]


def adaptive_average_pooling_nd(x: Input, outsize: int | Sequence[int | None]) -> Variable:
    """Adaptive average pooling: means over a given number of bins.

    With ``o`` bins on an axis of ``n`` elements, bin ``i`` holds the elements from index floor(i n
    / o) up to, but not including, index ceil((i + 1) n / o).

    Args:
        x: Variable or array (N, C, d1, d2, ...), floating point.
        outsize: number of bins for each axis; None keeps the size of an axis.

    Returns:
        Variable (N, C, *outsize).

    Raises:
        InvalidType: ``x`` is not floating point, has no spatial axis or an empty one, or
            ``outsize`` does not match the rank of ``x``.

    Example:
        >>> F.adaptive_average_pooling_nd(np.array([[[1.0, 5.0, 2.0, 4.0]]]), 2).array
        array([[[3., 3.]]])
    """
    return _adaptive_average("adaptive_average_pooling_nd", x, outsize)


def _adaptive_average(name, x, outsize):
    x = as_variable(x)
    for axis, size in enumerate(_adaptive_sizes(name, x, outsize), 2):
        if size != x.shape[axis]:
            x = map_axis(x, bins_matrix(x.shape[axis], size), axis)
    return x


def adaptive_average_pooling_2d(x: Input, outsize: int | Sequence[int | None]) -> Variable:
    """Adaptive average pooling of images: :func:`adaptive_average_pooling_nd` of x (N, C, H, W).

    Example:
        >>> F.adaptive_average_pooling_2d(np.zeros((2, 3, 7, 9)), 4).shape
        (2, 3, 4, 4)
    """
    check_axes("adaptive_average_pooling_2d", x, 2)
    return _adaptive_average("adaptive_average_pooling_2d", x, outsize)


def adaptive_max_pooling_nd(
    x: Input, outsize: int | Sequence[int | None], return_indices: bool = False
) -> Variable | Any:
    """Adaptive max pooling: maxima of a given number of bins.

    The bins are the bins of :func:`adaptive_average_pooling_nd`. If elements are equal, the first
    element receives the gradient.

    Args:
        x: Variable or array (N, C, d1, d2, ...), floating point.
        outsize: number of bins for each axis; None keeps the size of an axis.
        return_indices: whether to return the index of each maximum too.

    Returns:
        Variable (N, C, *outsize); with ``return_indices``, a pair of this Variable and an array of
        integers of its shape: indices into the flattened spatial axes.

    Raises:
        InvalidType: ``x`` is not floating point, has no spatial axis or an empty one, or
            ``outsize`` does not match the rank of ``x``.

    Example:
        >>> F.adaptive_max_pooling_nd(np.array([[[1.0, 5.0, 2.0, 4.0]]]), 2).array
        array([[[5., 4.]]])
    """
    return _adaptive_max("adaptive_max_pooling_nd", x, outsize, return_indices)


def _adaptive_max(name, x, outsize, return_indices):
    x = as_variable(x)
    sizes = _adaptive_sizes(name, x, outsize)
    every = [bins(old, size) for old, size in zip(x.shape[2:], sizes)]
    places = places_of_maxima(x.array, every)
    y = take_places(x, places)
    return (y, places) if return_indices else y


def adaptive_max_pooling_2d(
    x: Input, outsize: int | Sequence[int | None], return_indices: bool = False
) -> Variable | Any:
    """Adaptive max pooling of images: :func:`adaptive_max_pooling_nd` of x (N, C, H, W).

    Example:
        >>> F.adaptive_max_pooling_2d(np.zeros((2, 3, 7, 9)), 4).shape
        (2, 3, 4, 4)
    """
    check_axes("adaptive_max_pooling_2d", x, 2)
    return _adaptive_max("adaptive_max_pooling_2d", x, outsize, return_indices)


def places_of_maxima(x: Array, every: Sequence[Sequence[tuple[int, int]]]) -> Array:
    """Returns the indices of the maxima of bins, in the flattened spatial axes. If elements are
    equal, the index of the first element is returned.

    Args:
        x: array (N, C, d1, d2, ...).
        every: for each spatial axis, a list of bins (begin, end), none of them empty.

    Returns:
        array of integers (N, C, number of bins, ...).

    Example:
        >>> places_of_maxima(np.array([[[1.0, 5.0, 2.0, 4.0]]]), [[(0, 2), (2, 4)]])
        array([[[1, 3]]])
    """
    xp = get_array_module(x)
    places = xp.arange(math.prod(x.shape[2:])).reshape(x.shape[2:])
    places = xp.broadcast_to(places, x.shape)
    # The last axis is reduced first, so that the first one of equal maxima in row-major order is
    # kept.
    for axis in range(x.ndim - 1, 1, -1):
        bounds = np.array(every[axis - 2])
        steps = np.arange((bounds[:, 1] - bounds[:, 0]).max())
        # Shorter bins repeat their last element, so that all bins have the same length.
        inside = np.minimum(bounds[:, :1] + steps, bounds[:, 1:] - 1)
        inside = (slice(None),) * axis + (xp.asarray(inside),)
        values, candidates = x[inside], places[inside]
        best = xp.expand_dims(values.argmax(axis + 1), axis + 1)
        x = xp.take_along_axis(values, best, axis + 1).squeeze(axis + 1)
        places = xp.take_along_axis(candidates, best, axis + 1).squeeze(axis + 1)
    return places


def take_places(x: Variable, places: Array) -> Variable:
    """Selects elements of ``x`` (N, C, ...) by indices (N, C, ...) of the flattened spatial axes.

    Example:
        >>> take_places(Variable(np.array([[[1.0, 5.0, 2.0]]])), np.array([[[1, 1]]])).array
        array([[[5., 5.]]])
    """
    n, c = x.shape[:2]
    first = x.xp.arange(n * c).reshape((n, c) + (1,) * (places.ndim - 2))
    return get_item(flatten(x), places + first * math.prod(x.shape[2:]))
