"""Tests tools that walk the graph by ``creator_node``, as Chainer's exporters did."""

import contextlib
import importlib.util
import sys
import types
import warnings

import numpy as np
import pytest

import mpchain.functions as F
import mpchain.links as L
from mpchain import Chain, Variable, compat, no_backprop_mode, using_config
from mpchain.link_hooks import TimerHook

pytestmark = pytest.mark.slow


def draw(*shape):
    return np.random.RandomState(0).uniform(0.2, 0.8, shape).astype("f")


X, Y, IMAGE, SIGNAL = draw(2, 3), draw(2, 3) + 0.1, draw(2, 4, 6, 6), draw(2, 4, 8)
VOLUME = draw(1, 2, 5, 5, 5)


def test_a_graph_is_walked_by_creator_nodes():
    x = Variable(IMAGE)
    y = F.relu(F.convolution_2d(x, L.Convolution2D(4, 3, 3).W))
    names, node = [], y.node
    while node.creator_node is not None:
        names.append(type(node.creator_node).__name__)
        node = node.creator_node.inputs[0]
    assert names == ["ReLU", "Convolution2DFunction"]
    assert node is x.node
    assert type(y.creator_node).__name__ == "ReLU"
    F.sum(y).backward()
    assert x.grad.shape == x.shape


def test_a_depthwise_convolution_has_groups():
    W = L.DepthwiseConvolution2D(4, 3, 2).W
    function = F.depthwise_convolution_2d(Variable(IMAGE), W).creator_node
    assert type(function).__name__ == "Convolution2DFunction"
    assert function.groups == 4
    node, names = function.inputs[1], []
    assert node.shape == (12, 1, 2, 2)
    while node.creator_node is not None:
        names.append(type(node.creator_node).__name__)
        node = node.creator_node.inputs[0]
    assert names == ["Reshape", "Transpose"]
    assert node is W.node


ATTRIBUTES = [
    (lambda x: F.sum(x, axis=1), "Sum", {"axis": (1,), "keepdims": False}),
    (lambda x: F.sum(x), "Sum", {"axis": None}),
    (lambda x: x[1], "GetItem", {"slices": (1,)}),
    (lambda x: x.T, "Transpose", {"axes": None}),
    (lambda x: F.flatten(x), "Reshape", {"shape": (288,)}),
    (lambda x: x / 4, "MulConstant", {"value": 0.25}),
    (lambda x: F.split_axis(x, 2, 1)[0], "SplitAxis", {"sections": 2, "indices": None}),
    (lambda x: F.split_axis(x, [1], 1)[0], "SplitAxis", {"sections": None, "indices": [1]}),
    (lambda x: F.repeat(x, 2, 1), "Repeat", {"repeats": (2,), "axis": 1}),
    (lambda x: F.moveaxis(x, 0, 1), "Moveaxis", {"source": (0,), "destination": (1,)}),
    (lambda x: F.resize_images(x, (7, 8)), "ResizeImages", {"out_H": 7, "out_W": 8}),
    (lambda x: F.max_pooling_2d(x, 3, 2), "MaxPoolingND", {"ksize": (3, 3), "stride": (2, 2)}),
    (lambda x: F.unpooling_2d(x, 2), "Unpooling2D", {"outh": 11, "outw": 11}),
    (lambda x: F.unpooling_nd(x, 2), "UnpoolingND", {"outs": (11, 11), "ksize": (2, 2)}),
    (lambda x: L.Deconvolution2D(4, 3, 3, 2, 1)(x), "Deconvolution2DFunction",
     {"outh": 11, "outw": 11, "sy": 2, "ph": 1, "groups": 1}),
    (lambda x: L.Deconvolution2D(4, 3, (3, 1), 2)(x[..., :1]), "Deconvolution2DFunction",
     {"outh": 13, "outw": 1}),
    (lambda x: F.cast(x, "d"), "Cast", {"type": "d"}),
]  # fmt: skip


@pytest.mark.parametrize(("call", "name", "attributes"), ATTRIBUTES)
def test_attributes_that_exporters_read(call, name, attributes):
    function = call(Variable(IMAGE)).node.creator_node
    assert type(function).__name__ == name
    assert {key: getattr(function, key) for key in attributes} == attributes


@pytest.mark.parametrize(("width", "expected"), [(1, [1, 1]), ([(0, 0), (1, 2)], [[0, 0], [1, 2]])])
def test_widths_of_padding(width, expected):
    function = F.pad(Variable(X), width, "constant", constant_values=2).creator_node
    assert function.pad_bw.tolist() == expected
    assert (function.mode, function.keywords) == ("constant", {"constant_values": 2})


@pytest.mark.parametrize("hooks", [[], [TimerHook()]])
def test_arrays_among_inputs_have_variables(hooks):
    norm, x = L.BatchNormalization(3), Variable(X)
    with using_config("train", False), contextlib.ExitStack() as stack:
        for hook in hooks:  # the old exporter finds links by a hook
            stack.enter_context(hook)
        y = norm(x)
    *_, mean, var = y.creator_node.inputs
    for node, array in ((mean, norm.avg_mean), (var, norm.avg_var)):
        assert node.get_variable_or_none().array is array
        assert node.creator_node is None and not node.requires_grad


def test_a_linear_function_of_images_follows_a_reshape():
    x = Variable(IMAGE)
    node = L.Linear(None, 2)(x).node.creator_node.inputs[0]
    assert node.shape == (2, 144)
    assert type(node.creator_node).__name__ == "Reshape"
    assert node.creator_node.inputs == (x.node,)


class Model(Chain):
    def __init__(self, call, **links):
        super().__init__()
        with self.init_scope():
            for name, link in links.items():
                setattr(self, name, link)
        self.call = call

    def forward(self, *xs):
        return self.call(self, *xs)


def of_link(link, x):
    return lambda self, x: self.l(x), (x,), {"l": link}


def of(call, *xs):
    return lambda self, *xs: call(*xs), xs, {}


MODELS = {
    "relu": of(lambda x: F.relu(x - 0.5), X),
    "sigmoid": of(lambda x: F.sigmoid(x), X),
    "elu": of(lambda x: F.elu(x - 0.5), X),
    "clipped_relu": of(lambda x: F.clipped_relu(x, 0.5), X),
    "log_softmax": of(lambda x: F.log_softmax(x), X),
    "selu": of(lambda x: F.selu(x - 0.5), X),
    "prelu": of_link(L.PReLU(), -X),
    "add": of(lambda x, y: x + y, X, Y),
    "div": of(lambda x, y: x / y, X, Y),
    "rsub_constant": of(lambda x: 2 - x, X),
    "div_constant": of(lambda x: x / 3, X),
    "pow_constant": of(lambda x: x**2, X),
    "maximum": of(lambda x, y: F.maximum(x, y), X, Y),
    "matmul": of(lambda x, y: F.matmul(x, y, transb=True), X, Y),
    "sum": of(lambda x: F.sum(x, axis=1), X),
    "average": of(lambda x: F.average(x, axis=1, keepdims=True), X),
    "logsumexp": of(lambda x: F.logsumexp(x, axis=1), X),
    "broadcast_to": of(lambda x: F.broadcast_to(x, (4, 2, 3)), X),
    "cast": of(lambda x: F.cast(x, "d"), X),
    "concat": of(lambda x, y: F.concat((x, y), 0), X, Y),
    "get_item": of(lambda x: x[:, 1:3, 2], IMAGE),
    "pad": of(lambda x: F.pad(x, 1, "constant", constant_values=2), X),
    "flatten": of(lambda x: F.flatten(x), X),
    "split_axis": of(lambda x: F.split_axis(x, [1], 1), X),
    "squeeze": of(lambda x: F.squeeze(x, 1), draw(2, 1, 3)),
    "transpose": of(lambda x: x.transpose(0, 2, 1, 3), IMAGE),
    "repeat": of(lambda x: F.repeat(x, 2, axis=1), X),
    "stack": of(lambda x, y: F.stack((x, y), -1), X, Y),
    "separate": of(lambda x: tuple(F.separate(x, 1)), X),
    "average_pooling": of(lambda x: F.average_pooling_2d(x, 2), IMAGE),
    "max_pooling": of(lambda x: F.max_pooling_nd(x, 2, 2, cover_all=False), VOLUME),
    "unpooling": of(lambda x: F.unpooling_2d(x, 2, cover_all=False), IMAGE),
    "roi_pooling": of(
        lambda x: F.roi_pooling_2d(x, np.array([[0, 0, 0, 3, 3]], "f"), 2, 2, 1.0), IMAGE
    ),
    "batch_normalization": of_link(L.BatchNormalization(4, use_gamma=False), IMAGE),
    "group_normalization": of_link(L.GroupNormalization(2), IMAGE),
    "normalize": of(lambda x: F.normalize(x, axis=1), X),
    "convolution": of_link(L.Convolution2D(None, 3, 3, 2, 1), IMAGE),
    "depthwise_convolution": of_link(L.DepthwiseConvolution2D(4, 3, 2), IMAGE),
    "convolution_nd": of_link(L.Convolution1D(4, 3, 3), SIGNAL),
    "deconvolution": of_link(L.Deconvolution2D(4, 3, 3, 2, 1), IMAGE),
    "embed_id": of_link(L.EmbedID(4, 3), np.array([[0, 1], [2, 1]], "i")),
    "linear": of_link(L.Linear(None, 2, nobias=True), IMAGE),
    "maxout": of_link(L.Maxout(3, 2, 2), X),
}
assert len(MODELS) >= 40


@pytest.fixture(scope="module")
def onnx_chainer():
    """Returns the package onnx_chainer of 2019, with the tables that onnx has removed since."""
    compat.install()
    onnx = pytest.importorskip("onnx")
    if not hasattr(onnx, "mapping"):
        codes = {np.dtype(t): onnx.helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in "?iIlLefd"}
        onnx.mapping = types.ModuleType("onnx.mapping")
        onnx.mapping.NP_TYPE_TO_TENSOR_TYPE = codes
        onnx.mapping.TENSOR_TYPE_TO_NP_TYPE = {code: dtype for dtype, code in codes.items()}
        onnx.mapping.STORAGE_TENSOR_TYPE_TO_FIELD = {}
        sys.modules["onnx.mapping"] = onnx.mapping
    # Recent versions of setuptools have no pkg_resources.
    for name in ("onnx_chainer", "pkg_resources"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"could not import '{name}'")
    with warnings.catch_warnings():
        # Importing pkg_resources gives a warning.
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module("onnx_chainer")


@pytest.mark.filterwarnings("ignore:It's possible that output does not match:UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_onnx_chainer(name, onnx_chainer, tmp_path, monkeypatch):
    runtime = pytest.importorskip("onnxruntime")
    # This format is older than the runtime, which can read it.
    monkeypatch.setattr(sys.modules["onnx"], "IR_VERSION", 8)
    call, xs, links = MODELS[name]
    model, path = Model(call, **links), str(tmp_path / "model.onnx")
    with using_config("train", False):
        with no_backprop_mode():
            expected = model(*map(Variable, xs))
        onnx_chainer.export(model, xs, filename=path, opset_version=11)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {i.name: x for i, x in zip(session.get_inputs(), xs)})
    expected = expected if isinstance(expected, tuple | list) else [expected]
    for ours, theirs in zip(expected, found, strict=True):
        np.testing.assert_allclose(ours.array, theirs, rtol=1e-5, atol=1e-5)
