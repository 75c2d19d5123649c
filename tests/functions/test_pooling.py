"""Tests pooling and unpooling that are not in test_table.py."""

import math

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

pool = torch.nn.functional
_PLACES = np.array([[[[0, 3], [2, 1]], [[1, 1], [3, 0]]]])


def _torch_unpooling(x, ksize, stride, pad, outsize):
    """Computes unpooling, the adjoint of a sum of windows, as PyTorch's transposed convolution."""
    c, ndim = x.shape[1], x.ndim - 2
    W = torch.ones(c, 1, *(ksize,) * ndim, dtype=x.dtype)
    transposed = (pool.conv_transpose1d, pool.conv_transpose2d, pool.conv_transpose3d)[ndim - 1]
    y = transposed(x, W, stride=stride, padding=0, groups=c)
    grown = [m + 2 * pad for m in outsize]
    y = pool.pad(y, [v for m, g in zip(y.shape[:1:-1], grown[::-1]) for v in (0, max(g - m, 0))])
    return y[(..., *(slice(pad, pad + m) for m in outsize))]


def _torch_pyramid(x, height):
    """Uses windows of equal size, with equal padding before and after, or one element less
    before."""
    levels = []
    for n in (2**level for level in range(height)):
        ksize = [math.ceil(size / n) for size in x.shape[2:]]
        pad = [(k * n - size) // 2 for k, size in zip(ksize, x.shape[2:])]
        after = [k * n - size - p for k, size, p in zip(ksize, x.shape[2:], pad)]
        padded = pool.pad(x, (pad[1], after[1], pad[0], after[0]), value=-math.inf)
        levels.append(pool.max_pool2d(padded, ksize).reshape(len(x), -1, 1, 1))
    return torch.cat(levels, 1)


def _torch_upsampling(x, places, ksize, outsize):
    rows, columns = np.indices(places.shape)[2:] * ksize
    flat = torch.as_tensor((rows + places // ksize) * outsize[1] + columns + places % ksize)
    return pool.max_unpool2d(x, flat, ksize, output_size=outsize)


TABLE = [
    row(
        "max_pooling_1d",
        lambda x: F.max_pooling_1d(x, 3, 2, 1, cover_all=False),
        lambda x: pool.max_pool1d(x, 3, 2, 1),
        (2, 3, 7),
        smooth=False,
    ),
    row(
        "max_pooling_3d",
        lambda x: F.max_pooling_3d(x, 2),
        lambda x: pool.max_pool3d(x, 2, ceil_mode=True),
        (1, 2, 3, 4, 2),
        smooth=False,
    ),
    row(
        "average_pooling_1d",
        lambda x: F.average_pooling_1d(x, 3, 2, 1),
        lambda x: pool.avg_pool1d(x, 3, 2, 1),
        (2, 3, 7),
    ),
    row(
        "average_pooling_1d pad_value",
        lambda x: F.average_pooling_1d(x, 3, 2, 1, pad_value=None),
        lambda x: pool.avg_pool1d(x, 3, 2, 1, count_include_pad=False),
        (2, 3, 7),
    ),
    row(
        "average_pooling_3d",
        lambda x: F.average_pooling_3d(x, 2, 1, 1),
        lambda x: pool.avg_pool3d(x, 2, 1, 1),
        (1, 2, 3, 2, 2),
    ),
    row(
        "unpooling_1d",
        lambda x: F.unpooling_1d(x, 3, 2),
        lambda x: _torch_unpooling(x, 3, 2, 0, [6]),
        (2, 2, 3),
    ),
    row(
        "unpooling_2d",
        lambda x: F.unpooling_2d(x, 2),
        lambda x: _torch_unpooling(x, 2, 2, 0, [3, 5]),
        (2, 1, 2, 3),
    ),
    row(
        "unpooling_2d pad",
        lambda x: F.unpooling_2d(x, 3, 2, 1, cover_all=False),
        lambda x: _torch_unpooling(x, 3, 2, 1, [3, 5]),
        (2, 1, 2, 3),
    ),
    row(
        "unpooling_2d outsize",
        lambda x: F.unpooling_2d(x, 2, outsize=(4, 5)),
        lambda x: _torch_unpooling(x, 2, 2, 0, [4, 5]),
        (2, 1, 2, 3),
    ),
    row(
        "unpooling_2d outsize beyond",
        lambda x: F.unpooling_2d(x, 2, 3, outsize=(6, 8), cover_all=False),
        lambda x: _torch_unpooling(x, 2, 3, 0, [6, 8]),
        (1, 2, 2, 3),
    ),
    row(
        "unpooling_3d",
        lambda x: F.unpooling_3d(x, 2, outsize=4),
        lambda x: _torch_unpooling(x, 2, 2, 0, [4, 4, 4]),
        (1, 2, 2, 2, 2),
    ),
    row(
        "unpooling_nd",
        lambda x: F.unpooling_nd(x, (3,), (1,), (1,)),
        lambda x: _torch_unpooling(x, 3, 1, 1, [4]),
        (2, 2, 4),
    ),
    row(
        "upsampling_2d",
        lambda x: F.upsampling_2d(x, x.device.send(_PLACES), 2, outsize=(4, 4)),
        lambda x: _torch_upsampling(x, _PLACES, 2, (4, 4)),
        (1, 2, 2, 2),
    ),
    row(
        "spatial_pyramid_pooling_2d",
        lambda x: F.spatial_pyramid_pooling_2d(x, 2, "max"),
        lambda x: _torch_pyramid(x, 2),
        (2, 2, 3, 4),
        smooth=False,
    ),
    row(
        "spatial_pyramid_pooling_2d three levels",
        lambda x: F.spatial_pyramid_pooling_2d(x, 3, pooling="max"),
        lambda x: _torch_pyramid(x, 3),
        (1, 1, 7, 8),
        smooth=False,
    ),
    row(
        "adaptive_average_pooling_2d",
        lambda x: F.adaptive_average_pooling_2d(x, (3, 4)),
        lambda x: pool.adaptive_avg_pool2d(x, (3, 4)),
        (2, 2, 5, 7),
    ),
    row(
        "adaptive_average_pooling_2d None",
        lambda x: F.adaptive_average_pooling_2d(x, (None, 3)),
        lambda x: pool.adaptive_avg_pool2d(x, (None, 3)),
        (2, 2, 3, 2),
    ),
    row(
        "adaptive_average_pooling_nd",
        lambda x: F.adaptive_average_pooling_nd(x, 2),
        lambda x: pool.adaptive_avg_pool3d(x, 2),
        (1, 2, 3, 4, 2),
    ),
    row(
        "adaptive_max_pooling_2d",
        lambda x: F.adaptive_max_pooling_2d(x, (3, 4)),
        lambda x: pool.adaptive_max_pool2d(x, (3, 4)),
        (2, 2, 5, 7),
        smooth=False,
    ),
    row(
        "adaptive_max_pooling_nd",
        lambda x: F.adaptive_max_pooling_nd(x, (2, 3, 1)),
        lambda x: pool.adaptive_max_pool3d(x, (2, 3, 1)),
        (1, 2, 3, 4, 2),
        smooth=False,
    ),
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    # Only derivatives use this function.
    assert uncovered(TABLE, "pooling") <= {"take_from_windows"}


def test_upsampling_puts_maxima_back(device):
    x = mpchain.get_device(device).send(np.random.randn(2, 3, 5, 6).astype(np.float32))
    y, places = F.max_pooling_2d(x, 2, return_indices=True)
    z = F.upsampling_2d(y, places, 2, outsize=(5, 6))
    again, _ = F.max_pooling_2d(np.float32(100) + z, 2, return_indices=True)
    assert z.shape == x.shape and bool(((z.array == 0) | (z.array == x)).all())
    assert int((z.array != 0).sum()) == y.size == again.size


@pytest.mark.parametrize("outsize", [1, 3, (2, 5), (7, None)])
def test_indices_of_adaptive_maxima(outsize):
    x = np.random.randint(0, 4, (2, 3, 7, 6)).astype(np.float64)  # some elements are equal
    y, indices = F.adaptive_max_pooling_2d(x, outsize, return_indices=True)
    expected, places = pool.adaptive_max_pool2d(torch.as_tensor(x), outsize, return_indices=True)
    np.testing.assert_array_equal(y.array, expected)
    np.testing.assert_array_equal(indices, places)


def test_not_a_number_is_the_maximum():
    x = np.array([[[[1.0, np.nan], [2.0, 3.0]]]])
    assert np.isnan(F.adaptive_max_pooling_2d(x, 1).array.item())


def test_windows_of_padding_only():
    # Four columns of bins cover five elements, so the last window contains only padding.
    x = Variable(np.ones((1, 1, 4, 5)))
    y = F.spatial_pyramid_pooling_2d(x, 3, "max")
    y.grad = np.ones_like(y.array)
    y.backward()
    assert np.isneginf(y.array).sum() == 4 and x.grad.sum() == 1 + 4 + 12
    # There are fewer elements than bins, but each bin still has a value.
    assert F.spatial_pyramid_pooling_2d(np.ones((1, 2, 3, 1)), 3, "max").shape == (1, 42, 1, 1)


def test_empty_batches():
    images = np.zeros((0, 2, 4, 4), np.float32)
    assert F.adaptive_average_pooling_2d(images, 3).shape == (0, 2, 3, 3)
    assert F.adaptive_max_pooling_2d(images, 3).shape == (0, 2, 3, 3)
    assert F.unpooling_2d(images, 2).shape == (0, 2, 7, 7)
    assert F.spatial_pyramid_pooling_2d(images, 2, "max").shape == (0, 10, 1, 1)
    places = np.zeros(images.shape, np.int32)
    assert F.upsampling_2d(images, places, 2, cover_all=False).shape == (0, 2, 8, 8)
    assert F.max_pooling_1d(images[:, 0], 2).shape == (0, 4, 2)


# Each wrong input has the function, its arguments, and a part of the message.


def f(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


IMAGE = f(1, 2, 3, 4)
WRONG = [
    *[
        (f"{kind}_pooling_1d", (IMAGE, 2), "x must have 3 axes", "(1, 2, 3, 4)")
        for kind in ("max", "average")
    ],
    *[
        (f"{kind}_pooling_3d", (IMAGE, 2), "x must have 5 axes", "(1, 2, 3, 4)")
        for kind in ("max", "average")
    ],
    ("max_pooling_1d", (f(1, 2, 3), 5, 1, 0, False), "output size (-1,) must be positive"),
    ("average_pooling_1d", (f(1, 2, 3), 2, 2, 0, 1), "pad_value must be 0 or None", "1"),
    ("unpooling_1d", (IMAGE, 2), "x must have 3 axes", "(1, 2, 3, 4)"),
    ("unpooling_2d", (f(2, 3), 2), "x must have 4 axes", "(2, 3)"),
    ("unpooling_2d", (IMAGE.astype(int), 2), "x must be floating point", "int64"),
    ("unpooling_2d", (IMAGE, 2, None, 0, (9, 9)), "outsize (9, 9) must give (3, 4)", "not (5, 5)"),
    ("unpooling_2d", (IMAGE, 2, 0), "stride must be", "stride: 0"),
    ("unpooling_2d", (IMAGE, 1, 1, 2), "output size (-1, 0) must be positive", "(1, 2, 3, 4)"),
    ("unpooling_3d", (IMAGE, 2), "x must have 5 axes", "(1, 2, 3, 4)"),
    ("unpooling_nd", (f(2, 3), 2), "x must have 3 axes or more", "(2, 3)"),
    ("upsampling_2d", (f(2, 3), f(2, 3), 2), "x must have 4 axes", "(2, 3)"),
    ("upsampling_2d", (IMAGE, IMAGE, 2), "indexes must be integers", "float32"),
    ("upsampling_2d", (IMAGE, f(1, 2, 3, 3, dtype=int), 2), "of the shape of x", "(1, 2, 3, 3)"),
    ("spatial_pyramid_pooling_2d", (IMAGE, 2), "pooling must be 'max', not None"),
    ("spatial_pyramid_pooling_2d", (f(2, 3), 2, "max"), "with 4 axes", "(2, 3)"),
    ("spatial_pyramid_pooling_2d", (IMAGE, 0, "max"), "pyramid_height must be positive", "0"),
    ("adaptive_average_pooling_2d", (f(2, 3, 4), 2), "x must have 4 axes", "(2, 3, 4)"),
    ("adaptive_average_pooling_nd", (f(2, 3), 2), "(N, C, d1, ...)", "(2, 3)"),
    ("adaptive_average_pooling_nd", (IMAGE, (2, 2, 2)), "outsize must be one integer or 2"),
    ("adaptive_max_pooling_2d", (f(2, 3, 4), 2), "x must have 4 axes", "(2, 3, 4)"),
    ("adaptive_max_pooling_nd", (IMAGE.astype(int), 2), "floating point", "int64"),
    ("adaptive_max_pooling_nd", (f(1, 2, 0), 2), "axes of x must not be empty", "(1, 2, 0)"),
]


@pytest.mark.parametrize("name, arguments, shown", [(n, a, s) for n, a, *s in WRONG])
def test_wrong_input(name, arguments, shown):
    with pytest.raises((InvalidType, ValueError)) as caught:
        getattr(F, name)(*arguments)
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    for text in shown:
        assert text in message, message
