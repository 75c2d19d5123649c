"""Tests that models that are exported to Caffe and read back compute the same."""

import re

import numpy as np
import pytest

import mpchain
from mpchain import Chain, Variable
from mpchain import functions as F
from mpchain import links as L
from mpchain.exporters import caffe
from mpchain.exporters.caffe_function import CaffeFunction

X = np.random.RandomState(0).randn(2, 3, 8, 8).astype(np.float32)


def _randomized(*links):
    """Replaces values that usually begin as zeros or ones by random values."""
    random = np.random.RandomState(1)
    for link in (found for each in links for found in each.links()):
        for name in ("gamma", "beta", "b", "avg_mean", "avg_var"):
            value = getattr(link, name, None)
            if value is not None:
                array = getattr(value, "array", value)
                array[...] = random.uniform(0.5, 1.5, array.shape)
    return links


def _round_trip(model, tmp_path, *args, rtol=1e-5, inputs=None):
    """Exports a model, reads it back, and compares the results; returns the text and the
    network."""
    args = args or (X,)
    with mpchain.using_config("train", False):
        expected = model(*map(Variable, args))
    text = caffe.export(model, list(args), tmp_path / "made")
    assert (tmp_path / "made/chainer_model.prototxt").read_text() == text
    net = CaffeFunction(tmp_path / "made/chainer_model.caffemodel")
    names = ["data", *(f"data_{i}" for i in range(2, len(args) + 1))]
    last = re.findall(r'^  top: "(.*)"$', text, re.M)[-1]
    with mpchain.using_config("train", False):
        (y,) = net(dict(zip(names, inputs or args)), [last])
    if inputs is None:
        np.testing.assert_allclose(y.array, expected.array, rtol, rtol)
    return text, net


def _types(text):
    return re.findall(r'^  type: "(.*)"$', text, re.M)


conv, grouped, back, bn, fc = _randomized(
    L.Convolution2D(3, 4, 3, pad=1),
    L.Convolution2D(3, 6, (3, 2), (2, 1), (0, 1), groups=3, dilate=(1, 2), nobias=True),
    L.Deconvolution2D(4, 6, (2, 3), (2, 1), (0, 1), groups=2),
    L.BatchNormalization(4),
    L.Linear(192, 5),
)
scale = _randomized(L.Scale(1, (3,), True, (3,)))[0]
sequence = _randomized(L.BatchNormalization(6))[0]

MODELS = {
    "linear": (fc, ["Reshape", "InnerProduct"]),
    "linear without bias": (L.Linear(192, 5, nobias=True), ["Reshape", "InnerProduct"]),
    "convolution": (conv, ["Convolution"]),
    "grouped and dilated": (grouped, ["Convolution"]),
    "transposed": (lambda x: back(conv(x)), ["Convolution", "Deconvolution"]),
    "transposed and normalized": (
        lambda x: sequence(back(conv(x))),
        ["Convolution", "Deconvolution"],
    ),
    "normalized": (lambda x: bn(conv(x)), ["Convolution"]),
    "linear, scaled": (lambda x: fc(x) * 3 - 1, ["Reshape", "InnerProduct"]),
    "average pooling": (lambda x: F.average_pooling_2d(x, 2), ["Pooling"]),
    "average pooling, padded": (lambda x: F.average_pooling_2d(x, 4, 2, 1), ["Pooling"]),
    "max pooling": (lambda x: F.max_pooling_2d(x, 3, 2), ["Pooling"]),
    "max pooling, padded": (lambda x: F.max_pooling_2d(x, (3, 2), 2, (1, 0)), ["Pooling"]),
    "mean": (lambda x: F.mean(x, axis=(2, 3)), ["Pooling", "Reshape"]),
    "mean, axes kept": (lambda x: F.mean(x, axis=(-1, -2), keepdims=True), ["Pooling"]),
    "LRN": (lambda x: F.local_response_normalization(x, 3, 1, 0.1, 0.5), ["LRN"]),
    "scale": (scale, ["Scale"]),
    "activations": (
        lambda x: F.sigmoid(F.leaky_relu(F.tanh(F.relu(x) - 0.5), 0.3)),
        ["ReLU", "Scale", "TanH", "ReLU", "Sigmoid"],
    ),
    "softmax": (lambda x: F.softmax(fc(x)), ["Reshape", "InnerProduct", "Softmax"]),
    "concat": (
        lambda x: F.concat([F.relu(x), x * 2, F.relu(x)], axis=1),
        ["ReLU", "ReLU", "Scale", "Concat"],
    ),
    "sum": (lambda x: conv(x) + bn(conv(x)), ["Convolution", "Convolution", "Eltwise"]),
    "difference": (lambda x: F.relu(x) - x, ["ReLU", "Eltwise"]),
    "product": (lambda x: F.relu(x) * x, ["ReLU", "Eltwise"]),
    "maximum": (lambda x: F.maximum(F.sigmoid(x), x), ["Sigmoid", "Eltwise"]),
    "arithmetic": (lambda x: 2 - (-x / 4 + 1) * 3, ["Scale"]),
    "arrays": (
        lambda x: (np.float32([[[[1]], [[2]], [[3]]]]) - x) / np.full((3, 1, 1), 2, np.float32),
        ["Scale"],
    ),
    "reshape": (lambda x: F.relu(F.reshape(x, (2, 4, -1))), ["Reshape", "ReLU"]),
    "dropout": (lambda x: F.dropout(F.relu(x)), ["ReLU"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(tmp_path, name):
    model, types = MODELS[name]
    text, _ = _round_trip(model, tmp_path)
    assert _types(text) == ["Input", *types]


class Block(Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.unit = L.model.vision.resnet.BuildingBlock(2, 4, 4, 16, 2)
            self.fc = L.Linear(16, 3)

    def forward(self, x):
        return F.softmax(self.fc(F.mean(self.unit(F.relu(bn(conv(x)))), axis=(2, 3))))


def test_a_residual_network(tmp_path):
    model = Block()
    _randomized(model)
    text, net = _round_trip(model, tmp_path)
    assert _types(text).count("Eltwise") == 2 and "BatchNorm" not in text
    assert sum(1 for _ in net.named_layers()) == 9
    other = np.random.RandomState(5).randn(7, 3, 8, 8).astype(np.float32)
    with mpchain.using_config("train", False):  # the batch has another size than at export
        (y,) = net({"data": other}, ["Softmax-1"])
        np.testing.assert_allclose(y.array, model(other).array, 1e-4, 1e-6)


def test_the_text():
    assert caffe.export(conv, X, graph_name='a "name"') == (
        'name: "a \\"name\\""\n'
        'layer {\n  name: "data"\n  type: "Input"\n  top: "data"\n  input_param {\n    shape {\n'
        "      dim: 2\n      dim: 3\n      dim: 8\n      dim: 8\n    }\n  }\n}\n"
        'layer {\n  name: "Convolution-1"\n  type: "Convolution"\n  bottom: "data"\n'
        '  top: "Convolution-1"\n  convolution_param {\n    num_output: 4\n    bias_term: true\n'
        "    group: 1\n    pad_h: 1\n    pad_w: 1\n    kernel_h: 3\n    kernel_w: 3\n"
        "    stride_h: 1\n    stride_w: 1\n  }\n}\n"
    )


def test_several_inputs_and_outputs(tmp_path):
    def model(x, y):
        return {"sum": x + y, "first": F.relu(x), "twice": [F.relu(x)][0]}

    text = caffe.export(model, {"x": X, "y": Variable(X[:, :, ::-1])}, str(tmp_path))
    assert _types(text) == ["Input", "Input", "Eltwise", "ReLU", "ReLU"]
    net = CaffeFunction(tmp_path / "chainer_model.caffemodel")
    (y,) = net({"data": X, "data_2": X[:, :, ::-1]}, ["Eltwise-1"])
    np.testing.assert_array_equal(y.array, X + X[:, :, ::-1])


def test_files_that_are_asked_for(tmp_path):
    caffe.export(conv, (X,), tmp_path, export_params=False)
    assert [path.name for path in tmp_path.iterdir()] == ["chainer_model.prototxt"]


def test_the_model_is_left_as_it_is():
    average = bn.avg_mean.copy()
    x = Variable(X)
    caffe.export(lambda x: bn(conv(x)), [x])
    np.testing.assert_array_equal(bn.avg_mean, average)
    assert x.grad is None and conv.W.grad is None
    with mpchain.no_backprop_mode():
        assert "Convolution" in caffe.export(conv, [x])


@pytest.mark.parametrize(
    "model, error, message",
    [
        (F.exp, NotImplementedError, "exp cannot be exported to Caffe"),
        (lambda x: F.sum(x * x), NotImplementedError, "sum cannot be exported"),
        (lambda x: F.mean(x, axis=1), NotImplementedError, "no means but those over images"),
        (lambda x: 1 / (x / x), NotImplementedError, "no division by an array that depends on"),
        (lambda x: x * X, NotImplementedError, r"shape \(2, 3, 8, 8\) has no number per channel"),
        (lambda x: F.convolution_2d(X, x), NotImplementedError, "weights of Convolution must not"),
        (lambda x: F.linear(X[:, :, 0, 0], F.mean(x, (2, 3))), NotImplementedError, "must not"),
        (lambda x: F.concat([x, X]), NotImplementedError, "Caffe cannot join constant arrays"),
        (lambda x: F.relu(Variable(X)), ValueError, "an output does not depend on the inputs"),
        (lambda x: 3, ValueError, "an output does not depend on the inputs"),
        (lambda x: F.average_pooling_2d(x, 3, 2), ValueError, r"the size \(4, 4\), not \(3, 3\)"),
        (
            lambda x: F.max_pooling_2d(x, 3, 2, cover_all=False),
            ValueError,
            r"gives this pooling .* the size \(4, 4\), not \(3, 3\)",
        ),
        (
            lambda x: F.convolution_2d(x, conv.W, stride=2, cover_all=True),
            ValueError,
            "this convolution",
        ),
        (
            lambda x: F.deconvolution_2d(conv(x), back.W, stride=(2, 2), outsize=(17, 17)),
            ValueError,
            "this transposed convolution",
        ),
        (
            lambda x: F.convolution_1d(F.reshape(x, (2, 3, 64)), np.ones((2, 3, 3), np.float32)),
            NotImplementedError,
            "windows must have two axes",
        ),
        (lambda x: x * F.mean(x, (2, 3), keepdims=True), ValueError, "arrays of one shape"),
    ],
)
def test_what_caffe_cannot_compute(model, error, message):
    with pytest.raises(error, match=message):
        caffe.export(model, [X])


def test_no_input():
    with pytest.raises(ValueError, match="args must hold an input"):
        caffe.export(lambda: 3, [])
