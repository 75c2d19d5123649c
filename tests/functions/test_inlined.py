"""Tests formulas that call other declared functions: all orders use the declared derivatives."""

import mpmath
import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable, elementwise


def derivatives(function, x, orders=4):
    """Returns the derivatives of orders 1, 2, ... at the points of an array."""
    x = Variable(np.asarray(x))
    y, found = function(x), []
    for _ in range(orders):
        y = mpchain.grad([y], [x], enable_double_backprop=True)[0]
        if y is None:
            return found + [np.zeros_like(x.array)] * (orders - len(found))
        found.append(y.array)
    return found


def _logistic(x):
    return 1 / (1 + mpmath.exp(-x))


# For each name: the function, and the function in mpmath. The formulas of each function or of its
# derivatives call other declared functions, such as sigmoid.
INLINING = {
    "silu": (F.silu, lambda x: x * _logistic(x)),
    "mish": (F.mish, lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x)))),
    "softplus": (F.softplus, lambda x: mpmath.log1p(mpmath.exp(x))),
    "softplus of 3 x": (
        lambda x: F.softplus(x, 3.0),
        lambda x: mpmath.log1p(mpmath.exp(3 * x)) / 3,
    ),
    "gelu": (F.gelu, lambda x: x * mpmath.ncdf(x)),
    "gelu by tanh": (
        lambda x: F.gelu(x, "tanh"),
        lambda x: x * _logistic(2 * mpmath.sqrt(2 / mpmath.pi) * (x + 0.044715 * x**3)),
    ),
    "log_ndtr": (F.log_ndtr, lambda x: mpmath.log(mpmath.ncdf(x))),
}


@pytest.mark.parametrize("name", INLINING)
def test_four_orders_where_the_body_of_what_is_called_has_kinks(name):
    function, reference = INLINING[name]
    points = [0.0, -0.0, 1.0, -1.0, -4.0]
    found = derivatives(function, points)
    with mpmath.workdps(60):
        for order, values in enumerate(found, 1):
            expected = [float(mpmath.diff(reference, x, order)) for x in points]
            # In double precision, terms of up to 50 cancel in the fourth order of softplus of 3 x.
            np.testing.assert_allclose(values, expected, 1e-12, 1e-13, err_msg=str(order))


@elementwise(lambda g: -g)
def _reversed_gradient(x):
    return x


@elementwise(lambda g: g)
def _straight_through(x):
    return np.sign(x)


@elementwise(lambda g, y: g * y)
def _exponential(x):
    return np.exp(np.minimum(x, 0)) * np.exp(np.maximum(x, 0))


# For each declared function, its derivatives of orders 1 and 2, as declared.
DECLARED = {
    "reversed gradient": (_reversed_gradient, lambda x: (-1 + 0 * x, 0 * x)),
    "straight through": (_straight_through, lambda x: (1 + 0 * x, 0 * x)),
    "exponential": (_exponential, lambda x: (np.exp(x), np.exp(x))),
    "relu": (F.relu, lambda x: (1.0 * (x > 0), 0 * x)),
}


@pytest.mark.parametrize("name", DECLARED)
def test_what_is_called_is_differentiated_as_declared(name):
    inner, expected = DECLARED[name]

    @elementwise(lambda g, x: g * inner.on(x) * 2)
    def integral(x):
        return x * 1

    x = np.array([-1.0, 0.0, 2.0])
    _, *found = derivatives(integral, x, 3)
    np.testing.assert_allclose(found, 2 * np.array(expected(x)), 1e-14)


def test_the_left_tails_are_not_lost():
    with mpmath.workdps(30):
        for dtype in (np.float32, np.float64):
            x = np.array([-15, -20, -50, -80], dtype)
            expected = [float(_logistic(mpmath.mpf(float(v)))) for v in x]
            # The exponential of x has an error of a few units in the last place.
            tolerance = 8 * np.finfo(dtype).eps
            np.testing.assert_allclose(F.sigmoid(x).array, expected, tolerance)
            np.testing.assert_allclose(F.log(F.sigmoid(x)).array, np.log(expected), tolerance)
            for function, value in [
                (F.sigmoid, lambda s, x: s),
                (F.softplus, lambda s, x: s),
                (F.silu, lambda s, x: s * (1 + x)),
                (F.mish, lambda s, x: s * (1 + x)),
            ]:
                gradient = derivatives(function, x, 1)[0]
                tail = value(np.array(expected), x.astype(np.float64))
                # Terms as small as the sigmoid of -15, 3e-7, are omitted.
                np.testing.assert_allclose(gradient, tail, max(tolerance, 2e-6))


def test_half_precision_has_the_tail_that_it_can_hold():
    x = np.array([-5, -8, -12, -15, -17], np.float16)
    expected = 1 / (1 + np.exp(-x.astype(np.float64)))
    # Numbers below 6e-5 are multiples of 6e-8.
    np.testing.assert_allclose(F.sigmoid(x).array, expected, 2e-3, 6e-8)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_gelu_by_tanh_is_flat_or_the_identity_far_from_zero(dtype):
    far = [30, 60, 300, np.finfo(dtype).max]
    x = np.array([*far, *(-v for v in far)], dtype)
    np.testing.assert_array_equal(F.gelu(x, "tanh").array, np.maximum(x, 0))
    first, second, third = derivatives(lambda x: F.gelu(x, "tanh"), x, 3)
    np.testing.assert_array_equal(first, x > 0)
    np.testing.assert_array_equal(second, 0 * x)
    np.testing.assert_array_equal(third, 0 * x)
