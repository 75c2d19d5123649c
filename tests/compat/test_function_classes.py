"""Tests Chainer's function classes, which call mpchain's functions."""

import importlib

import numpy as np
import pytest

import mpchain.functions as F
from mpchain import Variable, compat, function_hooks, gradient_check, kernels
from mpchain.compat import function_classes
from mpchain.compat.layout import layout
from mpchain.kernels import thresholds
from mpchain.kernels.window import Window


def draw(*shape):
    return np.random.RandomState(0).uniform(0.2, 0.8, shape).astype("f")


X, Y = draw(2, 3), draw(2, 3) + 0.1
IMAGE, FILTER, BIAS = draw(1, 2, 6, 6), draw(3, 2, 3, 3), draw(3)
LABELS = np.array([0, 2], "i")

# Each case has module and class, arguments of the class, inputs, and a call of the equivalent
# function.
CASES = [
    ("activation.relu.ReLU", (), (X,), lambda x: F.relu(x)),
    ("activation.clipped_relu.ClippedReLU", (0.5,), (X,), lambda x: F.clipped_relu(x, 0.5)),
    ("activation.leaky_relu.LeakyReLU", (0.3,), (-X,), lambda x: F.leaky_relu(x, 0.3)),
    ("activation.log_softmax.LogSoftmax", (), (X,), lambda x: F.log_softmax(x)),
    ("activation.sigmoid.Sigmoid", (), (X,), lambda x: F.sigmoid(x)),
    ("activation.softplus.Softplus", (2.0,), (X,), lambda x: F.softplus(x, beta=2.0)),
    ("array.broadcast.BroadcastTo", ((4, 2, 3),), (X,), lambda x: F.broadcast_to(x, (4, 2, 3))),
    ("array.concat.Concat", (0,), (X, Y), lambda x, y: F.concat((x, y), axis=0)),
    ("array.get_item.GetItem", (1,), (X,), lambda x: x[1]),
    ("array.reshape.Reshape", ((3, 2),), (X,), lambda x: F.reshape(x, (3, 2))),
    ("array.split_axis.SplitAxis", (3, 1), (X,), lambda x: F.split_axis(x, 3, 1)),
    ("array.stack.Stack", (1,), (X, Y), lambda x, y: F.stack((x, y), axis=1)),
    ("array.transpose.Transpose", (), (X,), lambda x: F.transpose(x)),
    ("array.vstack.Vstack", (), (X, Y), lambda x, y: F.vstack((x, y))),
    ("array.where.Where", (X > 0.5,), (X, Y), lambda x, y: F.where(X > 0.5, x, y)),
    ("connection.convolution_2d.Convolution2DFunction", (2, 1), (IMAGE, FILTER, BIAS),
     lambda x, W, b: F.convolution_2d(x, W, b, 2, 1)),
    ("connection.convolution_nd.ConvolutionND", (2, 2, 1), (IMAGE, FILTER, BIAS),
     lambda x, W, b: F.convolution_nd(x, W, b, 2, 1)),
    ("connection.linear.LinearFunction", (), (X, draw(4, 3), draw(4)),
     lambda x, W, b: F.linear(x, W, b)),
    ("loss.mean_squared_error.MeanSquaredError", (), (X, Y),
     lambda x, y: F.mean_squared_error(x, y)),
    ("math.basic_math.Add", (), (X, Y), lambda x, y: x + y),
    ("math.basic_math.DivFromConstant", (2.0,), (X,), lambda x: 2.0 / x),
    ("math.basic_math.MulConstant", (2.0,), (X,), lambda x: x * 2.0),
    ("math.basic_math.PowVarConst", (3,), (X,), lambda x: x**3),
    ("math.einsum.EinSum", ("ij,ij", "i"), (X, Y), lambda x, y: F.einsum("ij,ij->i", x, y)),
    ("math.exponential.Log10", (), (X,), lambda x: F.log10(x)),
    ("math.matmul.MatMul", (False, True), (X, Y), lambda x, y: F.matmul(x, y, transb=True)),
    ("math.minmax.Max", (1,), (X,), lambda x: F.max(x, axis=1)),
    ("math.sum.Sum", (0,), (X,), lambda x: F.sum(x, axis=0)),
    ("normalization.group_normalization.GroupNormalization", (2,),
     (draw(2, 4, 3), draw(4), draw(4)), lambda x, g, b: F.group_normalization(x, 2, g, b)),
    ("normalization.l2_normalization.NormalizeL2", (), (X,), lambda x: F.normalize(x)),
    ("pooling.average_pooling_2d.AveragePooling2D", (2, 2), (IMAGE,),
     lambda x: F.average_pooling_2d(x, 2, 2)),
    ("pooling.max_pooling_nd.MaxPoolingND", (2, 2, 2), (IMAGE,),
     lambda x: F.max_pooling_nd(x, 2, 2)),
]  # fmt: skip
SECOND_CLASSES = [f"chainer.functions.{row[0]}" for row in CASES]


def load(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def as_tuple(y):
    return tuple(y) if isinstance(y, (tuple, list)) else (y,)


@pytest.mark.parametrize(("path", "args", "inputs", "function"), CASES, ids=[c[0] for c in CASES])
def test_a_class_computes_what_the_function_does(path, args, inputs, function):
    cls = load(f"chainer.functions.{path}")
    outputs = cls(*args).apply(tuple(map(Variable, inputs)))
    expected = as_tuple(function(*map(Variable, inputs)))
    assert len(outputs) == len(expected)
    for y, wanted in zip(outputs, expected):
        np.testing.assert_array_equal(y.array, wanted.array)
        assert isinstance(y.creator, cls) and isinstance(
            y.creator, function_classes.ChainerFunction
        )
    arrays = cls(*args).forward(inputs)
    np.testing.assert_array_equal(arrays[0], expected[0].array)


@pytest.mark.parametrize(
    ("path", "args", "inputs"),
    [row[:3] for row in CASES if row[0].split(".")[-1] in ("Sigmoid", "ConvolutionND", "EinSum")],
)
def test_second_derivatives(path, args, inputs):
    cls = load(f"chainer.functions.{path}")
    inputs = [x.astype("d") for x in inputs]
    y = cls(*args).apply(inputs)[0]
    grads = [np.random.RandomState(i).standard_normal(x.shape) for i, x in enumerate(inputs)]
    gradient_check.check_double_backward(
        lambda *xs: cls(*args).apply(xs)[0] * 1.0, inputs, np.ones(y.shape), grads, atol=1e-4,
        rtol=1e-4,
    )  # fmt: skip


# Each case has a call, the class and label of its creator in Chainer 7.8.1, and attributes.
CREATORS = [
    (lambda x: F.relu(x), "ReLU", "ReLU", {}),
    (lambda x: x + x, "Add", "_ + _", {}),
    (lambda x: x * 2, "MulConstant", "_ * 2", {}),
    (lambda x: 1 - x, "SubFromConstant", "1 - _", {}),
    (lambda x: -x, "Neg", "__neg__", {}),
    (lambda x: F.sin(x), "Sin", "sin", {}),
    (lambda x: F.absolute(x), "Absolute", "|_|", {}),
    (lambda x: F.expand_dims(x, 0), "ExpandDims", "ExpandDims", {"axis": 0}),
    (lambda x: F.leaky_relu(x, slope=0.3), "LeakyReLU", "LeakyReLU", {"slope": 0.3}),
    (lambda x: F.convolution_2d(x, FILTER, BIAS, stride=2, pad=1), "Convolution2DFunction",
     "Convolution2DFunction", {"sy": 2, "sx": 2, "ph": 1, "pw": 1, "groups": 1}),
    (lambda x: F.max_pooling_2d(x, (3, 2), stride=2), "MaxPoolingND", "MaxPoolingND",
     {"kh": 3, "kw": 2, "sy": 2, "cover_all": True}),
    (lambda x: F.average_pooling_2d(x, 2), "AveragePooling2D", "AveragePooling2D",
     {"kh": 2, "sy": 2, "ph": 0}),
    (lambda x: F.mean_squared_error(x, x), "MeanSquaredError", "MeanSquaredError", {}),
    (lambda x: F.concat((x, x)), "Concat", "Concat", {"axis": 1}),
    (lambda x: F.dropout(x, 0.3), "Dropout", "Dropout", {"dropout_ratio": 0.3}),
]  # fmt: skip


@pytest.mark.parametrize(("call", "name", "label", "attributes"), CREATORS)
def test_the_creator_of_a_variable(call, name, label, attributes):
    creator = call(Variable(IMAGE)).creator
    assert (type(creator).__name__, creator.label) == (name, label)
    assert {key: getattr(creator, key) for key in attributes} == attributes


def test_a_graph_is_walked_by_creators():
    x = Variable(IMAGE)
    y = F.relu(F.convolution_2d(x, FILTER, BIAS))
    convolution = y.creator.inputs[0].creator
    assert type(convolution).__name__ == "Convolution2DFunction"
    assert convolution.inputs[0] is x.node


def test_hooks_see_one_function_for_a_call():
    seen = []

    class Hook(function_hooks.PrintHook):
        name = "Labels"

        def forward_preprocess(self, function, in_data):
            seen.append((function.label, [x.shape for x in in_data]))

        def forward_postprocess(self, function, in_data):
            seen.append(function.label)

        def backward_preprocess(self, function, in_data, out_grad):
            pass

        backward_postprocess = backward_preprocess

    with Hook():
        F.average_pooling_2d(F.convolution_2d(Variable(IMAGE), FILTER), 2)
    shapes = [IMAGE.shape, FILTER.shape]
    assert seen == [
        ("Convolution2DFunction", shapes),
        "Convolution2DFunction",
        ("AveragePooling2D", [(1, 3, 4, 4)]),
        "AveragePooling2D",
    ]


def test_timers_sum_up_by_class():
    x = Variable(X)
    with function_hooks.TimerHook() as hook:
        F.sum(F.exp(F.relu(F.relu(x)))).backward()
    # There are two calls of relu, each with forward and backward.
    assert hook.summary()["ReLU"]["occurrence"] == 4
    assert {name for name, _ in hook.call_history} == {"ReLU", "Exp", "Sum"}


def test_links_make_functions_of_these_classes():
    import chainer.links as L

    y = L.Convolution2D(2, 3, 3)(IMAGE)
    assert isinstance(y.creator, load(SECOND_CLASSES[15]))
    assert isinstance(
        L.Linear(3, 2)(X).creator, load("chainer.functions.connection.linear.LinearFunction")
    )
    assert L.BatchNormalization(3)(X).creator.label == "BatchNormalization"
    loss = L.Classifier(L.Linear(3, 2))(X, np.array([0, 1]))
    assert loss.creator.label == "SoftmaxCrossEntropy"


def test_every_line_of_the_table_names_a_function():
    for name, line in function_classes._table().items():
        named = [n for n in (line.function, *line.others) if n]
        assert all(map(function_classes._function, named)), name


def test_no_classes_for_the_parts_of_an_implementation():
    names = [n for m, (_, ns) in layout().items() if m.startswith("chainer.functions.") for n in ns]
    assert "ReLUGrad2" in names
    assert function_classes.find("chainer.functions.activation.relu", "ReLUGrad2") is None


def test_convolutions_of_old_programs_are_sums_of_products():
    first, second = draw(8, 64, 28, 28), draw(64, 64, 3, 3)
    pairs = [(3, 3), (1, 1), (1, 1), (1, 1)]
    window = Window(*pairs, 1, (28, 28), (28, 28))
    choice = kernels.convolution_output.explain(first, second, window)
    assert "winograd: no: " in choice and "winograd: runs" not in choice
    compat.uninstall()
    assert thresholds.tiles < float("inf")
