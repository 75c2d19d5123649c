"""Tests the errors for wrong inputs: they name function, argument, rule and value."""

import copy
import inspect
import pickle
import re

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Chain, Sequential, Variable
from mpchain.utils.type_check import InvalidType

pytestmark = pytest.mark.slow


def f(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def i(*shape, high=2):
    return np.zeros(shape, np.int32) + high - 1


# For each function: calls that must fail, and the texts that the message must contain besides the
# function's name: the rule or argument, and the wrong value (a shape or dtype, in any notation).
WRONG = {
    "absolute": [],
    "accuracy": [
        ((f(3), i(3)), "y must be", "(3,)"),
        ((f(3, 2), f(3)), "t integers", "float32"),
        ((i(3, 2), i(3)), "y must be floating point", "int32"),
        ((f(3, 2), i(4)), "shape of y without axis 1", "(4,)"),
        ((f(3, 2, 5), i(3)), "shape of y without axis 1", "(3, 2, 5)"),
    ],
    "add": [
        ((f(3), f(4)), "broadcast", "(3,)", "(4,)"),
        ((f(2, 3), f(2, 3), f(2)), "broadcast", "(2, 3)", "(2,)"),
        ((), "xs must hold at least one array", "empty"),
    ],
    "average_pooling_2d": [
        ((f(2, 3, 4), 2), "x must have 4 axes", "(2, 3, 4)"),
        ((i(2, 3, 4, 4), 2), "floating point", "int32"),
        ((f(2, 3, 4, 4), 5), "output size", "positive", "(2, 3, 4, 4)"),
        ((f(2, 3, 4, 4), 0), "ksize must be", "at least 1", "ksize: 0"),
        ((f(2, 3, 4, 4), (2, 2, 2)), "ksize must be one integer or 2", "(2, 2, 2)"),
        ((f(2, 3, 4, 4), 2, 0), "stride must be", "at least 1", "stride: 0"),
        ((f(2, 3, 4, 4), 2, 1, -1), "pad must be", "at least 0", "pad: -1"),
    ],
    "average_pooling_nd": [
        ((f(2, 3), 2), "x must have 3 axes or more", "(2, 3)"),
        ((f(2, 3, 4), (2, 2)), "ksize must be one integer or 1", "(2, 2)"),
        ((f(2, 3, 4), 2, 2, 1, 7), "pad_value must be 0 or None", "7"),
    ],
    "batch_normalization": [
        ((f(3, 2), f(3), f(3)), "gamma must have shape (2,)", "(3, 2)", "(3,)"),
        ((f(3, 2), f(2), f(2, 1)), "beta must have shape (2,)", "(2, 1)"),
        ((i(3, 2), f(2), f(2)), "x must be floating point", "int32"),
        ((f(), f(), f()), "with axes", "()"),
        ((f(3, 2), f(2), f(2), {"axis": 2}), "x must have every axis", "axis: (2,)"),
        ((f(3, 2), f(2), f(2), {"running_mean": f(3)}), "running_mean must have shape", "(3,)"),
        ((f(3, 2), f(2), f(2), {"running_var": f(1, 2)}), "running_var must have shape", "(1, 2)"),
    ],
    "binary_accuracy": [
        ((f(3), f(3)), "t must be integers", "float32"),
        ((f(3), i(4)), "shape of y", "(3,)", "(4,)"),
        ((i(3), i(3)), "floating point", "int32"),
    ],
    "broadcast_to": [
        ((f(3), (2, 2)), "does not broadcast", "(3,)", "(2, 2)"),
        ((f(2, 3), (3,)), "does not broadcast", "(2, 3)", "(3,)"),
    ],
    "concat": [
        (([f(2, 3), f(3, 3)],), "shapes must be equal except along the axis", "(3, 3)", "axis: 1"),
        (([f(2, 3), f(2)],), "axis must be an axis of every array", "(2,)", "axis: 1"),
        (([f(2, 3)], 2), "axis must be an axis of every array", "(2, 3)", "axis: 2"),
        (([],), "xs must hold at least one array", "xs: ()"),
    ],
    "convolution_1d": [
        ((f(2, 3, 4, 4), f(5, 3, 2)), "x must have 3 axes", "(2, 3, 4, 4)"),
        ((f(2, 3, 4), f(5, 2, 2)), "3 channels but W expects 2", "(5, 2, 2)"),
    ],
    "convolution_2d": [
        ((f(2, 3, 4), f(5, 3, 2)), "x must have 4 axes", "(2, 3, 4)"),
        ((f(2, 3, 4, 4), f(5, 3, 2)), "same rank", "(5, 3, 2)"),
        ((i(2, 3, 4, 4), f(5, 3, 2, 2)), "floating point", "int32"),
        ((f(2, 3, 4, 4), i(5, 3, 2, 2)), "floating point", "int32"),
        (
            (f(8, 3, 32, 32), f(16, 4, 3, 3)),
            "x has 3 channels but W expects 4 (groups=1)",
            "(8, 3, 32, 32)",
            "(16, 4, 3, 3)",
        ),
        ((f(2, 4, 4, 4), f(5, 2, 2, 2), {"groups": 2}), "groups=2 must divide", "(5, 2, 2, 2)"),
        ((f(2, 3, 4, 4), f(5, 3, 2, 2), {"groups": 0}), "groups must be positive", "groups: 0"),
        ((f(2, 3, 4, 4), f(5, 3, 5, 5)), "output size (0, 0) must be positive", "(5, 3, 5, 5)"),
        ((f(2, 3, 4, 4), f(5, 3, 2, 2), f(4)), "one element per output channel", "(4,)"),
        ((f(2, 3, 4, 4), f(5, 3, 2, 2), None, 0), "stride must be", "stride: 0"),
        ((f(2, 3, 4, 4), f(5, 3, 2, 2), None, (1, 2, 3)), "one integer or 2", "(1, 2, 3)"),
        ((f(2, 3, 4, 4), f(5, 3, 2, 2), None, 1, -1), "pad must be", "pad: -1"),
        ((f(2, 3, 4, 4), f(5, 3, 2, 2), {"dilate": 0}), "dilate must be", "dilate: 0"),
    ],
    "convolution_3d": [
        ((f(2, 3, 4), f(5, 3, 2)), "x must have 5 axes", "(2, 3, 4)"),
        ((f(1, 1, 2, 2, 2), f(1, 1, 3, 1, 1)), "output size (0, 2, 2)", "(1, 1, 3, 1, 1)"),
    ],
    "convolution_nd": [
        ((f(2, 3), f(5, 3)), "rank, 3 or more", "(2, 3)"),
        ((f(2, 3, 4), f(5, 3, 2), None, 1, (1, 1)), "pad must be one integer or 1", "(1, 1)"),
    ],
    "deconvolution_1d": [
        ((f(2, 3, 4, 4), f(3, 5, 2)), "x must have 3 axes", "(2, 3, 4, 4)"),
    ],
    "deconvolution_2d": [
        ((f(2, 3, 4), f(3, 5, 2)), "x must have 4 axes", "(2, 3, 4)"),
        ((f(2, 3, 4, 4), f(5, 3, 2, 2)), "W must have one row per channel of x", "(5, 3, 2, 2)"),
        ((i(2, 3, 4, 4), f(3, 5, 2, 2)), "floating point", "int32"),
        ((f(2, 3, 4, 4), f(3, 5, 2, 2), {"groups": 2}), "groups=2 must divide", "(2, 3, 4, 4)"),
        ((f(2, 3, 4, 4), f(3, 5, 2, 2), f(4)), "one element per output channel", "(4,)"),
        ((f(2, 3, 4, 4), f(3, 5, 2, 2), {"outsize": (9, 9)}), "outsize (9, 9)", "(8, 8)"),
        ((f(2, 3, 4, 4), f(3, 5, 2, 2), {"outsize": 0}), "outsize must be", "outsize: 0"),
        ((f(2, 3, 1, 1), f(3, 5, 2, 2), None, 1, 1), "output size (0, 0)", "(2, 3, 1, 1)"),
        ((f(2, 3, 4, 4), f(3, 5, 2, 2), None, 0), "stride must be", "stride: 0"),
    ],
    "deconvolution_3d": [((f(2, 3, 4), f(3, 5, 2)), "x must have 5 axes", "(2, 3, 4)")],
    "deconvolution_nd": [((f(2, 3), f(3, 5)), "rank, 3 or more", "(2, 3)")],
    "dropout": [
        ((f(3), 1.0), "ratio must be at least 0 and below 1", "1.0"),
        ((f(3), -0.5), "ratio must be at least 0 and below 1", "-0.5"),
        ((i(3),), "x must be floating point", "int32"),
        ((f(3), {"mask": f(4)}), "mask must have the shape of x", "(3,)", "(4,)"),
    ],
    "exp": [((i(3),), "floating point", "int32")],
    "fixed_batch_normalization": [
        ((f(3, 2), f(3), f(2), f(2), f(2)), "gamma must have shape (2,)", "(3,)"),
        ((f(3, 2), f(2), f(2), f(3), f(2)), "mean must have shape (2,)", "(3,)"),
        ((f(3, 2), f(2), f(2), f(2), f()), "var must have shape (2,)", "()"),
        ((i(3, 2), f(2), f(2), f(2), f(2)), "x must be floating point", "int32"),
    ],
    "leaky_relu": [((i(3),), "floating point", "int32")],
    "linear": [
        ((f(3), f(5, 3)), "x must have more axes than n_batch_axes", "(3,)"),
        ((f(2, 3), f(5, 4)), "as many columns as x has features", "(2, 3)", "(5, 4)"),
        ((f(2, 3), f(3)), "as many columns", "(3,)"),
        ((f(2, 3), f(5, 3), f(3)), "as many elements as W has rows", "(3,)", "(5, 3)"),
        ((i(2, 3), f(5, 3)), "floating point", "int32"),
        ((f(2, 3), i(5, 3)), "floating point", "int32"),
        ((f(2, 3), f(5, 3), {"n_batch_axes": 0}), "n_batch_axes must be a positive int", "0"),
        ((f(2, 3), f(5, 3), None, f(2, 4)), "n_batch_axes must be a positive int", "(2, 4)"),
    ],
    "log": [((i(3),), "floating point", "int32")],
    "log_softmax": [
        ((f(3, 2), 2), "axis", "(3, 2)", "2"),
        ((i(3, 2),), "int32"),
    ],
    "matmul": [
        ((f(2, 3), f(2, 3)), "as many columns", "(2, 3)"),
        ((f(2, 3), f(2, 3), True, True), "as many columns", "transa: True"),
        ((f(), f(3)), "need at least one axis", "()"),
        ((f(2, 3, 4), f(3, 4, 5)), "stacks of matrices must broadcast", "(2, 3, 4)", "(3, 4, 5)"),
    ],
    "max_pooling_2d": [
        ((f(2, 3, 4), 2), "x must have 4 axes", "(2, 3, 4)"),
        ((i(2, 3, 4, 4), 2), "floating point", "int32"),
        ((f(2, 3, 4, 4), 6, None, 0, False), "output size", "positive", "(2, 3, 4, 4)"),
        ((f(2, 3, 4, 4), -2), "ksize must be", "ksize: -2"),
    ],
    "max_pooling_nd": [
        ((f(2, 3), 2), "x must have 3 axes or more", "(2, 3)"),
        ((f(2, 3, 4), 2, (1, 1)), "stride must be one integer or 1", "(1, 1)"),
    ],
    "maximum": [((f(3), f(4)), "broadcast", "(3,)", "(4,)")],
    "mean": [
        ((f(3, 2), 2), "axis", "(3, 2)"),
        ((i(3),), "x must be floating point", "int32"),
        ((f(3, 2), 1, f(3)), "weights must broadcast to x", "(3, 2)", "(3,)"),
        ((f(3, 2), None, f(2, 2)), "weights must broadcast to x", "(3, 2)", "(2, 2)"),
    ],
    "mean_squared_error": [
        ((f(3), f(4)), "same shape", "(3,)", "(4,)"),
        ((f(3), f(3, 1)), "same shape", "(3, 1)"),
        ((i(3), i(3)), "floating point", "int32"),
    ],
    "minimum": [((f(3), f(4)), "broadcast", "(3,)", "(4,)")],
    "relu": [((i(3),), "floating point", "int32")],
    "reshape": [
        ((f(3, 2), (4,)), "(3, 2)", "(4,)"),
        ((f(3, 2), (-1, 4)), "(3, 2)", "(-1, 4)"),
        ((f(3, 2), (-1, -1)), "(3, 2)", "(-1, -1)"),
    ],
    "sigmoid": [((i(3),), "floating point", "int32")],
    "sigmoid_cross_entropy": [
        ((f(3), i(4)), "t must be integers of the shape of x", "(3,)", "(4,)"),
        ((f(3), f(3)), "t must be integers", "float32"),
        ((i(3), i(3)), "floating point", "int32"),
        ((f(3), i(3, high=3)), "every element of t must be at least 0 and below 2", "one is 2"),
        ((f(3), i(3, high=-1)), "or -1 (ignored)", "one is -2"),
        ((f(3), i(3), True, "sum"), "reduce must be one of ('mean', 'no')", "'sum'"),
    ],
    "softmax": [
        ((f(3, 2), 2), "axis", "(3, 2)", "2"),
        ((f(3),), "axis", "(3,)"),
        ((i(3, 2),), "int32"),
    ],
    "softmax_cross_entropy": [
        ((f(3), i(3)), "x must be floating point (N, C, ...)", "(3,)"),
        ((i(3, 2), i(3)), "x must be floating point", "int32"),
        ((f(3, 2), i(4)), "t must be integers of the shape of x without axis 1", "(4,)"),
        ((f(3, 2), i(3, 2)), "t must be integers of the shape of x without axis 1", "(3, 2)"),
        ((f(3, 2), f(3)), "t must be integer labels, or distributions of the shape of x", "(3,)"),
        ((f(3, 2), i(3, high=3)), "at least 0 and below 2", "one is 2"),
        ((f(3, 2), i(3, high=-1)), "or -1 (ignored)", "one is -2"),
        ((f(3, 2), i(3, high=0), {"ignore_label": None}), "below 2", "one is -1"),
        ((f(3, 2), i(3, high=0), {"ignore_label": 7}), "or 7 (ignored)", "one is -1"),
        ((f(3, 2), i(3), {"class_weight": f(3)}), "one element per class", "(3,)"),
        ((f(3, 2), i(3), {"reduce": "sum"}), "reduce must be one of ('mean', 'no')", "'sum'"),
        ((f(3, 2), f(3, 2), {"soft_target_loss": "l2"}), "soft_target_loss must be", "'l2'"),
    ],
    "softplus": [((i(3),), "floating point", "int32")],
    "split_axis": [
        ((f(2, 4), 3, 1), "multiple of the number of parts", "(2, 4)", "n: 3"),
        ((f(2, 4), 0, 1), "multiple of the number of parts", "n: 0"),
        ((f(2, 4), 2, 2), "axis must be an axis of x", "axis: 2"),
    ],
    "sqrt": [((i(3),), "floating point", "int32")],
    "square": [],
    "sum": [
        ((f(3, 2), 2), "axis", "(3, 2)", "2"),
        ((f(3, 2), (0, 0)), "axis", "(3, 2)", "(0, 0)"),
    ],
    "sum_to": [
        ((f(3, 2), (3,)), "does not broadcast", "(3,)", "(3, 2)"),
        ((f(3), (1, 3)), "does not broadcast", "(1, 3)", "(3,)"),
    ],
    "swapaxes": [((f(3, 2), 0, 2), "both axes must be axes of x", "(3, 2)", "axis2: 2")],
    "tanh": [((i(3),), "floating point", "int32")],
    "transpose": [
        ((f(3, 2), (0,)), "axes", "(3, 2)", "(0,)"),
        ((f(3, 2), (0, 2)), "axis", "(3, 2)", "(0, 2)"),
        ((f(3, 2), (0, 0)), "axis", "(3, 2)", "(0, 0)"),
    ],
    "where": [((f(3) > 0, f(3), f(4)), "broadcast", "(3,)", "(4,)")],
}
ELSEWHERE = {
    "average": "another name of mean",
    "cast": "takes every array",
    "get_item": "raises NumPy's IndexError, by which Python's iteration ends",
}
CASES = [
    pytest.param(
        name,
        case[0],
        case[1:],
        id=f"{name}-{number}",
    )
    for name, cases in WRONG.items()
    for number, case in enumerate(cases)
]


def test_the_table_is_of_public_functions():
    public = {name for name in F.__all__ if inspect.isfunction(getattr(F, name))}
    assert set(WRONG) | set(ELSEWHERE) <= public


def _call(name, arguments, wrap):
    options = {}
    if arguments and isinstance(arguments[-1], dict):
        *arguments, options = arguments
    return getattr(F, name)(*map(wrap, arguments), **options)


def _as_variable(value):
    if isinstance(value, list):
        return [Variable(x) for x in value]
    return Variable(value) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value


@pytest.mark.parametrize("wrap", [lambda x: x, _as_variable], ids=["arrays", "variables"])
@pytest.mark.parametrize("name, arguments, shown", CASES)
def test_the_message_names_function_rule_and_value(name, arguments, shown, wrap):
    with pytest.raises((InvalidType, ValueError)) as caught:
        _call(name, arguments, wrap)
    message = str(caught.value)
    assert message.startswith(f"{name}: "), message
    for text in shown:
        assert text in message, message


@pytest.mark.parametrize("index", [3, -4, (0, 2), (0, 0, 0), np.array([0, 5])])
def test_an_index_out_of_range_is_an_index_error(index):
    with pytest.raises(IndexError, match=r"out of bounds|too many indices"):
        Variable(f(3, 2))[index]


@pytest.mark.parametrize("index", [1.5, "a", f(3)])
def test_what_is_no_index_is_an_index_error(index):
    with pytest.raises(IndexError, match=r"valid indices|must be of integer"):
        F.get_item(f(3, 2), index)


def test_operators_name_their_function():
    x, y = Variable(f(3)), Variable(f(4))
    for operate, name in [
        (lambda: x + y, "add"),
        (lambda: x - y, "subtract"),
        (lambda: x * y, "multiply"),
        (lambda: x / y, "divide"),
        (lambda: x**y, "power"),
    ]:
        with pytest.raises(
            InvalidType, match=re.escape(f"{name}: operands could not be broadcast")
        ):
            operate()
    with pytest.raises(InvalidType, match=r"^matmul: a must have as many columns"):
        x @ y
    with pytest.raises(InvalidType, match=r"^divide: inputs must be floating point: x0: int32"):
        Variable(i(3)) / Variable(i(3))


def test_the_error_is_the_same_with_debug_mode_and_hooks():
    with pytest.raises(InvalidType) as plain:
        F.exp(i(3))
    with mpchain.using_config("debug", True), pytest.raises(InvalidType) as debugging:
        F.exp(i(3))
    assert str(plain.value) == str(debugging.value)


def test_labels_are_checked_on_images_and_with_ignored_ones():
    x, t = f(2, 3, 2), np.array([[0, -1], [2, 1]])
    assert F.softmax_cross_entropy(x, t).shape == ()
    with pytest.raises(ValueError, match=r"below 3, or 5 \(ignored\), but one is -1"):
        F.softmax_cross_entropy(x, t, ignore_label=5)
    with pytest.raises(ValueError, match=r"below 3, but one is -1"):
        F.softmax_cross_entropy(x, t, ignore_label=None)
    t[1, 0] = 3
    with pytest.raises(ValueError, match=r"but one is 3"):
        F.softmax_cross_entropy(x, t)


@pytest.mark.parametrize("wrong", [[[1.0, 2.0]], None, "text", (1, 2)], ids=repr)
@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (F.relu, "relu: x"),
        (lambda x: F.add(np.ones(2), x), r"add: xs\[1\]"),
        (lambda x: F.linear(np.ones((1, 2)), W=x), "linear: W"),
        (lambda x: F.convolution_2d(x, np.ones((1, 1, 1, 1))), "convolution_2d: x"),
        (
            lambda x: F.batch_normalization(np.ones((2, 2)), x, np.ones(2)),
            "batch_normalization: gam",
        ),
        (lambda x: F.concat([np.ones(2), x], axis=0), r"concat: inputs\[1\]"),
        (lambda x: F.stack([np.ones(2), x]), r"stack: xs\[1\]"),
        (F.dropout, "dropout: x"),
        (L.Linear(2, 3), "Linear: x"),
        (Sequential(L.Linear(2, 3)), "Sequential: x"),
    ],
)
def test_what_is_no_array_is_named(call, argument, wrong):
    kind, value = type(wrong).__name__, re.escape(repr(wrong))
    rule = f"^{argument}.* must be a Variable or an array, not {kind}: {value}$"
    with pytest.raises(TypeError, match=rule):
        call(wrong)


def test_other_errors_stay_as_they_are():
    class Asking(Chain):
        def forward(self, x, options):
            return x * options.factor

    with pytest.raises(AttributeError, match="'dict' object has no attribute 'factor'"):
        Asking()(np.ones(2), {"factor": 2})
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'W'"):
        F.linear(np.ones((1, 2)))


def test_functions_keep_their_names_and_can_be_pickled():
    for function in (F.linear, F.relu, F.dropout):
        assert pickle.loads(pickle.dumps(function)) is function
        assert copy.deepcopy(Sequential(function))[0] is function
    assert list(inspect.signature(F.linear).parameters) == ["x", "W", "b", "n_batch_axes"]


@pytest.mark.parametrize("function", [F.arctan2, F.squared_error], ids=["numpy", "checked"])
def test_wrong_input_is_a_value_error(function):
    with pytest.raises(ValueError, match=rf"^{function.__name__}: ") as caught:
        function(f(3), f(2))
    assert isinstance(caught.value, InvalidType)
