"""Tests im2col and col2im, patches of images, and half precision that is computed in single
precision."""

import itertools

import numpy as np
import pytest

from mpchain.utils import conv, conv_nd, imgproc
from mpchain.utils.precision import fp16_mixed_precision

random = np.random.RandomState(0)
IMAGES = random.randn(2, 3, 7, 6)


def _columns(img, ksize, stride, pad, dilate, out, value):
    """Computes the columns by definition, element by element."""
    columns = np.full((*img.shape[:2], *ksize, *out), value, img.dtype)
    for place in itertools.product(*map(range, (*ksize, *out))):
        n = len(ksize)
        at = [o * s - p + k * d for k, o, s, p, d in zip(place[:n], place[n:], stride, pad, dilate)]
        if all(0 <= i < size for i, size in zip(at, img.shape[2:])):
            columns[(..., *place)] = img[(..., *at)]
    return columns


@pytest.mark.parametrize("cover_all", [False, True])
@pytest.mark.parametrize("value", [0, -np.inf, 2.5])
@pytest.mark.parametrize(
    "kh, kw, sy, sx, ph, pw, dy, dx",
    [(3, 2, 1, 1, 0, 0, 1, 1), (3, 2, 2, 3, 1, 2, 1, 1), (2, 2, 2, 1, 0, 1, 2, 3)],
)
def test_im2col(kh, kw, sy, sx, ph, pw, dy, dx, value, cover_all):
    out = (
        conv.get_conv_outsize(7, kh, sy, ph, cover_all, dy),
        conv.get_conv_outsize(6, kw, sx, pw, cover_all, dx),
    )
    columns = conv.im2col(IMAGES, kh, kw, sy, sx, ph, pw, value, cover_all, dy, dx)
    expected = _columns(IMAGES, (kh, kw), (sy, sx), (ph, pw), (dy, dx), out, value)
    np.testing.assert_array_equal(columns, expected)
    fewer = conv.im2col_cpu(
        IMAGES, kh, kw, sy, sx, ph, pw, value, cover_all, dy, dx, out_h=1, out_w=2
    )
    np.testing.assert_array_equal(fewer, columns[..., :1, :2])
    g = random.randn(*columns.shape)
    back = conv.col2im(g, sy, sx, ph, pw, 7, 6, dy, dx)
    zeros = conv.im2col(IMAGES, kh, kw, sy, sx, ph, pw, 0, cover_all, dy, dx)
    assert back.shape == IMAGES.shape
    np.testing.assert_allclose((back * IMAGES).sum(), (g * zeros).sum(), 1e-10, 1e-10)


def test_any_number_of_axes():
    x = random.randn(2, 1, 4, 5, 3)
    columns = conv_nd.im2col_nd(x, (2, 3, 1), 1, (0, 1, 0), dilate=(1, 2, 1))
    expected = _columns(x, (2, 3, 1), (1, 1, 1), (0, 1, 0), (1, 2, 1), (3, 3, 3), 0)
    np.testing.assert_array_equal(columns, expected)
    g = random.randn(*columns.shape)
    back = conv_nd.col2im_nd(g, 1, (0, 1, 0), (4, 5, 3), dilate=(1, 2, 1))
    np.testing.assert_allclose((back * x).sum(), (g * columns).sum(), 1e-10)
    assert conv_nd.as_tuple(3, 2) == (3, 3)


def test_windows_larger_than_the_image():
    with pytest.raises(
        ValueError,
        match=r"windows of \(8, 2\) are larger than \(7, 6\) with a padding of \(0, 0\)",
    ):
        conv.im2col(IMAGES, 8, 2, 1, 1, 0, 0)


def test_oversample():
    crops = imgproc.oversample(list(IMAGES), (4, 3))
    assert crops.shape == (20, 3, 4, 3)
    for image, ten in zip(IMAGES, crops.reshape(2, 10, 3, 4, 3)):
        for crop, (i, j) in zip(ten, [(0, 0), (0, 3), (3, 0), (3, 3), (1, 1)]):
            np.testing.assert_array_equal(crop, image[:, i : i + 4, j : j + 3])
        np.testing.assert_array_equal(ten[5:], ten[:5, :, :, ::-1])


def test_pieces_larger_than_the_image():
    with pytest.raises(ValueError, match=r"crop_dims \(8, 3\) must not exceed the size \(7, 6\)"):
        imgproc.oversample(IMAGES, (8, 3))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_half_precision_is_computed_in_single(dtype):
    seen = []

    class Sum:
        @fp16_mixed_precision
        def forward(self, inputs):
            """Documented."""
            seen.extend(x.dtype for x in inputs if x is not None)
            return inputs[0] + inputs[1], None, np.arange(2)

    a, b = np.full(3, 2048, dtype), np.ones(3, dtype)
    y, nothing, integers = Sum().forward((a, b, None))
    assert y.dtype == dtype and nothing is None and integers.dtype.kind == "i"
    assert seen == [np.float32 if dtype == np.float16 else dtype] * 2
    assert Sum.forward.__doc__ == "Documented."


def test_half_and_wider_inputs_give_the_wider():
    @fp16_mixed_precision
    def forward(self, inputs):
        return (inputs[0] * inputs[1],)

    (y,) = forward(None, (np.ones(2, np.float16), np.ones(2, np.float32)))
    assert y.dtype == np.float32
