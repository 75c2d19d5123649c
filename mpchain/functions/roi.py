"""Regions of interest: boxes in images, each pooled into a given number of bins.

Images receive gradients; boxes have no gradient.
"""

import math
from collections.abc import Sequence

import numpy as np

from mpchain.backends.cuda import get_array_module, to_cpu
from mpchain.backends.dtypes import is_floating
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.indexing import get_item
from mpchain.functions.pooling import places_of_maxima
from mpchain.functions.rearrangement import flatten
from mpchain.functions.reduction import sum
from mpchain.functions.resampling import bins
from mpchain.observers import one_call
from mpchain.typing import Input, Sizes
from mpchain.utils.arrays import converted
from mpchain.utils.conv import spatial
from mpchain.utils.type_check import check, is_integer, is_real
from mpchain.variable import Variable, as_array, as_variable

# A mean over bins, or over interpolated points, is a product with a matrix for each axis: for box
# r, y[r] = rows[r] x[images[r]] columns[r]^T. _map_boxes computes this linear map of x, and
# _spread_boxes computes its adjoint.


def _map_boxes_derivative(g, x_shape, rows, columns, images):
    return _spread_boxes.on(g, rows, columns, images, x_shape)


@differentiable(_map_boxes_derivative)
def _map_boxes(x, rows, columns, images):
    return one_call(_mapped_boxes, x, rows, columns, images)


def _mapped_boxes(x, rows, columns, images):
    xp = get_array_module(x)
    n_boxes, n_rows, n_columns = len(images), rows.shape[1], columns.shape[1]
    wide, rows, columns = _wide(x, rows, columns)
    y = xp.empty((n_boxes, x.shape[1], n_rows, n_columns), x.dtype)
    for image, boxes in _by_image(images, xp):
        r = rows[boxes].reshape(-1, x.shape[2])
        half = xp.tensordot(r, wide[image], (1, 1))  # the shape is (boxes * rows, C, W)
        half = half.reshape(len(boxes), n_rows, x.shape[1], x.shape[3])
        y[boxes] = (half @ columns[boxes][:, None].swapaxes(2, 3)).swapaxes(1, 2)
    return y


@differentiable(lambda g, rows, columns, images: _map_boxes.on(g, rows, columns, images))
def _spread_boxes(y, rows, columns, images, shape):
    return one_call(_spread, y, rows, columns, images, shape)


def _spread(y, rows, columns, images, shape):
    xp = get_array_module(y)
    wide, rows, columns = _wide(y, rows, columns)
    x = xp.zeros(shape, y.dtype)
    for image, boxes in _by_image(images, xp):
        # the shape is (boxes, rows, C, W)
        half = wide[boxes].swapaxes(1, 2) @ columns[boxes][:, None]
        r = rows[boxes].reshape(-1, shape[2])
        x[image] = xp.tensordot(r, half.reshape(-1, *half.shape[2:]), (0, 0)).swapaxes(0, 1)
    return x


def _wide(x, rows, columns):
    """Casts the arrays to the dtype in which sums accumulate."""
    wide = np.promote_types(x.dtype, np.float32)
    asarray = get_array_module(x).asarray
    return x.astype(wide, copy=False), asarray(rows, wide), asarray(columns, wide)


def _by_image(images, xp):
    return [(int(i), xp.asarray(np.flatnonzero(images == i))) for i in np.unique(images)]


def _check(name, x, rois, roi_indices, spatial_scale):
    """Returns ``x`` as a Variable, and scaled boxes and the indices of their images as NumPy
    arrays."""
    x = as_variable(x)
    check(x.ndim == 4 and is_floating(x.dtype), name, "x must be floating point with 4 axes", x=x)
    rois, images = (to_cpu(as_array(a)) for a in (rois, roi_indices))
    check(rois.ndim == 2 and rois.shape[1] == 4, name, "rois must have shape (R, 4)", rois=rois)
    fits = images.shape == rois.shape[:1] and images.dtype.kind in "iu"
    rule = "roi_indices must be an integer per box"
    check(fits, name, rule, roi_indices=roi_indices, rois=rois)
    unknown = (images < 0) | (images >= len(x))
    if unknown.any():
        rule = f"every box must be in one of the {len(x)} images"
        raise ValueError(f"{name}: {rule}, but a box is in image {images[unknown][0]}")
    if not is_real(spatial_scale) or not spatial_scale > 0:
        raise ValueError(f"{name}: spatial_scale must be positive, not {spatial_scale!r}")
    return x, rois * rois.dtype.type(spatial_scale), images


def _bins_of_boxes(boxes, axis, size, n_bins, inclusive=0):
    """Returns, for each box, a list of bins (begin, end) along an axis, clipped to the image.

    The ends of a box are rounded; a box has at least one element.
    """
    begins, ends = np.round(boxes[:, [axis, axis + 2]]).astype(np.int64).T.tolist()
    return [
        [
            (min(max(begin + first, 0), size), min(max(begin + last, 0), size))
            for first, last in bins(max(end - begin + inclusive, 1), n_bins)
        ]
        for begin, end in zip(begins, ends)
    ]


def _means(bins_of_boxes, size):
    """Returns matrices (R, n_bins, size) that compute the means of bins; the rows of empty bins are
    zero."""
    matrices = np.zeros((len(bins_of_boxes), len(bins_of_boxes[0]) if bins_of_boxes else 0, size))
    for matrix, bounds in zip(matrices, bins_of_boxes):
        for row, (begin, end) in zip(matrix, bounds):
            row[begin:end] = 1 / max(end - begin, 1)
    return matrices


def roi_average_pooling_2d(
    x: Input, rois: Input, roi_indices: Input, outsize: Sizes, spatial_scale: float
) -> Variable:
    """Region-of-interest average pooling: means over the bins of boxes.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        rois: array (R, 4): the boxes (y_min, x_min, y_max, x_max), which are rounded after scaling.
        roi_indices: array of integers (R,): the index of the image of each box.
        outsize: numbers of bins along the two axes.
        spatial_scale: size of ``x`` relative to the image of the box coordinates.

    Returns:
        Variable (R, C, *outsize); zero where a bin is outside the image.

    Raises:
        InvalidType: the shape or dtype of an argument does not match.
        ValueError: an image index is out of range, or the scale is not positive.

    Example:
        >>> x = np.arange(16.0).reshape(1, 1, 4, 4)
        >>> rois, indices = np.array([[0.0, 0, 4, 4]]), np.array([0])
        >>> F.roi_average_pooling_2d(x, rois, indices, 2, spatial_scale=1.0).array[0, 0]
        array([[ 2.5,  4.5],
               [10.5, 12.5]])
    """
    name = "roi_average_pooling_2d"
    x, boxes, images = _check(name, x, rois, roi_indices, spatial_scale)
    (outsize,) = spatial(name, 2, outsize=outsize)
    rows, columns = (
        _means(_bins_of_boxes(boxes, i, x.shape[2 + i], outsize[i]), x.shape[2 + i])
        for i in range(2)
    )
    return _map_boxes(x, *_shaped(rows, columns, outsize, x), images)


def _shaped(rows, columns, outsize, x):
    """Reshapes the matrices to (R, bins, size), because matrices for an empty list of boxes do not
    have this shape."""
    height, width = x.shape[2:]
    return rows.reshape(-1, outsize[0], height), columns.reshape(-1, outsize[1], width)


def roi_max_pooling_2d(
    x: Input, rois: Input, roi_indices: Input, outsize: Sizes, spatial_scale: float
) -> Variable:
    """Region-of-interest max pooling: maxima over the bins of boxes.

    Args:
        x, rois, roi_indices, outsize, spatial_scale: as for :func:`roi_average_pooling_2d`.

    Returns:
        Variable (R, C, *outsize); zero where a bin is outside the image.

    Raises:
        InvalidType: the shape or dtype of an argument does not match.
        ValueError: an image index is out of range, or the scale is not positive.

    Example:
        >>> x = np.arange(16.0).reshape(1, 1, 4, 4)
        >>> rois, indices = np.array([[0.0, 0, 4, 4]]), np.array([0])
        >>> F.roi_max_pooling_2d(x, rois, indices, 2, spatial_scale=1.0).array[0, 0]
        array([[ 5.,  7.],
               [13., 15.]])
    """
    name = "roi_max_pooling_2d"
    x, boxes, images = _check(name, x, rois, roi_indices, spatial_scale)
    (outsize,) = spatial(name, 2, outsize=outsize)
    return _max_of_boxes(x, boxes, images, outsize)


def roi_pooling_2d(x: Input, rois: Input, outh: int, outw: int, spatial_scale: float) -> Variable:
    """Region-of-interest max pooling of boxes that include their last row and column.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        rois: array (R, 5): the index of the image and the box, (image, x_min, y_min, x_max, y_max);
            the coordinates are rounded after scaling.
        outh, outw: numbers of bins along the two axes.
        spatial_scale: size of ``x`` relative to the image of the box coordinates.

    Returns:
        Variable (R, C, outh, outw); zero where a bin is outside the image.

    Raises:
        InvalidType: the shape or dtype of an argument does not match.
        ValueError: an image index is out of range, or the scale is not positive.

    Example:
        >>> x, rois = np.arange(16.0).reshape(1, 1, 4, 4), np.array([[0.0, 0, 0, 3, 3]])
        >>> F.roi_pooling_2d(x, rois, 2, 2, spatial_scale=1.0).array[0, 0]
        array([[ 5.,  7.],
               [13., 15.]])

    See R. Girshick, Fast R-CNN, ICCV 2015.
    """
    name = "roi_pooling_2d"
    rows = to_cpu(as_array(rois))
    check(rows.ndim == 2 and rows.shape[1] == 5, name, "rois must have shape (R, 5)", rois=rows)
    images, boxes = rows[:, 0].astype(np.int64), rows[:, [2, 1, 4, 3]]
    x, boxes, images = _check(name, x, boxes, images, spatial_scale)
    (outsize,) = spatial(name, 2, outsize=(outh, outw))
    return _max_of_boxes(x, boxes, images, outsize, inclusive=1)


def _max_of_boxes(x, boxes, images, outsize, inclusive=0):
    bounds = [_bins_of_boxes(boxes, i, x.shape[2 + i], outsize[i], inclusive) for i in range(2)]
    places, inside = one_call(_places_of_bins, x.array, bounds, images, outsize)
    maxima = _elements(x, places, images)
    return maxima if bool(inside.all()) else maxima * inside.astype(x.dtype)


def _places_of_bins(x, bounds, images, outsize):
    """Returns the flat index of each bin's maximum in its channel, and an array that is one for
    bins that are not empty, else zero."""
    xp, (_, c, h, w) = get_array_module(x), x.shape
    places, inside = np.zeros((2, len(images), c, *outsize), np.int64)
    places, inside = xp.asarray(places), xp.asarray(inside)
    for box, (rows, columns, image) in enumerate(zip(*bounds, images.tolist())):
        has_rows, has_columns = ([end > begin for begin, end in b] for b in (rows, columns))
        filled = np.outer(has_rows, has_columns)
        inside[box] = xp.asarray(filled)
        if filled.any():
            (top, rows), (left, columns) = _from_first(rows, h), _from_first(columns, w)
            part = x[image : image + 1, :, top:, left:]
            part = part[:, :, : rows[-1][1], : columns[-1][1]]
            row, column = xp.divmod(places_of_maxima(part, [rows, columns])[0], part.shape[3])
            places[box] = (row + top) * w + column + left
    return places, inside


def _from_first(bounds, size):
    """Returns the index of the first element of all bins, and the bins relative to this index.

    Empty bins get one element, which is masked later.
    """
    bounds = [(min(begin, size - 1), max(end, min(begin, size - 1) + 1)) for begin, end in bounds]
    first = bounds[0][0]
    return first, [(begin - first, end - first) for begin, end in bounds]


def _elements(x, places, images):
    """Returns the elements at places[r, c, ...] of channel c of the image of box r."""
    xp, (_, c, h, w) = x.xp, x.shape
    channels = converted(xp, images)[:, None] * c + xp.arange(c)
    first = channels.reshape((-1, c) + (1,) * (places.ndim - 2)) * (h * w)
    return get_item(flatten(x), places + first)


def _samples(begin, end, n_bins, ratio, size):
    """Returns the sample points of a box along an axis, with the same number of points in each bin.

    Returns:
        list of arrays (n_bins, points): the element before and the element after each point, and
        the weights of both, which are zero for a point below -1 or above ``size``.
    """
    length = max(end - begin, 1.0)
    n_points = math.ceil(length / n_bins) if ratio is None else ratio
    points = (np.arange(n_bins * n_points) + 0.5) * (length / n_bins / n_points) + begin
    inside = (points >= -1) & (points <= size)
    points = points.clip(0, size - 1)
    first = np.floor(points).astype(np.int64)
    rest = points - first
    values = first, np.minimum(first + 1, size - 1), (1 - rest) * inside, rest * inside
    return [value.reshape(n_bins, n_points) for value in values]


def _ratios(name, sampling_ratio):
    if not isinstance(sampling_ratio, (tuple, list)):
        sampling_ratio = (sampling_ratio,) * 2
    valid = len(sampling_ratio) == 2 and all(
        r is None or (is_integer(r) and r > 0) for r in sampling_ratio
    )
    if not valid:
        raise ValueError(
            f"{name}: sampling_ratio must be a positive integer or None, or a pair of these, "
            f"not {sampling_ratio!r}"
        )
    return sampling_ratio


def _samples_of_boxes(name, x, boxes, outsize, sampling_ratio):
    """Returns, for each axis, the samples of each box (see :func:`_samples`)."""
    ratios = _ratios(name, sampling_ratio)
    return [
        [
            _samples(begin, end, outsize[i], ratios[i], x.shape[2 + i])
            for begin, end in boxes[:, [i, i + 2]].tolist()
        ]
        for i in range(2)
    ]


def _interpolation(samples, size):
    """Returns a matrix (..., size) that interpolates at the samples of a box."""
    first, second, weight, rest = samples
    elements = np.arange(size)
    return (first[..., None] == elements) * weight[..., None] + (
        second[..., None] == elements
    ) * rest[..., None]


def roi_average_align_2d(
    x: Input,
    rois: Input,
    roi_indices: Input,
    outsize: Sizes,
    spatial_scale: float,
    sampling_ratio: int | Sequence[int | None] | None = None,
) -> Variable:
    """Region-of-interest average align: means over interpolated points of the bins of boxes.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        rois: array (R, 4): the boxes (y_min, x_min, y_max, x_max).
        roi_indices: array of integers (R,): the index of the image of each box.
        outsize: numbers of bins along the two axes.
        spatial_scale: size of ``x`` relative to the image of the box coordinates.
        sampling_ratio: number of points of a bin along each axis, or a pair of such numbers; None
            means the size of the bin in elements, rounded up.

    Returns:
        Variable (R, C, *outsize); points more than one element away from the image count as zero.

    Raises:
        InvalidType: the shape or dtype of an argument does not match.
        ValueError: an image index is out of range, or an option is out of range.

    Example:
        >>> x = np.arange(16.0).reshape(1, 1, 4, 4)
        >>> rois, indices = np.array([[0.0, 0, 4, 4]]), np.array([0])
        >>> F.roi_average_align_2d(x, rois, indices, 2, spatial_scale=1.0).array[0, 0].round(2)
        array([[ 5.  ,  6.75],
               [12.  , 13.75]])

    See K. He et al., Mask R-CNN, ICCV 2017.
    """
    name = "roi_average_align_2d"
    x, boxes, images = _check(name, x, rois, roi_indices, spatial_scale)
    (outsize,) = spatial(name, 2, outsize=outsize)
    samples = _samples_of_boxes(name, x, boxes, outsize, sampling_ratio)
    rows, columns = (
        np.array([_interpolation(s, size).mean(1) for s in of_axis])
        for of_axis, size in zip(samples, x.shape[2:])
    )
    return _map_boxes(x, *_shaped(rows, columns, outsize, x), images)


def roi_max_align_2d(
    x: Input,
    rois: Input,
    roi_indices: Input,
    outsize: Sizes,
    spatial_scale: float,
    sampling_ratio: int | Sequence[int | None] | None = None,
) -> Variable:
    """Region-of-interest max align: maxima over interpolated points of the bins of boxes.

    Args:
        x, rois, roi_indices, outsize, spatial_scale, sampling_ratio: the same as for
            :func:`roi_average_align_2d`.

    Returns:
        Variable (R, C, *outsize); points more than one element away from the image are ignored, and
        a bin without points is zero.

    Raises:
        InvalidType: the shape or dtype of an argument does not match.
        ValueError: an image index is out of range, or an option is out of range.

    Example:
        >>> x = np.arange(16.0).reshape(1, 1, 4, 4)
        >>> rois, indices = np.array([[0.0, 0, 4, 4]]), np.array([0])
        >>> F.roi_max_align_2d(x, rois, indices, 2, spatial_scale=1.0).array[0, 0].round(2)
        array([[ 7.5,  9. ],
               [13.5, 15. ]])

    See K. He et al., Mask R-CNN, ICCV 2017.
    """
    name = "roi_max_align_2d"
    x, boxes, images = _check(name, x, rois, roi_indices, spatial_scale)
    (outsize,) = spatial(name, 2, outsize=outsize)
    every = _samples_of_boxes(name, x, boxes, outsize, sampling_ratio)
    places, weights = one_call(_taps_of_boxes, x.array, every, images, outsize)
    return sum(_elements(x, places, images) * weights, -1)


def _taps_of_boxes(x, every, images, outsize):
    """Returns the flat indices of the elements around the point with the largest value in each bin,
    and the weights of these elements."""
    xp, shape = get_array_module(x), (len(images), x.shape[1], *outsize, 4)
    places, weights = xp.empty(shape, np.int64), xp.empty(shape, x.dtype)
    for box, (rows, columns, image) in enumerate(zip(*every, images.tolist())):
        best = _best_samples(x[image], rows, columns)
        places[box], weights[box] = _taps(best, rows, columns, x.shape[3], xp)
    return places, weights


def _best_samples(image, rows, columns):
    """Returns, for each bin, the row and the column of the point with the largest value.

    Args:
        image: array (C, H, W).
        rows, columns: the samples of a box.
    """
    xp, (c, h, w) = get_array_module(image), image.shape
    (n_rows, row_points), (n_columns, column_points) = rows[0].shape, columns[0].shape
    wide = np.promote_types(image.dtype, np.float32)
    left = xp.asarray(_interpolation(rows, h).reshape(-1, h), wide)
    right = xp.asarray(_interpolation(columns, w).reshape(-1, w), wide)
    values = left @ image.astype(wide) @ right.T
    outside = _is_outside(rows)[:, None] | _is_outside(columns)
    values = xp.where(xp.asarray(outside), -np.inf, values)
    values = values.reshape(c, n_rows, row_points, n_columns, column_points).swapaxes(2, 3)
    best = values.reshape(c, n_rows, n_columns, -1).argmax(-1)
    row = xp.arange(n_rows)[:, None] * row_points + best // column_points
    column = xp.arange(n_columns) * column_points + best % column_points
    return row, column


def _is_outside(samples):
    return (samples[2] + samples[3]).ravel() == 0


def _taps(best, rows, columns, width, xp):
    """Returns the flat indices of the four elements around each point in an image, and their
    weights."""
    (top, bottom, w_top, w_bottom), (left, right, w_left, w_right) = (
        [xp.asarray(value.ravel())[number] for value in samples]
        for number, samples in zip(best, (rows, columns))
    )
    places = [y * width + x for y in (top, bottom) for x in (left, right)]
    weights = [y * x for y in (w_top, w_bottom) for x in (w_left, w_right)]
    return xp.stack(places, -1), xp.stack(weights, -1)
