"""Tests Caffe's networks, from files that an encoder in the tests wrote, and from a file that
Chainer wrote."""

import pathlib

import numpy as np
import pytest

import mpchain
from mpchain.exporters.caffe_function import CaffeFunction
from tests.links.caffe_writer import (
    blob,
    floating,
    inside,
    integer,
    layer,
    old_blob,
    old_layer,
    varint,
)
from tests.reference import torch

pytestmark = pytest.mark.slow

DATA = pathlib.Path(__file__).parent / "data"
random = np.random.RandomState(0)
X = random.randn(2, 4, 7, 6).astype(np.float32)


def _array(*shape):
    return random.uniform(0.5, 1.5, shape).astype(np.float32)


def _load(tmp_path, *layers):
    path = tmp_path / "net.caffemodel"
    path.write_bytes(inside(1, "test") + b"".join(layers))
    return CaffeFunction(str(path))


def _run(net, outputs=("y",), **inputs):
    with mpchain.using_config("train", False):
        results = net(inputs or {"x": X}, list(outputs))
    return [y.array for y in results]


def _tensor(x):
    return torch.from_numpy(np.ascontiguousarray(x))


def _windows(kernel, stride, pad):
    pairs = zip((11, 12, 13, 14, 9, 10), (*kernel, *stride, *pad))
    return b"".join(integer(number, value) for number, value in pairs)


W, B = _array(6, 2, 3, 2), _array(6)
W_BACK, B_BACK = _array(4, 3, 2, 3), _array(6)
W_INNER, B_INNER = _array(5, 4 * 7 * 6), _array(5)
MEAN, VAR = _array(4), _array(4)
SCALE, SHIFT = _array(4), _array(4)
LABELS = np.array([1, 3], np.int32)

# Each row has the layer's type, its further fields, and a function that computes the expected
# result from X.
LAYERS = {
    "convolution with two groups": (
        "Convolution",
        [
            inside(106, integer(1, 6), _windows((3, 2), (2, 1), (1, 0)), integer(5, 2)),
            blob(7, W),
            blob(7, B),
        ],
        lambda x: torch.conv2d(x, _tensor(W), _tensor(B), (2, 1), (1, 0), groups=2),
    ),
    "convolution without bias, dilated": (
        "Convolution",
        [
            inside(
                106,
                *(integer(1, 6), integer(2, 0), integer(4, 3), integer(4, 2), integer(18, 2)),
                integer(5, 2),
            ),
            blob(7, W),
        ],
        lambda x: torch.conv2d(x, _tensor(W), dilation=2, groups=2),
    ),
    "transposed convolution": (
        "Deconvolution",
        [
            inside(106, integer(1, 6), _windows((2, 3), (2, 2), (0, 1)), integer(5, 2)),
            blob(7, W_BACK),
            blob(7, B_BACK),
        ],
        lambda x: torch.conv_transpose2d(x, _tensor(W_BACK), _tensor(B_BACK), 2, (0, 1), groups=2),
    ),
    "inner product": (
        "InnerProduct",
        [inside(117, integer(1, 5)), blob(7, W_INNER), blob(7, B_INNER)],
        lambda x: x.flatten(1) @ _tensor(W_INNER).T + _tensor(B_INNER),
    ),
    "inner product, transposed": (
        "InnerProduct",
        [inside(117, integer(1, 5), integer(2, 0), integer(6, 1)), blob(7, W_INNER.T)],
        lambda x: x.flatten(1) @ _tensor(W_INNER).T,
    ),
    "inner product of double precision": (
        "InnerProduct",
        [inside(117, integer(1, 5), integer(2, 0)), blob(7, W_INNER, "d")],
        lambda x: x.flatten(1) @ _tensor(W_INNER).T,
    ),
    "batch normalization": (
        "BatchNorm",
        [
            inside(139, integer(1, 1), floating(3, 1e-3)),
            blob(7, MEAN * 2),
            blob(7, VAR * 2),
            blob(7, np.array([2.0])),
        ],
        lambda x: torch.batch_norm(
            x, None, None, _tensor(MEAN), _tensor(VAR), False, 0, 1e-3, False
        ),
    ),
    "scale": (
        "Scale",
        [inside(142, integer(4, 1)), blob(7, SCALE), blob(7, SHIFT)],
        lambda x: x * _tensor(SCALE)[:, None, None] + _tensor(SHIFT)[:, None, None],
    ),
    "scale without shift": (
        "Scale",
        [blob(7, SCALE)],
        lambda x: x * _tensor(SCALE)[:, None, None],
    ),
    "rectifier": ("ReLU", [], torch.relu),
    "leaky rectifier": (
        "ReLU",
        [inside(123, floating(1, 0.25))],
        lambda x: torch.nn.functional.leaky_relu(x, 0.25),
    ),
    "sigmoid": ("Sigmoid", [], torch.sigmoid),
    "tanh": ("TanH", [], torch.tanh),
    "softmax": ("Softmax", [], lambda x: x.softmax(1)),
    "softmax along another axis": (
        "Softmax",
        [inside(125, integer(2, 2))],
        lambda x: x.softmax(2),
    ),
    "dropout at inference": ("Dropout", [inside(108, floating(1, 0.9))], lambda x: x),
    "normalization across channels": (
        "LRN",
        [inside(118, integer(1, 3), floating(2, 0.5), floating(3, 0.7), floating(5, 2.0))],
        lambda x: torch.nn.functional.local_response_norm(x, 3, 0.5, 0.7, 2.0),
    ),
    "reshape": (
        "Reshape",
        [inside(133, inside(1, inside(1, varint(0), varint(2), varint(-1))))],
        lambda x: x.reshape(2, 2, -1),
    ),
    "flatten": ("Flatten", [], lambda x: x.flatten(1)),
    "split": ("Split", [], lambda x: x),
    "global average": (
        "Pooling",
        [inside(121, integer(1, 1), integer(12, 1))],
        lambda x: x.mean((2, 3), keepdim=True),
    ),
    "global maximum": (
        "Pooling",
        [inside(121, integer(12, 1))],
        lambda x: x.amax((2, 3), keepdim=True),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(tmp_path, name):
    kind, parts, expected = LAYERS[name]
    (y,) = _run(_load(tmp_path, layer("l", kind, ["x"], ["y"], *parts)))
    expected = expected(_tensor(X)).numpy()
    assert y.shape == expected.shape and y.dtype == np.float32
    np.testing.assert_allclose(y, expected, 2e-5, 2e-5)


POOLINGS = [
    (k, s, p, size)
    for k in (2, 3)
    for s in (1, 2, 3)
    for p in (0, 1)
    for size in (5, 6, 7, 8)
    if p < k
]


def _pooled(x, k, s, p, average, ceil=True):
    """Computes pooling by loops: sizes are rounded up if ``ceil``, and means are over the padded
    image."""
    size = x.shape[2]
    n = -(-(size + 2 * p - k) // s) + 1 if ceil else (size + 2 * p - k) // s + 1
    n -= (n - 1) * s >= size + p
    y = np.zeros((*x.shape[:2], n, n))
    for i, j in np.ndindex(n, n):
        (top, bottom), (left, right) = (
            (at * s - p, min(at * s - p + k, size + p)) for at in (i, j)
        )
        part = x[:, :, max(top, 0) : bottom, max(left, 0) : right]
        area = (bottom - top) * (right - left)
        y[:, :, i, j] = part.sum((2, 3)) / area if average else part.max((2, 3))
    return y


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("k, s, p, size", POOLINGS)
def test_pooling(tmp_path, k, s, p, size, average):
    x = random.randn(2, 3, size, size).astype(np.float32)
    for ceil in (True, False):
        fields = (integer(1, average), integer(2, k), integer(3, s), integer(4, p))
        parts = inside(121, *fields, integer(13, 1 - ceil))
        net = _load(tmp_path, layer("l", "Pooling", ["x"], ["y"], parts))
        (y,) = _run(net, x=x)
        expected = _pooled(x, k, s, p, average, ceil)
        assert y.shape == expected.shape
        np.testing.assert_allclose(y, expected, 1e-5, 1e-5)


@pytest.mark.parametrize(
    "parts, expected",
    [
        ([], lambda a, b: a + b),
        ([inside(110, integer(1, 0))], lambda a, b: a * b),
        ([inside(110, integer(1, 2))], np.maximum),
        ([inside(110, floating(2, 2.0), floating(2, -1.0))], lambda a, b: 2 * a - b),
        ([inside(110, inside(2, np.array([2, -1], "<f4").tobytes()))], lambda a, b: 2 * a - b),
    ],
)
def test_eltwise(tmp_path, parts, expected):
    net = _load(tmp_path, layer("l", "Eltwise", ["a", "b"], ["y"], *parts))
    a, b = X, random.randn(*X.shape).astype(np.float32)
    np.testing.assert_allclose(_run(net, a=a, b=b)[0], expected(a, b), 1e-6)


def test_concat_and_slice(tmp_path):
    net = _load(
        tmp_path,
        layer("c", "Concat", ["x", "x"], ["joined"]),
        layer("s", "Slice", ["joined"], ["a", "b", "c"], inside(126, integer(2, 1), integer(2, 6))),
        layer("h", "Slice", ["x"], ["top", "rest"], inside(126, integer(3, 2), integer(2, 3))),
        layer("equal", "Slice", ["x"], ["first", "second"]),
    )
    joined, a, b, c, top, rest, first, second = _run(
        net, ["joined", "a", "b", "c", "top", "rest", "first", "second"]
    )
    twice = np.concatenate([X, X], 1)
    np.testing.assert_array_equal(joined, twice)
    for found, expected in zip((a, b, c), np.split(twice, [1, 6], 1)):
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip((top, rest), np.split(X, [3], 2)):
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip((first, second), np.split(X, 2, 1)):
        np.testing.assert_array_equal(found, expected)


def test_the_loss(tmp_path):
    net = _load(tmp_path, layer("l", "SoftmaxWithLoss", ["x", "t"], ["loss"]))
    scores = X[:, :, 0, 0]
    (loss,) = _run(net, ["loss"], x=scores, t=LABELS)
    expected = torch.nn.functional.cross_entropy(_tensor(scores), _tensor(LABELS).long())
    np.testing.assert_allclose(loss, expected.numpy(), 1e-6)


def test_a_scale_that_is_an_input(tmp_path):
    net = _load(tmp_path, layer("l", "Scale", ["x", "w"], ["y"]))
    np.testing.assert_allclose(_run(net, x=X, w=SCALE)[0], X * SCALE[:, None, None], 1e-6)


def test_old_files(tmp_path):
    net = _load(
        tmp_path,
        old_layer("data", 5, [], ["x"]),
        old_layer(
            "conv",
            4,
            ["x"],
            ["h"],
            inside(10, integer(1, 6), integer(4, 3)),
            old_blob(6, _array(6, 4, 3, 3)),
            old_blob(6, B),
        ),
        old_layer("relu", 18, ["h"], ["h"]),
        old_layer(
            "fc",
            14,
            ["h"],
            ["f"],
            inside(17, integer(1, 5)),
            # The logits are small, because exp magnifies rounding.
            old_blob(6, _array(5, 6 * 5 * 4) / 100),
            old_blob(6, B_INNER),
        ),
        old_layer("prob", 20, ["f"], ["y"]),
    )
    assert [name for name, _ in net.named_layers()] == ["conv", "fc"]
    assert net["conv"].b.shape == (6,) and net["fc"].W.shape == (5, 120)
    conv, fc = net["conv"], net["fc"]
    h = torch.relu(torch.conv2d(_tensor(X), _tensor(conv.W.array), _tensor(conv.b.array)))
    expected = (h.flatten(1) @ _tensor(fc.W.array).T + _tensor(fc.b.array)).softmax(1)
    np.testing.assert_allclose(_run(net)[0], expected.numpy(), 1e-5, 1e-6)
    # If several layers write a blob, its value is the result of the last layer.
    np.testing.assert_allclose(_run(net, ["h"])[0], h.numpy(), 1e-5, 1e-5)


def test_a_file_that_chainer_wrote():
    net = CaffeFunction(DATA / "written_by_chainer.caffemodel")
    arrays = np.load(DATA / "written_by_chainer.npz")
    with mpchain.using_config("train", False):
        (y,) = net({"data": arrays["x"]}, ["Softmax-11-1"])
    np.testing.assert_allclose(y.array, arrays["y"], 1e-5, 1e-6)


# Names of blobs and layers select what is computed.


def _chain(tmp_path):
    return _load(
        tmp_path,
        layer("data", "Input", [], ["x"]),
        layer("a", "ReLU", ["x"], ["h"]),
        layer("b", "Sigmoid", ["h"], ["h"]),
        layer("odd", "Crop", ["h", "x"], ["z"]),
        layer("c", "TanH", ["h"], ["y"]),
    )


def test_only_what_is_needed_is_computed(tmp_path):
    net = _chain(tmp_path)
    assert sorted(net.forwards) == ["a", "b", "c"] and net.fs is net
    assert [name for name, *_ in net.layers] == ["a", "b", "odd", "c"]
    np.testing.assert_allclose(_run(net)[0], np.tanh(1 / (1 + np.exp(-np.maximum(X, 0)))), 1e-6)
    np.testing.assert_array_equal(_run(net, h=X)[0].shape, X.shape)
    message = "'odd' is of type Crop, which is not supported; the types are BatchNorm, Concat"
    with pytest.raises(NotImplementedError, match=message):
        net({"x": X}, ["z"])


def test_layers_can_be_left_out(tmp_path):
    net = _chain(tmp_path)
    (y,) = net({"x": X}, ["y"], disable=["b"])
    np.testing.assert_allclose(y.array, np.tanh(np.maximum(X, 0)), 1e-6)


def test_outputs_that_cannot_be_computed(tmp_path):
    net = _chain(tmp_path)
    message = "y cannot be computed from q; known are q"
    with pytest.raises(ValueError, match=message):
        net({"q": X}, ["y"])
    with pytest.raises(ValueError, match="nowhere cannot be computed from x; known are h, x, y"):
        net({"x": X}, ["y", "nowhere"])


def test_gradients_reach_the_parameters(tmp_path):
    kind, parts, _ = LAYERS["inner product"]
    net = _load(tmp_path, layer("fc", kind, ["x"], ["y"], *parts))
    (y,) = net({"x": X}, ["y"])
    mpchain.functions.sum(y).backward()
    np.testing.assert_allclose(net["fc"].b.grad, np.full(5, 2.0))


def test_batch_statistics_unless_the_file_fixes_the_averages(tmp_path):
    for fixed in (0, 1):
        parts = [inside(139, integer(1, fixed)), blob(7, MEAN), blob(7, VAR), blob(7, [1.0])]
        net = _load(tmp_path, layer("bn", "BatchNorm", ["x"], ["y"], *parts))
        (y,) = net({"x": X}, ["y"])
        centered = np.allclose(y.array.mean((0, 2, 3)), 0, atol=1e-5)
        assert centered == (not fixed)


# Files that cannot be used.


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "it has no layers"),
        (b"no protocol buffer", "is not a Caffe model"),
        (inside(1, "empty"), "it has no layers"),
        (layer("l", "ReLU", ["x"], ["y"])[:-3], "truncated"),
    ],
)
def test_no_caffe_model(tmp_path, content, message):
    path = tmp_path / "net.caffemodel"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        CaffeFunction(path)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        CaffeFunction(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "kind, parts, message",
    [
        ("InnerProduct", [inside(117, integer(1, 5))], "it must have 2 arrays of parameters"),
        ("InnerProduct", [inside(117, integer(5, 2)), blob(7, W), blob(7, B)], "axis 2 is not"),
        ("Convolution", [inside(106, integer(4, 9)), blob(7, W), blob(7, B)], r"kernel_size is"),
        ("Convolution", [inside(106, integer(16, 2)), blob(7, W), blob(7, B)], "of images"),
        ("Convolution", [inside(106, *[integer(4, 2)] * 3), blob(7, W), blob(7, B)], "two axes"),
        ("Pooling", [inside(121, integer(1, 2))], "stochastic pooling"),
        ("LRN", [inside(118, integer(4, 1))], "within channels"),
        ("Eltwise", [inside(110, floating(2, 1.0))], "coeff must be one number per input"),
        ("Reshape", [inside(133, integer(2, 1), inside(1, inside(1, varint(2))))], "only axis 0"),
        ("SoftmaxWithLoss", [inside(125, integer(2, 2))], "only axis 1"),
        ("Scale", [inside(142, integer(4, 1))], "a bias is supported only"),
        (
            "InnerProduct",
            [inside(7, inside(7, inside(1, varint(3))), inside(5, bytes(8))), blob(7, B)],
            r"an array of shape \(3,\) has 2 elements",
        ),
    ],
)
def test_layers_that_cannot_be_used(tmp_path, kind, parts, message):
    with pytest.raises(ValueError, match=f"layer 'l' of type {kind}: .*{message}"):
        _load(tmp_path, layer("l", kind, ["a", "b"], ["y"], *parts))
