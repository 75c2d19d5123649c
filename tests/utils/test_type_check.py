"""Tests type checks: snippets and messages of Chainer's guide to type checks, expressions, and
checks of users' functions."""

import pickle

import numpy as np
import pytest

import mpchain
from mpchain import FunctionNode
from mpchain.utils import type_check
from mpchain.utils.type_check import InvalidType, Variable, check, expect

X, Y = type_check.get_types((np.zeros((3, 4, 5), "f"), np.zeros((1, 4), int)), "in_types", False)
sum_ = Variable(np.sum, "sum")


def _message(condition):
    with pytest.raises(InvalidType) as info:
        expect(condition)
    return str(info.value)


@pytest.mark.parametrize(
    "condition, message",
    [
        (X.ndim == 2, "Expect: in_types[0].ndim == 2\nActual: 3 != 2"),
        (
            X.dtype == np.float64,
            "Expect: in_types[0].dtype == <class 'numpy.float64'>\n"
            "Actual: float32 != <class 'numpy.float64'>",
        ),
        (
            X.shape[0] == Y.shape[0] * 4,
            "Expect: in_types[0].shape[0] == in_types[1].shape[0] * 4\nActual: 3 != 4",
        ),
        (X.shape[0] == 4, "Expect: in_types[0].shape[0] == 4\nActual: 3 != 4"),
        (
            X.shape[0] == Variable(4, "in_size"),
            "Expect: in_types[0].shape[0] == in_size\nActual: 3 != 4",
        ),
        (sum_(Y.shape) == 10, "Expect: sum(in_types[1].shape) == 10\nActual: 5 != 10"),
        (X.shape[0] < 0, "Expect: in_types[0].shape[0] < 0\nActual: 3 >= 0"),
        (X.dtype.kind == "i", "Expect: in_types[0].dtype.kind == i\nActual: f != i"),
        (
            X.shape[1] == Y.shape[0],
            "Expect: in_types[0].shape[1] == in_types[1].shape[0]\nActual: 4 != 1",
        ),
    ],
    ids=str,
)
def test_messages_of_the_guide(condition, message):
    assert _message(condition) == message


@pytest.mark.parametrize(
    "condition",
    [X.shape[0] > 0, X.dtype.kind == "f", X.shape[1] == Y.shape[1], sum_(X.shape) == 12],
    ids=str,
)
def test_conditions_of_the_guide_that_hold(condition):
    expect(condition)


@pytest.mark.parametrize(
    "text",
    [
        "x.shape[1:] == (4, 5)",
        "x.shape[:-1] != x.shape[::2]",
        "x.ndim + x.ndim - 1 <= 5",
        "x.ndim - (x.ndim - 1) >= 1",
        "(x.ndim + 1) * 2 // 3 % 2 < 1",
        "1 + 2 * x.ndim / 4 > 2.4",
        "(x.ndim ** 2) ** 2 == x.ndim ** x.ndim + 54",
        "-(x.ndim + 1) == ~x.ndim",
        "(-x.ndim) ** 2 == 9",
        "x.ndim << 2 >> 1 == 6",
        "x.ndim | 4 == 7",
        "(x.ndim ^ 1) & (x.ndim | 1) == 2",
        "f(x.shape[0], x.shape[x.ndim - 1]) == 5",
        "x.shape.count(3) == 1",
        "(x.shape + x.shape)[4] == 4",
        "x.shape == (3, x.shape[1], 5)",
        "(1,) + x.shape == (1, 3, 4, 5)",
        "d['k'] == [3, x.ndim]",
        "(x.ndim == 3) == (x.ndim > 2)",
        "x.shape[0:x.ndim - 1] == (3, 4)",
        "x.dtype.name == 'float32'",
        "2 ** x.ndim - x.ndim == 5",
    ],
)
def test_an_expression_shows_what_was_written_and_has_its_value(text):
    names = {
        "x": Variable(X.eval(), "x"),
        "f": Variable(max, "f"),
        "d": Variable({"k": [3, 3]}, "d"),
    }
    expression = eval(text, names)
    assert str(expression) == text
    assert type_check.eval(expression)
    expect(expression)


def test_the_number_of_types():
    types = type_check.get_types((np.zeros(2),), "in_types", False)
    assert types.size().eval() == 1
    assert _message(types.size() == 2) == "Expect: in_types.size == 2\nActual: 1 != 2"


def test_the_first_condition_that_fails_is_shown_and_later_ones_are_not_evaluated():
    with pytest.raises(InvalidType, match=r"in_types\[0\].ndim == 4\nActual: 3 != 4"):
        expect(X.ndim == 3, X.ndim == 4, X.shape[7] == 1)


def test_conditions_that_are_no_comparisons():
    both = (X.ndim == 3) & (Y.ndim == 3)
    assert _message(both) == f"Expect: {both}\nActual: False"
    assert _message(Variable(0, "n")) == "Expect: n\nActual: 0"
    assert _message(1 > 2) == "Expect: condition 0 to hold\nActual: False"
    expect(True, X.ndim)


def test_an_expression_has_no_truth_value_and_no_iterator():
    with pytest.raises(RuntimeError, match="An Expr instance cannot be evaluated as bool"):
        bool(1 < X.ndim < 2)
    with pytest.raises(TypeError):
        list(X.shape)
    with pytest.raises(NotImplementedError, match="Expr does not implement eval"):
        type_check.Expr().eval()


def test_numpy_numbers_on_the_left():
    assert str(np.int64(2) + X.ndim == np.float32(5)).startswith("np.int64(2) + in_types[0].ndim")
    assert type_check.eval(np.int64(2) * X.ndim) == 6


def test_types():
    actual = X.eval()
    assert (actual.shape, actual.dtype, actual.ndim, actual.size) == ((3, 4, 5), "f", 3, 60)
    assert repr(actual) == "float32 (3, 4, 5)"
    (stated,) = type_check.get_types((np.zeros((2, 3)),), "in_types", False, shapes=((6,),))
    assert stated.shape.eval() == (6,) and stated.dtype.eval() == np.float64
    optional = type_check.get_types((None,), "gys", True)
    assert optional[0].eval() is None and str(optional[0]) == "gys[0]"
    with pytest.raises(TypeError, match=r"get_types: in_types\[0\] is None"):
        type_check.get_types((None,), "in_types", False)
    assert type_check.eval((X.ndim, 7)) == (3, 7)
    assert str(type_check.make_variable(3, "n") + type_check.Constant("b")) == "n + 'b'"


def test_prod_and_same_types():
    assert type_check.prod(X.shape).eval() == 60 and type_check.prod([X.ndim, 2]).eval() == 6
    assert _message(type_check.prod(Y.shape) == 3) == (
        "Expect: prod(in_types[1].shape) == 3\nActual: 4 != 3"
    )
    assert type_check.same_types(np.zeros(1), np.ones(2)) and type_check.same_types()
    assert not type_check.same_types(np.zeros(1), 1.0)


def test_broadcast_shapes():
    a, b = type_check.make_variable((3, 4), "a"), type_check.make_variable((4,), "b")
    type_check.expect_broadcast_shapes(a, b)
    with pytest.raises(InvalidType) as info:
        type_check.expect_broadcast_shapes(a, b, X.shape)
    assert str(info.value) == (
        "cannot broadcast inputs of the following shapes:\n"
        "a = (3, 4)\nb = (4,)\nin_types[0].shape = (3, 4, 5)"
    )


def test_invalid_type():
    error = InvalidType("Shape is expected to be ...", "Shape is ...")
    assert str(error) == "Expect: Shape is expected to be ...\nActual: Shape is ..."
    assert (error.expect, error.actual) == ("Shape is expected to be ...", "Shape is ...")
    assert str(InvalidType("a", "b", "message")) == str(InvalidType("message")) == "message"
    copied = pickle.loads(pickle.dumps(error))
    assert str(copied) == str(error) and vars(copied) == vars(error)


def test_check():
    check(True, "f", "x must be small", x=3)
    with pytest.raises(InvalidType) as info:
        check(False, "f", "x must be small", x=np.zeros((2, 3), "f"), n=7)
    assert str(info.value) == "f: x must be small: x: float32 (2, 3), n: 7"


class Scaled(FunctionNode):
    """A user's function, with the typical check of Chainer's guide and a check written by hand."""

    in_size = 2

    def check_type_forward(self, in_types):
        expect(in_types.size() == 2)
        x_type, y_type = in_types
        expect(
            x_type.dtype == np.float32,
            x_type.ndim == 3,
            x_type.shape[1] == Variable(self.in_size, "in_size"),
            y_type.shape == x_type.shape[:1],
        )
        x_shape = x_type.shape.eval()
        if x_shape[0] > x_shape[2]:
            raise InvalidType("Shape is expected to be ...", "Shape is ...")

    def forward(self, inputs):
        x, y = inputs
        return (x * y[:, None, None],)


def test_a_users_function_is_checked_before_forward():
    x, y = np.ones((3, 2, 5), "f"), np.arange(3, dtype="f")
    assert Scaled().apply((x, y))[0].shape == x.shape
    head = "\nInvalid operation is performed in: Scaled (Forward)\n\n"
    for inputs, message in [
        ((x,), "Expect: in_types.size == 2\nActual: 1 != 2"),
        (
            (x.astype("d"), y),
            "Expect: in_types[0].dtype == <class 'numpy.float32'>\n"
            "Actual: float64 != <class 'numpy.float32'>",
        ),
        ((x[:, 0, 0], y), "Expect: in_types[0].ndim == 3\nActual: 1 != 3"),
        ((x[:, :1], y), "Expect: in_types[0].shape[1] == in_size\nActual: 1 != 2"),
        (
            (x, y[:2]),
            "Expect: in_types[1].shape == in_types[0].shape[:1]\nActual: (2,) != (3,)",
        ),
        ((x[:, :, :1], y), "Expect: Shape is expected to be ...\nActual: Shape is ..."),
    ]:
        with pytest.raises(InvalidType) as info:
            Scaled().apply(inputs)
        assert str(info.value) == head + message
        expected = message.removeprefix("Expect: ").split("\nActual: ")
        assert [info.value.expect, info.value.actual] == expected


def test_the_check_is_switched_off_by_the_configuration():
    x, y = np.ones((3, 1, 5)), np.arange(3.0)
    with mpchain.using_config("type_check", False):
        (z,) = Scaled().apply((x, y))
    np.testing.assert_array_equal(z.array, x * y[:, None, None])


def test_an_old_style_function_is_checked_the_same_way():
    class Double(mpchain.function.Function):
        def check_type_forward(self, in_types):
            expect(in_types[0].ndim == 2)

        def forward(self, inputs):
            return (2 * inputs[0],)

    type_check.check_forward(Double(), (np.ones((1, 2)),))
    with pytest.raises(InvalidType, match=r"performed in: Double \(Forward\)\n\nExpect: in_types"):
        type_check.check_forward(Double(), (np.ones(3),))
