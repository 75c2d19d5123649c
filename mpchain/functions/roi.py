"""Regions of interest: boxes in images, each pooled into equally many bins.

Gradients flow to the images, not to the boxes.
"""

import math
from numbers import Integral, Real

import numpy as np

from mpchain.backends.cuda import get_array_module, to_cpu
from mpchain.functions.declaration import differentiable
from mpchain.functions.indexing import get_item
from mpchain.functions.pooling import places_of_maxima
from mpchain.functions.rearrangement import flatten
from mpchain.functions.reduction import sum
from mpchain.functions.resampling import bins
from mpchain.utils.conv import spatial
from mpchain.utils.type_check import check
from mpchain.variable import as_array, as_variable

# A mean over bins, or over points that are interpolated, is a matrix along each axis: of box r,
# y[r] = rows[r] x[images[r]] columns[r]^T. It is a linear map of x; next to it is its adjoint.


def _map_boxes_derivative(g, x_shape, rows, columns, images):
    return _spread_boxes.on(g, rows, columns, images, x_shape)


@differentiable(_map_boxes_derivative)
def _map_boxes(x, rows, columns, images):
    xp = get_array_module(x)
    n_boxes, n_rows, n_columns = len(images), rows.shape[1], columns.shape[1]
    wide, rows, columns = _wide(x, rows, columns)
    y = xp.empty((n_boxes, x.shape[1], n_rows, n_columns), x.dtype)
    for image, boxes in _by_image(images, xp):
        r = rows[boxes].reshape(-1, x.shape[2])
        half = xp.tensordot(r, wide[image], (1, 1))  # (boxes * rows, C, W)
        half = half.reshape(len(boxes), n_rows, x.shape[1], x.shape[3])
        y[boxes] = (half @ columns[boxes][:, None].swapaxes(2, 3)).swapaxes(1, 2)
    return y


@differentiable(lambda g, rows, columns, images: _map_boxes.on(g, rows, columns, images))
def _spread_boxes(y, rows, columns, images, shape):
    xp = get_array_module(y)
    wide, rows, columns = _wide(y, rows, columns)
    x = xp.zeros(shape, y.dtype)
    for image, boxes in _by_image(images, xp):
        half = wide[boxes].swapaxes(1, 2) @ columns[boxes][:, None]  # (boxes, rows, C, W)
        r = rows[boxes].reshape(-1, shape[2])
        x[image] = xp.tensordot(r, half.reshape(-1, *half.shape[2:]), (0, 0)).swapaxes(0, 1)
    return x


def _wide(x, rows, columns):
    """Arrays of one dtype in which sums are made."""
    wide = np.promote_types(x.dtype, np.float32)
    asarray = get_array_module(x).asarray
    return x.astype(wide, copy=False), asarray(rows, wide), asarray(columns, wide)


def _by_image(images, xp):
    return [(int(i), xp.asarray(np.flatnonzero(images == i))) for i in np.unique(images)]


def _check(name, x, rois, roi_indices, spatial_scale):
    """``x`` as a Variable; boxes and their images' numbers as NumPy arrays, the boxes scaled."""
    x = as_variable(x)
    check(x.ndim == 4 and x.dtype.kind == "f", name, "x must be floating point with 4 axes", x=x)
    rois, images = (to_cpu(as_array(a)) for a in (rois, roi_indices))
    check(rois.ndim == 2 and rois.shape[1] == 4, name, "rois must have shape (R, 4)", rois=rois)
    fits = images.shape == rois.shape[:1] and images.dtype.kind in "iu"
    rule = "roi_indices must be an integer per box"
    check(fits, name, rule, roi_indices=roi_indices, rois=rois)
    known = (images >= 0) & (images < len(x))
    if not known.all():
        raise ValueError(
            f"{name}: every box must be in one of {len(x)} images, but one is in image "
            f"{images[~known][0]}"
        )
    if not isinstance(spatial_scale, Real) or not spatial_scale > 0:
        raise ValueError(f"{name}: spatial_scale must be positive, not {spatial_scale!r}")
    return x, rois * rois.dtype.type(spatial_scale), images


def _bins_of_boxes(boxes, axis, size, n_bins, inclusive=0):
    """For each box a list of bins (begin, end) along an axis of the image, cut to the image.

    The box reaches from its rounded begin to its rounded end, and has one element at least.
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
    """Matrices (R, n_bins, size) that take the mean of each bin; of an empty one, zero."""
    matrices = np.zeros((len(bins_of_boxes), len(bins_of_boxes[0]) if bins_of_boxes else 0, size))
    for matrix, bounds in zip(matrices, bins_of_boxes):
        for row, (begin, end) in zip(matrix, bounds):
            row[begin:end] = 1 / max(end - begin, 1)
    return matrices


def roi_average_pooling_2d(x, rois, roi_indices, outsize, spatial_scale):
    """Mean of each of equally many bins of each box.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        rois: array (R, 4): the boxes (y_min, x_min, y_max, x_max); they are rounded to elements.
        roi_indices: array of integers (R,): the image that each box is in.
        outsize (int or pair of int): the numbers of bins.
        spatial_scale (float): the size of ``x`` divided by that of the image that boxes refer to.

    Returns:
        Variable (R, C, *outsize); zero where a bin is outside the image.

    Raises:
        InvalidType: a shape or dtype does not fit.
        ValueError: there is no such image, or the scale is not positive.
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
    """The matrices, which of no boxes have no shape yet."""
    return (m.reshape(-1, n, size) for m, n, size in zip((rows, columns), outsize, x.shape[2:]))


def roi_max_pooling_2d(x, rois, roi_indices, outsize, spatial_scale):
    """Maximum of each of equally many bins of each box.

    Args:
        x, rois, roi_indices, outsize, spatial_scale: as of :func:`roi_average_pooling_2d`.

    Returns:
        Variable (R, C, *outsize); zero where a bin is outside the image.

    Raises:
        InvalidType: a shape or dtype does not fit.
        ValueError: there is no such image, or the scale is not positive.
    """
    name = "roi_max_pooling_2d"
    x, boxes, images = _check(name, x, rois, roi_indices, spatial_scale)
    (outsize,) = spatial(name, 2, outsize=outsize)
    return _max_of_boxes(x, boxes, images, outsize)


def roi_pooling_2d(x, rois, outh, outw, spatial_scale):
    """Maximum of each of equally many bins of each box, whose last row and column belong to it.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        rois: array (R, 5): (image, x_min, y_min, x_max, y_max); they are rounded to elements.
        outh, outw (int): the numbers of bins.
        spatial_scale (float): the size of ``x`` divided by that of the image that boxes refer to.

    Returns:
        Variable (R, C, outh, outw); zero where a bin is outside the image.

    Raises:
        InvalidType: a shape or dtype does not fit.
        ValueError: there is no such image, or the scale is not positive.

    See R. Girshick, Fast R-CNN, ICCV 2015.
    """
    name = "roi_pooling_2d"
    rois = to_cpu(as_array(rois))
    check(rois.ndim == 2 and rois.shape[1] == 5, name, "rois must have shape (R, 5)", rois=rois)
    images, boxes = rois[:, 0].astype(np.int64), rois[:, [2, 1, 4, 3]]
    x, boxes, images = _check(name, x, boxes, images, spatial_scale)
    (outsize,) = spatial(name, 2, outsize=(outh, outw))
    return _max_of_boxes(x, boxes, images, outsize, inclusive=1)


def _max_of_boxes(x, boxes, images, outsize, inclusive=0):
    xp, (_, c, h, w) = x.xp, x.shape
    bounds = [_bins_of_boxes(boxes, i, x.shape[2 + i], outsize[i], inclusive) for i in range(2)]
    places, inside = np.zeros((2, len(boxes), c, *outsize), np.int64)
    places, inside = xp.asarray(places), xp.asarray(inside)
    for box, (rows, columns, image) in enumerate(zip(*bounds, images.tolist())):
        filled = np.outer(*([end > begin for begin, end in bins] for bins in (rows, columns)))
        inside[box] = xp.asarray(filled)
        if filled.any():
            (top, rows), (left, columns) = _from_first(rows, h), _from_first(columns, w)
            part = x.array[image : image + 1, :, top:, left:]
            part = part[:, :, : rows[-1][1], : columns[-1][1]]
            row, column = xp.divmod(places_of_maxima(part, [rows, columns])[0], part.shape[3])
            places[box] = (row + top) * w + column + left
    maxima = _elements(x, places, images)
    return maxima if bool(inside.all()) else maxima * inside.astype(x.dtype)


def _from_first(bounds, size):
    """The first element that bins have, and the bins counted from it.

    Empty bins get an element, which does not count.
    """
    bounds = [(min(begin, size - 1), max(end, min(begin, size - 1) + 1)) for begin, end in bounds]
    first = bounds[0][0]
    return first, [(begin - first, end - first) for begin, end in bounds]


def _elements(x, places, images):
    """The elements of channel c of the image of box r at places[r, c, ...] of that channel."""
    xp, (_, c, h, w) = x.xp, x.shape
    channels = xp.asarray(images)[:, None] * c + xp.arange(c)
    return get_item(
        flatten(x), places + channels.reshape((-1, c) + (1,) * (places.ndim - 2)) * (h * w)
    )


def _samples(begin, end, n_bins, ratio, size):
    """Points of a box along an axis, equally many in each of its bins.

    Returns:
        tuple of arrays (n_bins, points): the element before and the element after each point, and
        the weights of both, which are zero for a point outside.
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
        r is None or (isinstance(r, Integral) and r > 0) for r in sampling_ratio
    )
    if not valid:
        raise ValueError(
            f"{name}: sampling_ratio must be a positive integer or None, or a pair of these, "
            f"not {sampling_ratio!r}"
        )
    return sampling_ratio


def _samples_of_boxes(name, x, boxes, outsize, sampling_ratio):
    """For both axes, the samples of each box."""
    ratios = _ratios(name, sampling_ratio)
    return [
        [
            _samples(begin, end, outsize[i], ratios[i], x.shape[2 + i])
            for begin, end in boxes[:, [i, i + 2]].tolist()
        ]
        for i in range(2)
    ]


def _interpolation(samples, size):
    """A matrix (..., size) that interpolates at the samples of a box."""
    first, second, weight, rest = samples
    elements = np.arange(size)
    return (first[..., None] == elements) * weight[..., None] + (
        second[..., None] == elements
    ) * rest[..., None]


def roi_average_align_2d(x, rois, roi_indices, outsize, spatial_scale, sampling_ratio=None):
    """Mean of interpolated points in each of equally many bins of each box.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        rois: array (R, 4): the boxes (y_min, x_min, y_max, x_max).
        roi_indices: array of integers (R,): the image that each box is in.
        outsize (int or pair of int): the numbers of bins.
        spatial_scale (float): the size of ``x`` divided by that of the image that boxes refer to.
        sampling_ratio (int or pair of int): how many points a bin has along each axis; None means
            one for each element that it covers, rounded up.

    Returns:
        Variable (R, C, *outsize); points outside the image count as zero.

    Raises:
        InvalidType: a shape or dtype does not fit.
        ValueError: there is no such image, or an option is out of range.

    See K. He et al., Mask R-CNN, ICCV 2017.
    """
    name = "roi_average_align_2d"
    x, boxes, images = _check(name, x, rois, roi_indices, spatial_scale)
    (outsize,) = spatial(name, 2, outsize=outsize)
    matrices = [
        np.array([_interpolation(s, size).mean(1) for s in samples])
        for samples, size in zip(
            _samples_of_boxes(name, x, boxes, outsize, sampling_ratio), x.shape[2:]
        )
    ]
    return _map_boxes(x, *_shaped(*matrices, outsize, x), images)


def roi_max_align_2d(x, rois, roi_indices, outsize, spatial_scale, sampling_ratio=None):
    """Maximum of interpolated points in each of equally many bins of each box.

    Args:
        x, rois, roi_indices, outsize, spatial_scale, sampling_ratio: as of
            :func:`roi_average_align_2d`.

    Returns:
        Variable (R, C, *outsize); points outside the image do not count, and a bin that has no
        others is zero.

    Raises:
        InvalidType: a shape or dtype does not fit.
        ValueError: there is no such image, or an option is out of range.

    See K. He et al., Mask R-CNN, ICCV 2017.
    """
    name = "roi_max_align_2d"
    x, boxes, images = _check(name, x, rois, roi_indices, spatial_scale)
    (outsize,) = spatial(name, 2, outsize=outsize)
    xp, shape = x.xp, (len(boxes), x.shape[1], *outsize, 4)
    places, weights = xp.empty(shape, np.int64), xp.empty(shape, x.dtype)
    every = _samples_of_boxes(name, x, boxes, outsize, sampling_ratio)
    for box, (rows, columns, image) in enumerate(zip(*every, images.tolist())):
        best = _best_samples(x.array[image], rows, columns)
        places[box], weights[box] = _taps(best, rows, columns, x.shape[3], xp)
    return sum(_elements(x, places, images) * weights, -1)


def _best_samples(image, rows, columns):
    """Which point of each bin is the largest: the number of its row and of its column.

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
    """The four elements around points, as places in an image, and their weights."""
    (top, bottom, w_top, w_bottom), (left, right, w_left, w_right) = (
        [xp.asarray(value.ravel())[number] for value in samples]
        for number, samples in zip(best, (rows, columns))
    )
    pairs = [
        (y, x)
        for y in ((top, w_top), (bottom, w_bottom))
        for x in ((left, w_left), (right, w_right))
    ]
    places = xp.stack([y[0] * width + x[0] for y, x in pairs], -1)
    return places, xp.stack([y[1] * x[1] for y, x in pairs], -1)
