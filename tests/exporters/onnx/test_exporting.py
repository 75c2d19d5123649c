"""Tests arguments, names, files and errors of the export, and links made from ONNX models."""

import io
import os
import re
import sys
import warnings

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Sequential, Variable
from tests.exporters.onnx.runtime import run
from tests.reference import torch

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

X = np.random.RandomState(0).randn(3, 4).astype(np.float32)
export = mpchain.onnx.export


def _names(values):
    return [x.name for x in values]


def _shapes(values):
    return [[d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim] for x in values]


def test_a_path_and_a_file_object_receive_the_model(tmp_path):
    model = Sequential(L.Linear(4, 5), F.relu, L.Linear(5, 2))
    made = export(model, X, tmp_path / "model.onnx")
    content = io.BytesIO()
    export(model, Variable(X), content)
    assert (tmp_path / "model.onnx").read_bytes() == made.SerializeToString() == content.getvalue()
    assert [node.op_type for node in made.graph.node] == ["Gemm", "Relu", "Gemm", "Identity"]
    assert [node.name for node in made.graph.node][:3] == ["/0/Gemm_0", "/Relu_0", "/1/Gemm_1"]
    assert sorted(x.name for x in made.graph.initializer) == ["0/W", "0/b", "1/W", "1/b"]
    assert made.opset_import[0].version == 26 and made.producer_name == "mpchain"


def test_inputs_and_outputs_are_named():
    def two(left, right):
        return left + right, left * 2

    made = export(two, (X, X))
    assert _names(made.graph.input) == ["left", "right"]
    assert _names(made.graph.output) == ["output_0", "output_1"]
    assert _shapes([*made.graph.input, *made.graph.output]) == [["batch", 4]] * 4

    made = export(lambda a, b: {"sum": a + b}, {"b": X, "a": X}, batch_axis=None)
    assert _names(made.graph.input) == ["b", "a"] and _names(made.graph.output) == ["sum"]
    assert _shapes(made.graph.output) == [[3, 4]]

    names = {"input_names": ["p", "q"], "output_names": ["r", "s"]}
    made = export(two, [X, X], **names)
    assert _names(made.graph.input) == ["p", "q"] and _names(made.graph.output) == ["r", "s"]
    assert _names(export(lambda *xs: xs[0], [X, X]).graph.input) == ["x0", "x1"]


def test_what_depends_on_the_batch_size_is_computed_in_the_graph():
    def model(x):
        n = x.shape[0]
        rows = F.broadcast_to(F.reshape(x, (1, n, 4)), (2, n, 4))
        pairs = F.reshape(rows, (2 * n, 4))
        tail = F.get_item(x, slice(1, n - 1))
        zeros = np.zeros((n, 4), np.float32)
        weighted = F.sum(x * (1 / n)) + F.sum(tail) * n
        first = F.select_item(x, np.zeros(n, int) + 2) + np.arange(n)
        return pairs, weighted, F.concat([x, zeros], axis=1), first

    made = export(model, X)
    assert _shapes(made.graph.output) == [["2*batch", 4], [], ["batch", 8], ["batch"]]
    for n in (2, 5):
        x = np.random.RandomState(n).randn(n, 4).astype(np.float32)
        for y, expected in zip(run(made, {"x": x}), model(Variable(x)), strict=True):
            np.testing.assert_allclose(y, expected.array, 1e-5, 1e-6)


def test_another_axis_may_be_that_of_the_batch():
    made = export(lambda x: F.sum(x, axis=0), X, batch_axis=1)
    assert _shapes(made.graph.output) == [["batch"]]
    x = np.ones((3, 7), np.float32)
    np.testing.assert_array_equal(run(made, {"x": x})[0], np.full(7, 3))


def test_integers_are_traced_through_masks_and_ignored_labels():
    embed = L.EmbedID(6, 4, ignore_label=0)

    def model(ids, mask):
        h = F.where(mask, F.sum(embed(ids), axis=2), np.float32([0.5]))
        return h + F.cast(ids, "f"), F.select_item(embed(ids[:, 0]), ids[:, 1] * 0 + 3)

    random = np.random.RandomState(0)
    ids, mask = random.randint(0, 6, (3, 4)), random.rand(3, 4) < 0.5
    made = export(model, (ids, mask))
    ids, mask = random.randint(0, 6, (5, 4)), random.rand(5, 4) < 0.5
    for y, expected in zip(run(made, {"ids": ids, "mask": mask}), model(ids, mask), strict=True):
        np.testing.assert_allclose(y, expected.array, 1e-5, 1e-6)


def test_labels_of_losses_are_inputs():
    def model(x, t):
        return F.softmax_cross_entropy(x, t), F.softmax_cross_entropy(x, t, reduce="no")

    x, t = X, np.array([1, -1, 3])
    made = export(model, (x, t))
    for y, expected in zip(run(made, {"x": x, "t": t}), model(x, t), strict=True):
        np.testing.assert_allclose(y, expected.array, 1e-5, 1e-6)


def test_stateful_links_start_anew_and_keep_their_state():
    lstm = L.LSTM(4, 5)
    first, state = lstm(X), lstm.h
    made = export(lstm, X)
    assert lstm.h is state
    np.testing.assert_allclose(run(made, {"x": X})[0], first.array, 1e-5, 1e-6)


def test_batch_normalization_is_one_node():
    bn = L.BatchNormalization(4)
    bn.avg_mean[...], bn.avg_var[...], bn.gamma.array[...] = X[0], abs(X[1]), X[2]
    model = Sequential(L.Convolution2D(1, 4, 1), bn, F.relu)
    x = np.random.RandomState(0).randn(2, 1, 3, 3).astype(np.float32)
    made = export(model, x)
    assert [node.op_type for node in made.graph.node][:2] == ["Conv", "BatchNormalization"]
    with mpchain.using_config("train", False):
        np.testing.assert_allclose(run(made, {"x": x})[0], model(x).array, 1e-5, 1e-5)
    # The mean is also subtracted outside of the normalization.
    made = export(lambda x: bn(x) + (x - bn.avg_mean[None]), X)
    with mpchain.using_config("train", False):
        expected = bn(X).array + (X - bn.avg_mean)
    np.testing.assert_allclose(run(made, {"x": X})[0], expected, 1e-5, 1e-5)
    read = mpchain.onnx.ONNXModel(made)
    np.testing.assert_allclose(read(X).array, expected, 1e-5, 1e-5)


class Own(mpchain.FunctionNode):
    def forward(self, inputs):
        return (inputs[0] * 2,)


class Bad(mpchain.Chain):
    def __init__(self):
        super().__init__(inner=mpchain.Chain(l=L.Linear(4, 4)))
        self.inner.forward = lambda x: F.lgamma(self.inner.l(x)) + Own().apply([x])[0]

    def forward(self, x):
        return F.relu(self.inner(x)) + F.zeta(2.0, x)


def test_one_error_lists_all_functions_with_the_paths_of_their_links():
    with pytest.raises(NotImplementedError) as caught:
        export(Bad(), abs(X) + 1)
    text = str(caught.value)
    assert "lgamma at /inner: ONNX has no such function" in text
    assert "Own at /inner: the program's own code computes it, not a formula of mpchain" in text
    assert "zeta at /: ONNX has no such function" in text


@mpchain.differentiable(lambda g, x: g * 2 * x)
def own_square(x):
    return x * x


@mpchain.elementwise(lambda g, x: g * 2 * x)
def own_formula(x):
    return x * x + 1


def test_users_functions_are_exported_if_they_are_formulas_of_elements():
    made = export(lambda x: own_formula(x), X)
    np.testing.assert_allclose(run(made, {"x": X})[0], X * X + 1, 1e-6)
    with pytest.raises(NotImplementedError, match="own_square at /: it is no elementwise formula"):
        export(lambda x: own_square(x), X)


@pytest.mark.parametrize(
    "model, reason",
    [
        (lambda x: F.where(x.array > 0, x, -x), "where at /: an array of shape .* depends on the"),
        (lambda x: x * float(x.array.max()), "multiply_by_constant at /: a constant is"),
        (lambda x: x * np.random.randn(4).astype("f"), "or on random numbers"),
        (lambda x: x if x.shape[0] % 2 else F.relu(x), "applies other functions to another batch"),
        (lambda x: x[: len(x) // 2 * 2], "get_item at /: a constant is 2 for one input and 6"),
        (lambda x: F.reshape(x[: len(x) ** 2], (-1,)), "get_item at /: a constant is 9 for one"),
        (lambda x: Variable(x.array * 2), "the output output: an array of shape"),
    ],
)
def test_what_depends_on_values_is_refused(model, reason):
    with pytest.raises(NotImplementedError, match=reason):
        export(model, X)


@pytest.mark.parametrize(
    "args, options, reason",
    [
        ([], {}, "args must hold inputs: Variables or arrays"),
        (["x"], {}, "args must hold inputs"),
        (X[:0], {}, r"input x of shape \(0, 4\) is empty"),
        (np.ones((2, 3), int), {}, "the integers of input x must not all be equal"),
        (X, {"input_names": ["a", "b"]}, "there are 1 inputs, but input_names has 2"),
        (X, {"output_names": ["a", "b"]}, "there are 1 outputs, but output_names has 2"),
        (X, {"output_names": ["x"]}, "names must be different: inputs x, outputs x"),
    ],
)
def test_arguments_are_checked(args, options, reason):
    with pytest.raises(ValueError, match=reason):
        export(lambda x: F.cast(x, "f") * 2, args, **options)


def test_batches_must_have_one_size():
    with pytest.raises(
        ValueError, match=r"one size along batch_axis=0, but are \(3, 4\), \(2, 4\)"
    ):
        export(lambda a, b: a + F.sum(b), (X, X[:2]))


def test_the_model_must_return_variables():
    with pytest.raises(ValueError, match="the model must return Variables"):
        export(lambda x: x.array, X)


def test_onnx_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match="needs the library onnx: pip install"):
        export(F.relu, X)


def test_what_is_not_used_is_left_out():
    def model(x):
        F.lgamma(abs(x) + 1)  # no output depends on this function
        return F.relu(x)

    assert [node.op_type for node in export(model, X).graph.node] == ["Relu", "Identity"]


def test_a_parameter_may_be_called_as_an_input_is():
    class Scaled(mpchain.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.x = mpchain.Parameter(2.0, (4,))
                self.y = mpchain.Parameter(3.0, (4,))

        def forward(self, x):
            return x * self.x + self.y

    made = export(Scaled(), X)
    assert [t.name for t in made.graph.initializer if t.name == "x"] == []
    np.testing.assert_allclose(run(made, {"x": X})[0], 2 * X + 3, 1e-6)


# Import.


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 8)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, ids):
        return self.layer(self.embed(ids)).mean(1)


def _network():
    layers = [torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    layers += [torch.nn.MaxPool2d(3, 2, 1, ceil_mode=True), torch.nn.GroupNorm(2, 8)]
    layers += [torch.nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1), torch.nn.Hardswish()]
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Dropout()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(4, 2), torch.nn.LogSoftmax(1))


@pytest.mark.parametrize(
    "make, x", [(_network, np.ones((2, 3, 9, 9), "f")), (Encoder, np.array([[1, 2, 9]]))]
)
def test_models_that_pytorch_exports_are_read(make, x):
    torch.manual_seed(0)
    module, content = make().eval(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that this exporter is its older one
        torch.onnx.export(module, (torch.from_numpy(x),), content, dynamo=False, opset_version=17)
    read = mpchain.onnx.ONNXModel(onnx.load_from_string(content.getvalue()))
    expected = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(read(x).array, expected, 1e-5, 1e-6)


def test_a_model_read_back_has_the_paths_of_the_parameters_and_can_be_trained(tmp_path):
    model = mpchain.Chain(l1=L.Linear(4, 5), inner=mpchain.Chain(l2=L.Linear(5, 2)))
    model.forward = lambda x: model.inner.l2(F.relu(model.l1(x)))
    export(model, X, tmp_path / "model.onnx")
    read = mpchain.onnx.ONNXModel(tmp_path / "model.onnx")
    shapes = {path: param.shape for path, param in model.namedparams()}
    assert {path: param.shape for path, param in read.namedparams()} == shapes
    np.testing.assert_allclose(read(X).array, model.forward(X).array, 1e-6)
    np.testing.assert_array_equal(read(x=X).array, read(X).array)

    optimizer = mpchain.optimizers.SGD(0.001).setup(read)
    before = float(F.sum(read(X) ** 2).array)
    optimizer.update(lambda: F.sum(read(X) ** 2))
    assert float(F.sum(read(X) ** 2).array) < before
    again = mpchain.onnx.ONNXModel(export(read, X))
    np.testing.assert_allclose(again(X).array, read(X).array, 1e-6)


def test_wrong_inputs_of_a_read_model_are_refused():
    read = mpchain.onnx.ONNXModel(export(F.relu, X))
    with pytest.raises(TypeError, match="the inputs are x, but got 2 by position"):
        read(X, X)
    with pytest.raises(TypeError, match="by name y"):
        read(y=X)


def test_unknown_operators_are_listed():
    value = onnx.helper.make_tensor_value_info("x", 1, [2])
    nodes = [onnx.helper.make_node(name, ["x"], [name]) for name in ("NonZero", "Relu", "Size")]
    made = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [value], [value]))
    with pytest.raises(NotImplementedError, match=r"are not known here: NonZero, Size$"):
        mpchain.onnx.ONNXModel(made)


def _model(nodes, inputs="x", output="y", constants=()):
    values = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in (*inputs, output)]
    graph = onnx.helper.make_graph(nodes, "g", values[:-1], values[-1:], constants)
    return onnx.helper.make_model(graph)


def test_errors_of_read_models_name_file_and_node(tmp_path):
    make = onnx.helper.make_node
    path = tmp_path / "model.onnx"
    constant = onnx.numpy_helper.from_array(np.ones(2, np.float32), "c")
    constant.raw_data = b"abc"
    for made, message in [
        (
            _model([make("Relu", ["x"], ["a"]), make("Add", ["a", "b"], ["y"], name="sum")]),
            "node 1 (Add, sum): its input 'b' is no input of the model, no constant, and no output",
        ),
        (_model([make("Relu", ["x"], ["z"])]), ": no node computes the output 'y' of the model"),
        (
            _model([make("Cast", ["x"], ["y"], to=99)]),
            "node 0 (Cast) cannot be read: KeyError: 99",
        ),
        (
            _model([make("Add", ["x", "c"], ["y"])], constants=[constant]),
            "constant c cannot be read: ValueError",
        ),
    ]:
        path.write_bytes(made.SerializeToString())
        with pytest.raises(ValueError, match=re.escape(message)) as raised:
            mpchain.onnx.ONNXModel(path)
        assert str(path) in str(raised.value)
    path.write_bytes(b"no model")
    with pytest.raises(ValueError, match=rf"ONNXModel: {path} is no ONNX model: DecodeError"):
        mpchain.onnx.ONNXModel(path)


def test_errors_while_a_read_model_computes_name_the_node(tmp_path):
    read = mpchain.onnx.ONNXModel(
        _model([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "xw")
    )
    with pytest.raises(Exception) as raised:
        read(X, X)
    assert raised.value.__notes__[-1] == "in the model, node 0 (MatMul)"


def test_a_pipe_is_no_model(tmp_path):
    """Opening a pipe would wait forever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match="pipe is no file"):
        mpchain.onnx.ONNXModel(tmp_path / "pipe")


def test_names_that_attributes_cannot_have_are_changed():
    weights = [
        onnx.numpy_helper.from_array(X, name) for name in ("forward", "0.weight", "a b", "1")
    ]
    value = onnx.helper.make_tensor_value_info("x", 1, [3, 4])
    nodes = [onnx.helper.make_node("Sum", ["x", "forward", "0.weight", "a b", "1"], ["y"])]
    made = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [value], [value], weights))
    made.graph.output[0].name = "y"
    read = mpchain.onnx.ONNXModel(made)
    assert [path for path, _ in read.namedparams()] == ["/1", "/a_b", "/forward_", "/0/weight"]
    np.testing.assert_allclose(read(X).array, 5 * X, 1e-6)
