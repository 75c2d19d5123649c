"""Tests exponentials, logarithms, powers, comparisons, rounding, trigonometric functions and
arithmetic."""

import functools
import math

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.functions.test_table import TABLE as FIRST
from tests.reference import torch

pytestmark = pytest.mark.slow

TABLE = [
    row("expm1", F.expm1, torch.expm1, (3, 4)),
    row("log1p", F.log1p, torch.log1p, (3, 4), low=-0.5),
    row("log2", F.log2, torch.log2, (3, 4), low=0.5),
    row("log10", F.log10, torch.log10, (3, 4), low=0.5),
    row("rsqrt", F.rsqrt, torch.rsqrt, (3, 4), low=0.5),
    row("squared_difference", F.squared_difference, lambda a, b: (a - b) ** 2, (3, 4), (3, 4)),
    row("fmod", F.fmod, torch.fmod, (3, 4), (4,), low=1.3, high=1.9),
    row(
        "fmod negative",
        lambda a, b: F.fmod(-3 * a, b),
        lambda a, b: torch.fmod(-3 * a, b),
        (3, 4),
        (3, 4),
        low=1.3,
        high=1.5,
    ),
    row("clip", lambda x: F.clip(x, -0.5, 1), lambda x: x.clip(-0.5, 1), (3, 4), smooth=False),
    row("clip below", lambda x: F.clip(x, 0.4, None), lambda x: x.clip(0.4), (3, 4), smooth=False),
    row(
        "clip above",
        lambda x: F.clip(x, None, 0.4),
        lambda x: x.clip(None, 0.4),
        (3, 4),
        smooth=False,
    ),
    row("sin", F.sin, torch.sin, (3, 4)),
    row("cos", F.cos, torch.cos, (3, 4)),
    row("tan", F.tan, torch.tan, (3, 4), low=-1, high=1),
    row("arcsin", F.arcsin, torch.arcsin, (3, 4), low=-0.8, high=0.8),
    row("arccos", F.arccos, torch.arccos, (3, 4), low=-0.8, high=0.8),
    row("arctan", F.arctan, torch.arctan, (3, 4)),
    row("arctan2", F.arctan2, torch.arctan2, (3, 4), (4,), low=0.5),
    row("arctan2 of every quadrant", F.arctan2, torch.arctan2, (3, 4), (3, 4), smooth=False),
    row("sinh", F.sinh, torch.sinh, (3, 4)),
    row("cosh", F.cosh, torch.cosh, (3, 4)),
    row("arctanh", F.arctanh, torch.arctanh, (3, 4), low=-0.8, high=0.8),
    row("identity", F.identity, lambda x: x, (3, 4)),
    row("identity of two", F.identity, lambda *xs: xs, (3, 4), (2,)),
    row(
        "linear_interpolate",
        F.linear_interpolate,
        lambda p, x, y: p * x + (1 - p) * y,
        (3, 4),
        (3, 4),
        (3, 4),
    ),
    row("scale", F.scale, lambda x, y: x * y[:, None], (2, 3, 4), (3,)),
    row(
        "scale axes",
        functools.partial(F.scale, axis=0),
        lambda x, y: x * y[..., None],
        (2, 3, 4),
        (2, 3),
    ),
    row("scale by a scalar", F.scale, lambda x, y: x * y, (2, 3), ()),
    row("bias", F.bias, lambda x, y: x + y[:, None], (2, 3, 4), (3,)),
    row("bias last axis", functools.partial(F.bias, axis=2), lambda x, y: x + y, (2, 3, 4), (4,)),
]

test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_a_table():
    families = "arithmetic", "mathematics", "trigonometric"
    # The derivatives of the arc tangents use these two functions.
    derivatives = {"lorentzian", "inverse_part"}
    assert uncovered([*TABLE, *FIRST], *families) == derivatives


@pytest.mark.parametrize(
    "function, expected",
    [
        (F.ceil, [-1, 0, 1, 2, 3]),
        (F.floor, [-2, -1, 0, 2, 2]),
        (F.fix, [-1, 0, 0, 2, 2]),
        (F.sign, [-1, -1, 1, 1, 1]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_flat_functions_have_no_gradient(function, expected, dtype):
    x = Variable(np.array([-1.5, -0.5, 0.5, 2, 2.5], dtype))
    y = function(x)
    assert isinstance(y, Variable) and y.dtype == dtype and y.array.tolist() == expected
    assert not y.requires_grad and y.creator is None
    assert function(x.array).array.tolist() == expected
    scalar = function(Variable(np.array(1.0, dtype)))
    assert isinstance(scalar.array, np.ndarray) and scalar.array == 1
    assert function(np.array([1, 2])).array.tolist() in ([1, 2], [1, 1])


def test_the_limits_of_clip_have_a_gradient():
    x = Variable(np.array([-2.0, -1, 0, 1, 2]))
    y = F.clip(x, -1, 1)
    y.grad = np.ones(5)
    y.backward()
    assert y.array.tolist() == [-1, -1, 0, 1, 1] and x.grad.tolist() == [0, 1, 1, 1, 0]


@pytest.mark.parametrize("limits", [(1, 1), (2.0, 1.0), (math.nan, 1)])
def test_clip_needs_an_interval(limits):
    with pytest.raises(ValueError, match="clip: x_min must be less than x_max, but x_min is "):
        F.clip(np.ones(3), *limits)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_inputs(dtype):
    x = np.array([1e4, -1e4], dtype)
    for function in (F.sin, F.cos, F.arctan, F.rsqrt, F.log1p, F.log2, F.log10):
        y = Variable(abs(x) if function not in (F.sin, F.cos, F.arctan) else x)
        z = function(y)
        z.grad = np.ones_like(x)
        z.backward()
        assert np.isfinite(z.array).all() and np.isfinite(y.grad).all()
    np.testing.assert_array_equal(F.expm1(np.array([-1e4], dtype)).array, [-1])
    a, b = Variable(x), Variable(x[::-1].copy())
    z = F.arctan2(a, b)
    z.grad = np.ones_like(x)
    z.backward()
    np.testing.assert_allclose(a.grad, -1 / (2 * x), 1e-6)
    np.testing.assert_allclose(b.grad, -1 / (2 * x), 1e-6)


@pytest.mark.parametrize(
    "function",
    [
        *(F.expm1, F.log1p, F.log2, F.log10, F.rsqrt, F.sin, F.cos, F.tan),
        *(F.arcsin, F.arccos, F.arctan, F.sinh, F.cosh, F.arctanh),
    ],
)
def test_functions_of_one_argument_take_floating_point_of_any_shape(function):
    name = function.__name__
    for shape in [(), (0, 3)]:
        x = Variable(np.full(shape, 0.5, np.float32))
        y = function(x)
        F.sum(y).backward()
        assert isinstance(y.array, np.ndarray) and y.shape == shape and y.dtype == np.float32
        assert x.grad.shape == shape
    with pytest.raises(InvalidType, match=f"{name}: inputs must be floating point.*int64"):
        function(np.array([1, 2]))
    expected = {"rsqrt": lambda x: x**-0.5}.get(name) or getattr(np, name)
    x = Variable(np.array([0.25, 0.75]))
    np.testing.assert_allclose(function(x).array, expected(x.array), 1e-14)
    if name != "rsqrt":  # NumPy's function of the same name accepts Variables
        assert expected(x).creator.label == name


@pytest.mark.parametrize(
    "function, xs, message",
    [
        (F.squared_difference, [(2, 3), (3,)], "x1 and x2 must have the same shape.*(3,)"),
        (F.linear_interpolate, [(2,), (2,), (1, 2)], "p, x and y must have the same shape.*(1, 2)"),
        (F.scale, [(2, 3), (2,)], "shape of x from axis 1 on.*(2,)"),
        (F.bias, [(2, 3), (3, 1)], "shape of x from axis 1 on.*(3, 1)"),
        (functools.partial(F.bias, axis=-1), [(2, 3), (3,)], "from axis -1 on.*(3,)"),
        (F.fmod, [(2,), (3,)], "broadcast.*(3,)"),
        (F.arctan2, [(2,), (3,)], "broadcast.*(3,)"),
    ],
)
def test_shapes_that_do_not_fit(function, xs, message):
    name = getattr(function, "func", function).__name__
    pattern = f"{name}: .*" + message.translate({ord(c): "\\" + c for c in "()[]"})
    with pytest.raises(InvalidType, match=pattern):
        function(*(np.ones(shape) for shape in xs))


def test_identity_is_a_function():
    x = Variable(np.ones(2))
    y = F.identity(x)
    assert y is not x and y.creator.label == "identity"
    y, z = F.identity(x, np.ones(3))
    assert y.requires_grad and not z.requires_grad


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_of_zero_have_finite_slopes_by_the_exponent(dtype):
    x, y = Variable(np.zeros(4, dtype)), Variable(np.array([0, 0.5, 1, 2], dtype))
    z = x**y
    np.testing.assert_array_equal(z.array, [1, 0, 0, 0])
    with np.errstate(divide="ignore"):  # the derivative of the root divides by x
        by_x, by_y = mpchain.grad([z], [x, y], enable_double_backprop=True)
    np.testing.assert_array_equal(by_x.array, [0, np.inf, 1, 0])
    np.testing.assert_array_equal(by_y.array, [0, 0, 0, 0])
    np.testing.assert_array_equal(mpchain.grad([by_y], [y])[0].array, [0, 0, 0, 0])
    np.testing.assert_array_equal(mpchain.grad([0.0**y], [y])[0].array, [0, 0, 0, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_slopes_of_arctan2_at_any_distance(dtype):
    info = np.finfo(dtype)
    sizes = np.array([0, info.tiny, 1e-30, 1e-25, 1, 1e25, 1e30, info.max / 4], dtype)
    x1, x2 = Variable(sizes), Variable(-sizes)
    slopes = mpchain.grad([F.arctan2(x1, x2)], [x1, x2], enable_double_backprop=True)
    with np.errstate(divide="ignore"):
        expected = np.where(sizes > 0, -0.5 / sizes, 0)
    for slope in slopes:
        # The bound is the rounding error of four operations, and subnormal numbers.
        np.testing.assert_allclose(slope.array, expected, 4 * info.eps, info.tiny)
    far = Variable(sizes[4:])
    (slope,) = mpchain.grad([F.arctan2(far, -sizes[4:])], [far], enable_double_backprop=True)
    (second,) = mpchain.grad([slope], [far])
    with np.errstate(over="ignore", under="ignore"):
        expected = 0.5 / sizes[4:] / sizes[4:]
    np.testing.assert_allclose(second.array, expected, 8 * info.eps, info.tiny)
