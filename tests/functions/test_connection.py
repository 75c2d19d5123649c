"""Tests products of inputs with weights that are not in test_table.py."""

import functools

import numpy as np
import pytest

import mpchain.functions as F
from mpchain import Variable
from mpchain.functions import connection
from mpchain.kernels.window import Window
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

conv2d = torch.nn.functional.conv2d


def _torch_depthwise(x, W, b, **options):
    rows = [conv2d(x[:, c : c + 1], W[:, c : c + 1], **options) for c in range(x.shape[1])]
    return torch.cat(rows, 1) + b[:, None, None]


def _torch_local(x, W, b=None, stride=(1, 1)):
    o, h, w, _, kh, kw = W.shape
    places = []
    for i in range(h):
        for j in range(w):
            u, v = i * stride[0], j * stride[1]
            places.append(
                torch.einsum("nckl,ockl->no", x[:, :, u : u + kh, v : v + kw], W[:, i, j])
            )
    y = torch.stack(places, 2).reshape(len(x), o, h, w)
    return y if b is None else y + b


def _torch_bilinear(e1, e2, W, V1=None, V2=None, b=None):
    e1, e2 = e1.flatten(1), e2.flatten(1)
    y = torch.nn.functional.bilinear(e1, e2, W.permute(2, 0, 1), b)
    return y if V1 is None else y + e1 @ V1 + e2 @ V2


def _torch_shift(x, ksize, dilate):
    """Computes shift as a depthwise convolution in which one weight of each channel is one."""
    (kh, kw), (dy, dx) = ksize, dilate
    n, channels = kh * kw, x.shape[1]
    W = torch.zeros(channels, 1, kh, kw)
    for c in range(channels):
        group = min(c // (channels // n), n - 1)
        # The group of the center and the last group exchange their positions.
        group = {n // 2: n - 1, n - 1: n // 2}.get(group, group)
        W[c, 0, kh - 1 - group // kw, kw - 1 - group % kw] = 1
    pad = (kh // 2 * dy, kw // 2 * dx)
    return conv2d(x, W.double(), padding=pad, dilation=dilate, groups=channels)


def _torch_deformable(x, offset, W, b=None, stride=(1, 1), pad=(0, 0)):
    """Sums over the window; each element is interpolated from the four pixels around it."""
    n, _, h, w = x.shape
    kh, kw = W.shape[2:]
    out_h, out_w = offset.shape[2:]
    offset = offset.reshape(n, 2, kh, kw, out_h, out_w)
    y = 0
    for k in range(kh):
        for l in range(kw):
            rows = torch.arange(out_h)[:, None] * stride[0] - pad[0] + k + offset[:, 1, k, l]
            columns = torch.arange(out_w) * stride[1] - pad[1] + l + offset[:, 0, k, l]
            sampled = 0
            for i in (rows.floor().long(), rows.floor().long() + 1):
                for j in (columns.floor().long(), columns.floor().long() + 1):
                    weight = (1 - (rows - i).abs()) * (1 - (columns - j).abs())
                    weight = weight * ((i >= 0) & (i < h) & (j >= 0) & (j < w))
                    batch = torch.arange(n)[:, None, None]
                    pixels = x[batch, :, i.clamp(0, h - 1), j.clamp(0, w - 1)]
                    sampled = sampled + pixels * weight[..., None]
            y = y + torch.einsum("nhwc,oc->nohw", sampled, W[:, :, k, l])
    return y if b is None else y + b[:, None, None]


def _deformable_row(name, shapes, places, **options):
    """Returns a row whose offsets avoid the centers of pixels, where the derivative has kinks."""
    fraction = np.random.RandomState(2).uniform(0.2, 0.8, shapes[1])
    whole = np.random.RandomState(3).randint(-places, places, shapes[1])

    def ours(x, offset, *parameters):
        start = offset.device.send((fraction + whole).astype(x.dtype))
        moved = F.tanh(offset) * 0.15 + start
        return F.deformable_convolution_2d_sampler(x, moved, *parameters, **options)

    def theirs(x, offset, *parameters):
        moved = torch.tanh(offset) * 0.15 + torch.tensor(fraction + whole)
        return _torch_deformable(x, moved, *parameters, **options)

    tolerance = {np.float16: 5e-2, np.float32: 1e-4}
    return row(name, ours, theirs, *shapes, tolerance=tolerance)


_WINDOW = Window((2, 3), (1, 2), (1, 0), (1, 1), 1, (3, 5), (4, 2))
TABLE = [
    row(
        "convolution_with_bias",
        lambda x, W, b: connection._convolution_with_bias(x, W, b, _WINDOW),
        functools.partial(conv2d, stride=(1, 2), padding=(1, 0)),
        (2, 2, 3, 5),
        (3, 2, 2, 3),
        (3,),
    ),
    row(
        "depthwise_convolution_2d",
        functools.partial(F.depthwise_convolution_2d, stride=(1, 2), pad=1),
        functools.partial(_torch_depthwise, stride=(1, 2), padding=1),
        (2, 2, 3, 4),
        (3, 2, 2, 3),
        (6,),
    ),
    row(
        "dilated_convolution_2d",
        functools.partial(F.dilated_convolution_2d, stride=1, pad=1, dilate=(2, 1)),
        functools.partial(conv2d, stride=1, padding=1, dilation=(2, 1)),
        (2, 2, 5, 3),
        (3, 2, 2, 3),
        (3,),
    ),
    row(
        "local_convolution_2d",
        functools.partial(F.local_convolution_2d, stride=(1, 2)),
        functools.partial(_torch_local, stride=(1, 2)),
        (2, 2, 3, 5),
        (3, 2, 2, 2, 2, 2),
        (3, 2, 2),
    ),
    row(
        "local_convolution_2d without bias",
        F.local_convolution_2d,
        _torch_local,
        (2, 2, 3, 3),
        (2, 2, 1, 2, 2, 3),
    ),
    row(
        "bilinear",
        F.bilinear,
        _torch_bilinear,
        (2, 3),
        (2, 2),
        (3, 2, 4),
        (3, 4),
        (2, 4),
        (4,),
    ),
    row("bilinear alone", F.bilinear, _torch_bilinear, (2, 2, 2), (2, 3, 1), (4, 3, 2)),
    row("shift", F.shift, lambda x: _torch_shift(x, (3, 3), (1, 1)), (2, 20, 3, 4)),
    row(
        "shift dilated",
        functools.partial(F.shift, ksize=(1, 3), dilate=(1, 2)),
        lambda x: _torch_shift(x, (1, 3), (1, 2)),
        (1, 5, 2, 5),
    ),
    row(
        "shift out of sight",
        functools.partial(F.shift, ksize=(3, 1), dilate=3),
        lambda x: _torch_shift(x, (3, 1), (3, 3)),
        (1, 3, 2, 2),
    ),
    _deformable_row(
        "deformable_convolution_2d_sampler",
        [(2, 2, 3, 4), (2, 8, 4, 2), (3, 2, 2, 2), (3,)],
        2,
        stride=(1, 2),
        pad=(1, 0),
    ),
    _deformable_row(
        "deformable_convolution_2d_sampler of one pixel",
        [(2, 2, 1, 1), (2, 2, 1, 1), (3, 2, 1, 1)],
        1,
    ),
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_shift_is_in_the_table():
    in_other_tables = {"linear", "linear_with_bias"}
    in_other_tables |= {"convolution_output", "convolution_input", "convolution_filter"}
    assert uncovered(TABLE, "connection", "deformable") <= in_other_tables


@pytest.mark.parametrize("pad, stride", [(0, 1), (1, 2), ((2, 0), (1, 3))])
def test_a_deformable_convolution_that_does_not_move_is_a_convolution(pad, stride):
    x, W = np.random.uniform(-1, 1, (2, 3, 5, 6)), np.random.uniform(-1, 1, (4, 3, 2, 3))
    expected = F.convolution_2d(x, W, None, stride, pad).array
    offset = np.zeros((2, 12, *expected.shape[2:]))
    y = F.deformable_convolution_2d_sampler(x, offset, W, None, stride, pad)
    np.testing.assert_allclose(y.array, expected, 1e-12, 1e-12)


def test_deformable_samples_far_outside_are_zero():
    x, W = Variable(np.ones((1, 1, 3, 3), "f")), np.ones((1, 1, 1, 1), "f")
    offset = Variable(np.full((1, 2, 3, 3), 1e4, "f"))
    y = F.deformable_convolution_2d_sampler(x, offset, W)
    F.sum(y).backward()
    for zero in (y.array, x.grad, offset.grad):
        np.testing.assert_array_equal(zero, np.zeros_like(zero))


@pytest.mark.parametrize(
    "function, shapes, expected",
    [
        (F.bilinear, [(0, 2), (0, 3), (2, 3, 4)], (0, 4)),
        (F.depthwise_convolution_2d, [(0, 2, 3, 3), (1, 2, 2, 2)], (0, 2, 2, 2)),
        (F.local_convolution_2d, [(0, 2, 3, 3), (1, 2, 2, 2, 2, 2)], (0, 1, 2, 2)),
        (F.shift, [(0, 9, 3, 3)], (0, 9, 3, 3)),
        (
            F.deformable_convolution_2d_sampler,
            [(0, 2, 3, 3), (0, 8, 2, 2), (1, 2, 2, 2)],
            (0, 1, 2, 2),
        ),
    ],
)
def test_an_empty_batch(function, shapes, expected):
    xs = [Variable(np.ones(shape, "f")) for shape in shapes]
    y = function(*xs)
    assert y.shape == expected
    F.sum(y).backward()
    for x in xs:
        np.testing.assert_array_equal(x.grad, np.zeros(x.shape))


def test_half_precision_bilinear_sums_in_single():
    e1, e2 = np.ones((1, 64), np.float16), np.ones((1, 64), np.float16)
    y = F.bilinear(e1, e2, np.ones((64, 64, 1), np.float16))
    assert y.array == 4096 and y.dtype == np.float16


def f(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def _deformable(x=(1, 2, 3, 3), offset=(1, 8, 2, 2), W=(3, 2, 2, 2), b=None, stride=1):
    return f(*x), f(*offset), f(*W), b, stride


WRONG = [
    ("dilated_convolution_2d", (f(2, 3, 4), f(2, 3, 1)), "x must have 4 axes", "(2, 3, 4)"),
    ("dilated_convolution_2d", (f(1, 2, 4, 4), f(2, 3, 1, 1)), "x has 2 channels but W expects 3"),
    ("depthwise_convolution_2d", (f(1, 2, 4), f(1, 2, 1)), "must have 4 axes", "(1, 2, 4)"),
    (
        "depthwise_convolution_2d",
        (f(1, 2, 4, 4), f(1, 3, 1, 1)),
        "as many channels",
        "(1, 3, 1, 1)",
    ),
    ("depthwise_convolution_2d", (f(1, 2, 4, 4), f(1, 2, 1, 1), f(3)), "b must have one", "(3,)"),
    ("depthwise_convolution_2d", (f(1, 2, 4, 4), f(1, 2, 9, 1)), "must be positive"),
    ("depthwise_convolution_2d", (f(1, 2, 4, 4, dtype=int), f(1, 2, 1, 1)), "floating", "int64"),
    ("local_convolution_2d", (f(1, 2, 4, 4), f(1, 2, 1, 1)), "W (O, out_h, out_w, C, kh, kw)"),
    ("local_convolution_2d", (f(1, 2, 4, 4), f(1, 4, 4, 2, 2, 2)), "the (3, 3) windows in x"),
    ("local_convolution_2d", (f(1, 2, 4, 4, dtype=int), f(1, 3, 3, 2, 2, 2)), "floating", "int64"),
    (
        "local_convolution_2d",
        (f(1, 2, 4, 4), f(1, 3, 3, 2, 2, 2), f(1)),
        "first three axes",
        "(1,)",
    ),
    ("bilinear", (f(2, 3), f(1, 3), f(3, 3, 1)), "same number of rows", "(1, 3)"),
    ("bilinear", (f(2, 3), f(2, 4), f(3, 3, 1)), "W must be (J, K, L)", "(3, 3, 1)"),
    ("bilinear", (f(2, 3), f(2, 3, dtype=int), f(3, 3, 1)), "floating point", "int64"),
    ("bilinear", (f(2, 3), f(2, 4), f(3, 4, 1), f(3, 1), f(4, 1), f(2)), "V1, V2 and b", "(2,)"),
    ("shift", (f(2, 9, 3),), "with 4 axes", "(2, 9, 3)"),
    ("shift", (f(2, 9, 3, 3, dtype=int),), "floating", "int64"),
    ("shift", (f(2, 8, 3, 3),), "x must have 9 channels or more", "(2, 8, 3, 3)"),
    ("deformable_convolution_2d_sampler", _deformable(x=(2, 3, 3)), "(N, C, H, W)", "(2, 3, 3)"),
    ("deformable_convolution_2d_sampler", _deformable(x=(1, 1, 3, 3)), "(O, C, kh, kw)"),
    ("deformable_convolution_2d_sampler", _deformable(stride=2), "shape (1, 8, 1, 1)"),
    ("deformable_convolution_2d_sampler", _deformable(b=f(2)), "one element per output", "(2,)"),
    ("deformable_convolution_2d_sampler", _deformable(W=(3, 2, 4, 4)), "must be positive"),
    (
        "deformable_convolution_2d_sampler",
        (f(1, 2, 3, 3), f(1, 8, 2, 2, dtype=np.float64), f(3, 2, 2, 2)),
        "offset must not have a wider dtype than W (cast it by functions.cast(offset, 'float32'))",
        "float64",
    ),
]


@pytest.mark.parametrize(
    "name, arguments, shown",
    [(n, a, s) for n, a, *s in WRONG],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_wrong_input(name, arguments, shown):
    with pytest.raises(InvalidType) as caught:
        getattr(F, name)(*arguments)
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    for text in shown:
        assert text in message, message


@pytest.mark.parametrize(
    "options, message",
    [
        ({"ksize": 2}, "ksize must be odd and positive, but is 2"),
        ({"ksize": (3, 4)}, r"ksize must be odd and positive, but is \(3, 4\)"),
        ({"ksize": -1}, "ksize must be odd and positive, but is -1"),
        ({"dilate": (1, 0)}, r"dilate must not be zero, but is \(1, 0\)"),
    ],
)
def test_options_of_shift(options, message):
    with pytest.raises(ValueError, match=f"shift: {message}"):
        F.shift(f(1, 12, 2, 2), **options)


def test_part_of_the_linear_terms_of_bilinear():
    with pytest.raises(ValueError, match=r"bilinear: .* together, not only V1 and b"):
        F.bilinear(f(2, 3), f(2, 3), f(3, 3, 1), V1=f(3, 1), b=f(1))
