"""Tests gradient checks: right functions pass, and wrong derivatives and kinks are found."""

import unittest

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import FunctionNode, Parameter, Variable, gradient_check, testing
from mpchain.gradient_check import (
    NondifferentiableError,
    assert_allclose,
    check_backward,
    check_double_backward,
    check_order,
    numerical_grad,
)


class Power(FunctionNode):
    """Computes x ** n; derivatives up to the order ``right`` are right, the next derivative is
    wrong."""

    def __init__(self, n, right):
        self.n, self.right = n, right

    def forward(self, inputs):
        self.retain_inputs((0,))
        return (inputs[0] ** self.n,)

    def backward(self, indexes, gys):
        if self.n == 0:
            return (None,)
        (slope,) = Power(self.n - 1, self.right - 1).apply(self.get_retained_inputs())
        return ((self.n if self.right else self.n - 1) * slope * gys[0],)


def cube(right):
    return lambda x: Power(3, right).apply((x,))[0]


def _send(device, *arrays):
    return mpchain.get_device(device).send(arrays)


X = np.array([[1.0, -2.0, 3.0], [0.5, 1.5, -0.7]])
GY = np.array([[1.0, 0.5, -1.0], [2.0, -0.3, 0.2]])


def test_numerical_grad_of_the_guide(device):
    x, gy = _send(device, np.random.randn(4, 3).astype("f"), np.ones((4, 3), "f"))
    original = x.copy()
    (gx,) = numerical_grad(lambda: (x * x,), (x,), (gy,))
    assert gx.dtype == np.float32 and type(gx) is type(x)
    assert_allclose(gx, 2 * x, atol=1e-3, rtol=1e-3)
    assert_allclose(x, original, 0, 0)


def test_numerical_grad_of_several_inputs_and_outputs():
    x, y = np.random.randn(2, 3), np.array(2.0)
    gx, gy = numerical_grad(lambda: (x * y, y**3, x), (x, y), (np.ones((2, 3)), 2.0, None))
    assert_allclose(gx, np.full((2, 3), 2.0))
    assert_allclose(gy, x.sum() + 2 * 3 * y**2)


@pytest.mark.parametrize("dtype, eps", [("e", 2.0**-4), ("f", 1e-3)])
def test_numerical_grad_uses_the_step_as_it_was_rounded(dtype, eps):
    # The difference between x + eps and x - eps is far from exact here, but the function is exact.
    x = np.array([100.3, 7.7], dtype)
    (gx,) = numerical_grad(lambda: (x * 2,), (x,), (np.ones(2),), eps=eps)
    np.testing.assert_array_equal(gx, 2)


def test_misuse_of_numerical_grad():
    x = np.ones(2)
    with pytest.raises(RuntimeError, match=r"must be floating-point, but inputs\[1\] is int64"):
        numerical_grad(lambda: (x,), (x, np.array([1])), (x,))
    with pytest.raises(ValueError, match="a gradient for each output: 1 outputs, 2 gradients"):
        numerical_grad(lambda: (x,), (x,), (x, x))


@pytest.mark.parametrize(
    "function", [abs, np.sign, np.sqrt, lambda x: np.maximum(x, 4e-4)], ids=["kink", "jump"] * 2
)
def test_numerical_grad_detects_kinks_and_jumps(function):
    x = np.array([1.0, 2e-4])
    options = {"detect_nondifferentiable": True}
    with pytest.raises(NondifferentiableError, match=r"element \(1,\) of output 0 takes the val"):
        with np.errstate(invalid="ignore"):
            numerical_grad(lambda: (function(x),), (x,), (np.ones(2),), **options)
    x[1] = 2.0
    center = function(x)
    numerical_grad(lambda: (function(x),), (x,), (np.ones(2),), center_outputs=(center,), **options)


@pytest.mark.parametrize("dtype", ["e", "f", "d"])
def test_smooth_functions_are_not_taken_for_kinked(dtype):
    x = np.linspace(-2, 2, 50).astype(dtype)
    eps = 1e-3 if dtype == "d" else 2.0**-5
    f = lambda: (np.square(x), np.sin(x), np.exp(x), np.ones_like(x), (x + 0.51).astype(int))
    numerical_grad(f, (x,), (x, x, x, x, None), eps, detect_nondifferentiable=True)


class TestReLU(unittest.TestCase):
    """The two tests in Chainer's guide to defining functions."""

    def test_backward_cpu(self):
        x = Variable(np.random.randn(3, 2).astype(np.float32))
        y = F.relu(x)
        y.grad = np.random.randn(3, 2).astype(np.float32)
        y.backward(retain_grad=True)

        def f():
            return (F.relu(x).array,)

        (gx,) = gradient_check.numerical_grad(f, (x.array,), (y.grad,))
        testing.assert_allclose(gx, x.grad)

    def test_check_backward(self):
        x = np.random.randn(3, 2).astype(np.float32)
        y_grad = np.random.randn(3, 2).astype(np.float32)
        gradient_check.check_backward(F.relu, x, y_grad, atol=1e-4, rtol=1e-4)


def test_right_functions_pass(device):
    x, gy, ggx = _send(device, X, GY, X + 1)
    check_backward(cube(9), x, gy)
    check_double_backward(cube(9), x, gy, ggx)
    for order in (1, 2, 3, 4):
        check_order(cube(9), x, order)


def test_wrong_derivatives_are_found_at_their_order(device):
    x, gy, ggx = _send(device, X, GY, X + 1)
    with pytest.raises(AssertionError) as info:
        check_backward(cube(0), x, gy)
    message = str(info.value)
    assert message.startswith("check_backward failed (eps=0.001 atol=1e-05 rtol=0.0001)\ninputs[0]")
    assert "\ngrad_outputs[0]:\n[[" in message and "\ndirections[0]:\n[[" in message
    numeric, analytic = (float(line.split(":")[1]) for line in message.splitlines()[-2:])
    assert numeric == pytest.approx(1.5 * analytic, rel=1e-4)

    check_backward(cube(1), x, gy)
    with pytest.raises(AssertionError, match=r"^check_double_backward failed(.|\n)*input\[0\]"):
        check_double_backward(cube(1), x, gy, ggx)
    for right in range(3):
        for order in range(1, right + 1):
            check_order(cube(right), x, order)
        with pytest.raises(AssertionError, match=f"the derivative of order {right + 1} is"):
            check_order(cube(right), x, right + 1)


def test_the_direction_has_length_one_and_no_tiny_element():
    seen = []

    def f(x, y):
        seen.append(np.concatenate([x.array, y.array]))
        return F.sum(x) * F.sum(y)

    check_backward(f, (np.ones(20), np.ones(30)), None, eps=0.5)
    steps = [(x - 1) / 0.5 for x in seen]
    np.testing.assert_allclose([np.linalg.norm(v) for v in steps], [0, 1, 1])
    assert abs(steps[1]).min() > 0.05 / np.sqrt(50)


def test_a_float16_function_is_checked_precisely_in_float64(device):
    # The spacing of float16 at these numbers is up to 1 / 512, too coarse for steps of 0.001.
    x, gy = _send(device, X.astype("e"), GY.astype("e"))
    seen = []

    def f(x):
        seen.append(x.dtype)
        return x * x

    check_backward(f, x, gy, dtype=np.float64, atol=1e-2, rtol=1e-2)
    assert seen == [np.float16, np.float64, np.float64]
    with pytest.raises(ValueError, match="dtype must be floating-point, not int32"):
        check_backward(f, x, gy, dtype=np.int32)


def test_inputs_without_gradient():
    t, mask = np.array([0, 2]), np.array([[1.0, 0, 1], [0, 1, 1]])

    def f(x, t, mask, nothing):
        assert nothing is None
        return x[[0, 1], t.array] ** 2 * F.sum(x * mask.array)

    no_grads = (False, True, True, True)
    inputs = (X, t, mask, None)
    check_backward(f, inputs, GY[0, :2], no_grads=no_grads)
    check_double_backward(f, inputs, GY[0, :2], X + 1, no_grads=no_grads)
    check_double_backward(f, inputs, GY[0, :2], (X + 1, None, None, None), no_grads=no_grads)
    check_order(f, inputs, 2, no_grads=no_grads)
    with pytest.raises(RuntimeError, match=r"the gradient of inputs\[1\] must be None"):
        check_backward(lambda x, y: x * y, (X, X), GY, no_grads=(False, True))
    with pytest.raises(ValueError, match="a value for each of the 1 inputs, but has 2"):
        check_backward(F.relu, X, GY, no_grads=(False, True))


def test_a_gradient_that_is_missing_is_found():
    with pytest.raises(AssertionError, match=r"gradients \(backward\): 0.0$"):
        check_backward(lambda x: Variable(x.array * 2), X, GY)


def test_parameters():
    x, p, q = X.astype("f"), Parameter(GY.astype("f")), Parameter(np.array(2.0, "f"))
    p.grad = old = np.ones_like(p.array)
    f = lambda x: x * x * p * p * q
    gys, params = (np.ones((2, 3), "f"),), (p, q)
    arrays = p.array, q.array
    check_backward(f, x, gys, params, dtype="d")
    ggps = (X.astype("f"), np.array(0.5, "f"))
    check_double_backward(f, x, gys, x, params, ggps, dtype="d")
    check_order(f, x, 3, params=params)
    assert p.array is arrays[0] and q.array is arrays[1] and p.grad is old
    with pytest.raises(AssertionError, match=r"inputs\[1\]"):
        check_backward(lambda x: x * p.array, x, gys, p, dtype="d")


def test_several_outputs_of_which_one_counts():
    check_backward(lambda x: (x * x, x * 3), X, (None, GY))
    check_backward(lambda x: (x, x * x), X, (GY, GY + 1))
    check_double_backward(lambda x: (x**3, x * 3), X, (GY, None), X)
    check_order(lambda x: (x**3, x * x), X, 2, y_grad=(GY, X))


@pytest.mark.parametrize("check", [check_backward, check_double_backward])
def test_a_loss_needs_no_y_grad(check):
    arguments = (X,) if check is check_double_backward else ()
    check(lambda x: F.sum(x**3), X, None, *arguments)
    with pytest.raises(
        ValueError, match=r"y_grad may be None only .* outputs are \(2, 3\):float64"
    ):
        check(lambda x: x**3, X, None, *arguments)


@pytest.mark.parametrize("gys", [GY[0], GY.astype("f"), (GY, GY)], ids=["shape", "dtype", "count"])
def test_y_grad_must_fit_the_outputs(gys):
    with pytest.raises(ValueError, match=r"shapes and dtypes of the outputs.\noutputs: \(2, 3\):f"):
        check_backward(F.relu, X, gys)


def test_the_function_must_return_variables():
    with pytest.raises(TypeError, match="check_backward: func must return Variables, not ndarray"):
        check_backward(lambda x: x.array, X, GY)


def test_scalars_and_empty_arrays():
    for x in (np.array(3.0), np.zeros((0, 3))):
        check_backward(cube(9), x, np.ones_like(x))
        check_double_backward(cube(9), x, np.ones_like(x), np.ones_like(x))
        check_order(cube(9), x, 2)


@pytest.mark.parametrize("check", [check_backward, check_double_backward])
def test_kinks_are_detected_if_wanted(check):
    gradients = (np.ones(3),) * (2 if check is check_double_backward else 1)
    options = {"detect_nondifferentiable": True, "eps": 1e-2}
    with pytest.raises(NondifferentiableError):
        check(F.relu, np.array([1.0, 1e-4, -3.0]), *gradients, **options)
    check(F.relu, np.array([1.0, 2.0, -3.0]), *gradients, **options)


def test_assert_allclose(device):
    x, y = np.array([1.0, 2.0]), np.array([1.0, 2.5])
    assert_allclose(*_send(device, x), x + 9e-5)
    assert_allclose(Variable(x), [1, 2])
    with pytest.raises(
        AssertionError, match=r"Not equal to(.|\n)*most at index \(1,\): x\[i\] = 2"
    ):
        assert_allclose(x, *_send(device, y), atol=0.1, rtol=0.1)
    with pytest.raises(AssertionError, match=r"\(2,\):float64 and \(1, 2\):float64"):
        assert_allclose(x, y[None])


class MeanOfKnown(FunctionNode):
    """Computes the mean of the finite elements; its gradient may be wrong at the others."""

    def __init__(self, elsewhere=0):
        self.elsewhere = elsewhere

    def forward(self, inputs):
        self.known = np.isfinite(inputs[0])
        return (inputs[0][self.known].mean(),)

    def backward(self, indexes, gys):
        gx = np.where(self.known, gys[0].array / self.known.sum(), self.elsewhere)
        return (Variable(gx.astype(gys[0].dtype)),)


@pytest.mark.parametrize("missing", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inputs_that_are_no_numbers_and_do_not_matter(missing, dtype):
    x = np.random.RandomState(0).uniform(-1, 1, (2, 3)).astype(dtype)
    x[1, 1] = missing
    check_backward(lambda x: MeanOfKnown().apply((x,)), x, np.array(1, dtype), dtype=np.float64)
    with pytest.raises(AssertionError, match="check_backward failed"):
        check_backward(lambda x: MeanOfKnown(elsewhere=1).apply((x,)), x, np.array(1, dtype))


def test_a_function_of_nan_has_no_right_gradient():
    with pytest.raises(AssertionError, match="check_backward failed"):
        check_backward(lambda x: x * 2, np.array([1.0, np.nan]), np.ones(2))
