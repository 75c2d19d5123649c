"""Tests regions of interest against plain loops over boxes, bins and points."""

import functools
import math

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

_SHAPE = (2, 2, 7, 6)  # the shape of the images
_SCALE = 0.5
# Boxes are (y_min, x_min, y_max, x_max) in images of twice this size; some are smaller than an
# element, or partly or wholly outside.
_BOXES = np.array(
    [
        [1.2, 2.2, 9.7, 10.3],
        [0.3, 0.4, 13.1, 11.2],
        [4.6, 3.1, 5.2, 3.3],
        [-5.3, 6.3, 6.6, 17.4],
        [2.4, 40.2, 6.2, 50.3],
        [7.4, 5.1, 3.2, 9.4],
    ]
)
_IMAGES = np.array([0, 1, 1, 0, 1, 0], np.int32)
_OUTSIZE = (2, 3)


def _bounds(begin, end, n_bins, size, inclusive):
    """Returns the range of elements for each bin of a box along an axis."""
    begin, end = round(begin), round(end)
    length = max(end - begin + inclusive, 1)
    return [
        [
            i
            for i in range(
                begin + math.floor(k * length / n_bins),
                begin + math.ceil((k + 1) * length / n_bins),
            )
            if 0 <= i < size
        ]
        for k in range(n_bins)
    ]


def _loop_pooling(x, reduce, inclusive=0):
    boxes = []
    for (top, left, bottom, right), image in zip((_BOXES * _SCALE).tolist(), _IMAGES):
        rows = _bounds(top, bottom, _OUTSIZE[0], x.shape[2], inclusive)
        columns = _bounds(left, right, _OUTSIZE[1], x.shape[3], inclusive)
        bins = [
            reduce(x[image][:, r][:, :, c].flatten(1)) if r and c else x[0, :, 0, 0] * 0
            for r in rows
            for c in columns
        ]
        boxes.append(torch.stack(bins, 1).reshape(-1, *_OUTSIZE))
    return torch.stack(boxes)


def _points(begin, end, n_bins, ratio):
    length = max(end - begin, 1)
    n = ratio or math.ceil(length / n_bins)
    step = length / n_bins
    return [[begin + (k + (i + 0.5) / n) * step for i in range(n)] for k in range(n_bins)]


def _interpolated(image, y, x):
    """Interpolates an image (C, H, W) at a point; returns None outside."""
    h, w = image.shape[1:]
    if not (-1 <= y <= h and -1 <= x <= w):
        return None
    y, x = min(max(y, 0), h - 1), min(max(x, 0), w - 1)
    value = 0
    for i in (math.floor(y), math.floor(y) + 1):
        for j in (math.floor(x), math.floor(x) + 1):
            weight = (1 - abs(y - i)) * (1 - abs(x - j))
            if weight > 0:
                value = value + weight * image[:, i, j]
    return value


def _mean_of_points(points, zero):
    return sum([zero if p is None else p for p in points], zero) / len(points)


def _max_of_points(points, zero):
    points = [p for p in points if p is not None]
    return torch.stack(points).max(0)[0] if points else zero


def _loop_align(x, reduce, ratios):
    boxes = []
    for (top, left, bottom, right), image in zip((_BOXES * _SCALE).tolist(), _IMAGES):
        bins = []
        for ys in _points(top, bottom, _OUTSIZE[0], ratios[0]):
            for xs in _points(left, right, _OUTSIZE[1], ratios[1]):
                points = [_interpolated(x[image], i, j) for i in ys for j in xs]
                bins.append(reduce(points, x[0, :, 0, 0] * 0))
        boxes.append(torch.stack(bins, 1).reshape(-1, *_OUTSIZE))
    return torch.stack(boxes)


def _case(kind, *ratio, **options):
    function = getattr(F, f"roi_{kind}_2d")
    if "align" in kind:
        reduce = _max_of_points if "max" in kind else _mean_of_points
        ratios = ratio[0] if ratio and isinstance(ratio[0], tuple) else (*ratio, None)[:1] * 2
        reference = functools.partial(_loop_align, reduce=reduce, ratios=ratios)
    else:
        reduce = (lambda v: v.max(1)[0]) if "max" in kind else (lambda v: v.mean(1))
        reference = functools.partial(_loop_pooling, reduce=reduce)
    return row(
        f"roi_{kind}_2d {ratio}",
        lambda x: function(x, _BOXES.astype(x.dtype), _IMAGES, _OUTSIZE, _SCALE, *ratio),
        reference,
        _SHAPE,
        **options,
    )


_FIVE = np.column_stack([_IMAGES, _BOXES[:, [1, 0, 3, 2]]])
# Rounding to half precision can move a box to other bins; single precision does not in these cases.
_NOT_HALF = {"dtypes": (np.float32, np.float64)}
TABLE = [
    row(
        "roi_pooling_2d",
        lambda x: F.roi_pooling_2d(x, _FIVE, *_OUTSIZE, _SCALE),
        functools.partial(_loop_pooling, reduce=lambda v: v.max(1)[0], inclusive=1),
        _SHAPE,
        smooth=False,
    ),
    _case("max_pooling", smooth=False, **_NOT_HALF),
    _case("average_pooling", **_NOT_HALF),
    _case("max_align", smooth=False, **_NOT_HALF),
    _case("max_align", 2, smooth=False, **_NOT_HALF),
    _case("average_align", **_NOT_HALF),
    _case("average_align", 2, **_NOT_HALF),
    _case("average_align", (1, None), **_NOT_HALF),
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    assert uncovered(TABLE, "roi") <= {"spread_boxes"}


ROI = {
    name: getattr(F, f"roi_{name}_2d")
    for name in ("max_pooling", "average_pooling", "max_align", "average_align")
}


@pytest.mark.parametrize("name", ROI)
def test_half_precision(name):
    x = np.random.randn(*_SHAPE).astype(np.float16)
    box = np.array([[0, 0, 4, 6]], np.float16)
    y = ROI[name](x, box, np.zeros(1, int), 2, 1.0)
    expected = ROI[name](x.astype(np.float64), box, np.zeros(1, int), 2, 1.0)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.array, expected.array, 2e-3, 2e-3)


@pytest.mark.parametrize("name", ROI)
@pytest.mark.parametrize("n", [0, 1])
def test_without_boxes(name, n):
    x = Variable(np.ones((n, 3, 4, 5), np.float32))
    y = ROI[name](x, np.zeros((0, 4), np.float32), np.zeros(0, np.int32), (2, 3), 1.0)
    assert y.shape == (0, 3, 2, 3)
    F.sum(y).backward()
    assert x.grad.shape == x.shape and not x.grad.any()


@pytest.mark.parametrize("name", ROI)
def test_boxes_may_be_variables_and_integers(name):
    x = np.random.randn(2, 3, 6, 6)
    boxes, images = np.array([[0, 1, 4, 5], [1, 0, 5, 3]]), np.array([1, 0])
    y = ROI[name](x, Variable(boxes), Variable(images), 2, 1.0)
    expected = ROI[name](x, boxes.astype(float), images, (2, 2), 1.0)
    np.testing.assert_array_equal(y.array, expected.array)


def test_on_a_device(device):
    x = mpchain.get_device(device).send(np.random.randn(*_SHAPE).astype(np.float32))
    for function in ROI.values():
        y = function(x, _BOXES, _IMAGES, _OUTSIZE, _SCALE)
        assert y.device == mpchain.get_device(device)


@pytest.mark.parametrize("name", ["max_align", "average_align"])
def test_of_equal_elements_every_point_is_the_same(name):
    x = np.full((1, 1, 8, 8), 3.0)
    y = ROI[name](x, np.array([[1.3, 0.7, 6.2, 5.9]]), np.array([0]), (3, 2), 1.0, 3)
    np.testing.assert_allclose(y.array, 3, 1e-12)


# Each wrong input has the function, its arguments, and a part of the message.


def f(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


BOX, IMAGE = f(1, 4), np.zeros(1, np.int32)
WRONG = [
    ((f(2, 3), BOX, IMAGE, 2, 1.0), "x must be floating point with 4 axes", "(2, 3)"),
    ((f(1, 1, 2, 2, dtype=int), BOX, IMAGE, 2, 1.0), "floating point", "int64"),
    ((f(1, 1, 2, 2), f(1, 5), IMAGE, 2, 1.0), "rois must have shape (R, 4)", "(1, 5)"),
    ((f(1, 1, 2, 2), f(4), IMAGE, 2, 1.0), "rois must have shape (R, 4)", "(4,)"),
    ((f(1, 1, 2, 2), BOX, f(1), 2, 1.0), "roi_indices must be an integer per box", "float32"),
    ((f(1, 1, 2, 2), f(2, 4), IMAGE, 2, 1.0), "an integer per box", "(1,)", "(2, 4)"),
    ((f(1, 1, 2, 2), BOX, IMAGE + 1, 2, 1.0), "in one of the 1 images", "image 1"),
    ((f(1, 1, 2, 2), BOX, IMAGE, 0, 1.0), "outsize must be", "outsize: 0"),
    ((f(1, 1, 2, 2), BOX, IMAGE, (1, 2, 3), 1.0), "outsize must be", "(1, 2, 3)"),
    ((f(1, 1, 2, 2), BOX, IMAGE, 2, 0), "spatial_scale must be positive, not 0"),
]


@pytest.mark.parametrize("name", ROI)
@pytest.mark.parametrize("arguments, shown", [(a, s) for a, *s in WRONG])
def test_wrong_input(name, arguments, shown):
    with pytest.raises((InvalidType, ValueError)) as caught:
        ROI[name](*arguments)
    message = str(caught.value)
    assert message.startswith(f"roi_{name}_2d: ")
    for text in shown:
        assert text in message, message


@pytest.mark.parametrize("ratio", [0, -1, 1.5, (1, 2, 3), (1, 0)])
@pytest.mark.parametrize("name", ["max_align", "average_align"])
def test_wrong_sampling_ratio(name, ratio):
    with pytest.raises(ValueError, match=rf"^roi_{name}_2d: sampling_ratio must be .*, not "):
        ROI[name](f(1, 1, 2, 2), BOX, IMAGE, 2, 1.0, ratio)


def test_wrong_boxes_of_roi_pooling_2d():
    with pytest.raises(
        InvalidType, match=r"^roi_pooling_2d: rois must have shape \(R, 5\).*\(1, 4"
    ):
        F.roi_pooling_2d(f(1, 1, 2, 2), BOX, 2, 2, 1.0)
    with pytest.raises(ValueError, match=r"^roi_pooling_2d: .*in image 1"):
        F.roi_pooling_2d(f(1, 1, 2, 2), f(1, 5), 2, 2, 1.0)
