"""Tests functions at the edges: huge, tiny and empty inputs, 0-d arrays, half precision, mixed
dtypes.

Warnings are errors in tests, so no intermediate result may overflow or divide by zero.
"""

import itertools

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable

pytestmark = pytest.mark.slow

LABELS = np.array([0, 2, 1, -1])
BITS = np.array([[0, 1, 1], [1, -1, 0], [0, 0, 1], [1, 1, 0]])


def _images(function, *args):
    """Returns a function that applies ``function`` to a matrix as images of 2 by 2 pixels."""
    return lambda x: function(F.reshape(F.concat([x, x[:, :1]], 1), (-1, 1, 2, 2)), *args)


def _like(x, *values):
    return np.array(values, x.dtype)


# These functions of a matrix (N, 3) have a value for all elements.
ROBUST = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "sigmoid": F.sigmoid,
    "tanh": F.tanh,
    "softplus": F.softplus,
    "softplus beta": lambda x: F.softplus(x, 3.0),
    "absolute": F.absolute,
    "softmax": F.softmax,
    "softmax axis": lambda x: F.softmax(x, 0),
    "log_softmax": F.log_softmax,
    "maximum": lambda x: F.maximum(x, x[:, :1]),
    "minimum": lambda x: F.minimum(x, x[:, :1]),
    "where": lambda x: F.where(x.array > 0, x, -x),
    "add": lambda x: x + x,
    "subtract": lambda x: x - x,
    "constants": lambda x: (1 - (x + 2)) / 4 * 2,
    "sum": lambda x: F.sum(x, 1),
    "mean": lambda x: F.mean(x, 1),
    "mean weighted": lambda x: F.mean(x, 1, weights=_like(x, 0.5, 1, 2)),
    "concat": lambda x: F.concat([x, x], 1),
    "split_axis": lambda x: F.split_axis(x, 3, 1)[1],
    "get_item": lambda x: x[:, [0, 0, 2]],
    "transpose": lambda x: x.T,
    "broadcast_to": lambda x: F.broadcast_to(x, (2, *x.shape)),
    "sum_to": lambda x: F.sum_to(x, (1, 3)),
    "linear": lambda x: F.linear(x, np.eye(2, 3, dtype=x.dtype), _like(x, 1, -1)),
    "matmul": lambda x: x @ np.eye(3, dtype=x.dtype),
    "convolution": _images(lambda x: F.convolution_2d(x, np.ones((2, 1, 2, 1), x.dtype))),
    "convolution pointwise": _images(lambda x: F.convolution_2d(x, np.ones((2, 1, 1, 1), x.dtype))),
    "deconvolution": _images(lambda x: F.deconvolution_2d(x, np.ones((1, 2, 2, 2), x.dtype))),
    "max_pooling_2d": _images(lambda x: F.max_pooling_2d(x, 2, 1, 1)),
    "average_pooling_2d": _images(lambda x: F.average_pooling_2d(x, 2, 1, 1)),
    "average_pooling_nd": _images(lambda x: F.average_pooling_nd(x, 2, 1, 1, None)),
    "dropout": F.dropout,
    "batch_normalization": lambda x: F.batch_normalization(
        x, _like(x, 1, 2, 3), _like(x, 0, 1, 2), eps=1e-3
    ),
    "fixed_batch_normalization": lambda x: F.fixed_batch_normalization(
        x, _like(x, 1, 2, 3), _like(x, 0, 1, 2), _like(x, 0, 1, 2), _like(x, 1, 1, 2), 1e-3
    ),
    "softmax_cross_entropy": lambda x: F.softmax_cross_entropy(x, LABELS[: len(x)]),
    "softmax_cross_entropy no": lambda x: F.softmax_cross_entropy(x, LABELS[: len(x)], reduce="no"),
    "softmax_cross_entropy soft": lambda x: F.softmax_cross_entropy(
        x, np.full(x.shape, 1 / 3, x.dtype)
    ),
    "sigmoid_cross_entropy": lambda x: F.sigmoid_cross_entropy(x, BITS[: len(x)]),
    "sigmoid_cross_entropy no": lambda x: F.sigmoid_cross_entropy(x, BITS[: len(x)], reduce="no"),
}
EVERY = pytest.mark.parametrize("name", ROBUST)
HUGE = np.array([[1e4, -1e4, 0], [1e4, 1e4, 1e4], [-1e4, -1e4, -1e4], [1e-30, -1e-30, 1e4]])


def _differentiated(name, array):
    """Returns the output, the gradient of its sum by backward and by grad, and the gradient of the
    squared gradient."""
    x = Variable(array)
    y = ROBUST[name](x)
    (g,) = mpchain.grad([F.sum(y)], [x], enable_double_backprop=True)
    (gg,) = mpchain.grad([F.sum(g * g)], [x])
    F.sum(y).backward()
    assert x.grad.dtype == g.dtype == x.dtype and x.grad.shape == x.shape
    return y, x.grad, g.array, x.array * 0 if gg is None else gg.array


@EVERY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_inputs(name, dtype):
    array = HUGE.astype(dtype)
    y, *gradients = _differentiated(name, array)
    assert np.isfinite(y.array).all() and y.dtype == dtype
    assert all(np.isfinite(g).all() for g in gradients)
    np.testing.assert_allclose(gradients[0], gradients[1], 1e-4, 1e-4 * abs(gradients[0]).max())


@EVERY
def test_half_precision_stays_half(name):
    array = np.random.RandomState(0).uniform(-2, 2, (4, 3)).astype(np.float16)
    y, *gradients = _differentiated(name, array)
    assert y.dtype == np.float16 and all(np.isfinite(g).all() for g in gradients)


@EVERY
def test_an_empty_batch(name):
    full = ROBUST[name](Variable(np.ones((2, 3), np.float32)))
    y, *gradients = _differentiated(name, np.zeros((0, 3), np.float32))
    assert y.dtype == np.float32 and y.ndim == full.ndim
    assert all(g.shape == (0, 3) for g in gradients)


@pytest.mark.parametrize(
    "function, x, expected",
    [
        (F.relu, [1e4, -1e4], [1e4, 0]),
        (F.sigmoid, [1e4, -1e4], [1, 0]),
        (F.tanh, [1e4, -1e4], [1, -1]),
        (F.softplus, [1e4, -1e4], [1e4, 0]),
        (lambda x: F.softmax(x, 0), [1e4, -1e4], [1, 0]),
        (lambda x: F.log_softmax(x, 0), [1e4, -1e4], [0, -2e4]),
        (lambda x: F.sigmoid_cross_entropy(x, np.array([0, 1])), [1e4, -1e4], 1e4),
        (lambda x: F.sigmoid_cross_entropy(x, np.array([1, 0])), [1e4, -1e4], 0),
        (lambda x: F.softmax_cross_entropy(x[None], np.array([1])), [1e4, -1e4], 2e4),
        (lambda x: F.softmax_cross_entropy(x[None], np.array([0])), [1e4, -1e4], 0),
        (lambda x: F.mean_squared_error(x, -x), [1e4, -1e4], 4e8),
    ],
)
def test_values_at_the_ends(function, x, expected):
    result = function(Variable(np.array(x, np.float32)))
    np.testing.assert_allclose(result.array, expected, 1e-6)


def test_an_ignored_sample_counts_nothing_even_if_infinite():
    x = Variable(np.array([[0.0, 1.0], [-np.inf, 0.0]], np.float32))
    loss = F.softmax_cross_entropy(x, np.array([1, -1]))
    np.testing.assert_allclose(loss.array, np.log1p(np.exp(-1)), 1e-6)
    loss.backward()
    np.testing.assert_array_equal(x.grad[1], [0, 0])


def test_losses_and_accuracies_of_nothing_are_zero():
    scores, bits = np.zeros((0, 3), np.float32), np.zeros((0, 3), np.int32)
    for normalize in (True, False):
        assert F.softmax_cross_entropy(scores, bits[:, 0], normalize).array == 0
        assert F.sigmoid_cross_entropy(scores, bits, normalize).array == 0
    assert F.accuracy(scores, bits[:, 0]).array == 0
    assert F.accuracy(scores + 1, bits[:, 0], ignore_label=0).array == 0
    assert F.binary_accuracy(scores, bits).array == 0
    x, t = np.zeros((2, 3), np.float32), np.full(2, -1)
    assert F.softmax_cross_entropy(x, t).array == 0
    assert F.accuracy(x, t, ignore_label=-1).array == 0


def test_the_mean_of_nothing_is_not_a_number():
    x = Variable(np.zeros((0, 3), np.float32))
    with pytest.warns(RuntimeWarning) as warned:
        y = F.mean(x)
    assert any("Mean of empty slice" in str(w.message) for w in warned)
    assert np.isnan(y.array)
    y.backward()
    assert x.grad.shape == (0, 3)


def test_running_statistics_of_an_empty_batch_stay():
    mean, var = np.full(3, 5, np.float32), np.full(3, 7, np.float32)
    ones = np.ones(3, np.float32)
    x = np.zeros((0, 3), np.float32)
    F.batch_normalization(x, ones, ones, running_mean=mean, running_var=var)
    np.testing.assert_array_equal(mean, [5] * 3)
    np.testing.assert_array_equal(var, [7] * 3)


# 0-d arrays.


SCALAR = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "sigmoid": F.sigmoid,
    "tanh": F.tanh,
    "softplus": F.softplus,
    "absolute": F.absolute,
    "exp": F.exp,
    "log": F.log,
    "sqrt": F.sqrt,
    "square": F.square,
    "maximum": lambda x: F.maximum(x, x * 0.5),
    "minimum": lambda x: F.minimum(x, x * 2),
    "where": lambda x: F.where(np.array(True), x, -x),
    "operators": lambda x: (1 - x * x) / (x + 2) ** 2 - -x,
    "powers": lambda x: x**3 + 2**x + x**x,
    "cast": lambda x: F.cast(x, np.float32),
    "sum": F.sum,
    "sum of no axes": lambda x: F.sum(x, ()),
    "mean": F.mean,
    "reshape": lambda x: F.reshape(x, (1, 1)),
    "transpose": F.transpose,
    "broadcast_to": lambda x: F.broadcast_to(x, (2, 3)),
    "sum_to": lambda x: F.sum_to(x, ()),
    "get_item": lambda x: x[()],
    "new axis": lambda x: x[None],
    "dropout": lambda x: F.dropout(x, 0.0),
    "mean_squared_error": lambda x: F.mean_squared_error(x, x * 0),
    "sigmoid_cross_entropy": lambda x: F.sigmoid_cross_entropy(x, np.array(1)),
}


@pytest.mark.parametrize("name", SCALAR)
def test_0d_inputs(name):
    dtype = np.float32 if name == "cast" else np.float64
    x = Variable(np.array(0.75))
    y = SCALAR[name](x)
    assert isinstance(y.array, np.ndarray) and y.dtype == dtype
    (g,) = mpchain.grad([F.sum(y)], [x], enable_double_backprop=True)
    assert isinstance(g.array, np.ndarray) and g.shape == ()
    F.sum(y).backward()
    assert isinstance(x.grad, np.ndarray) and x.grad.shape == () and x.grad.dtype == np.float64
    np.testing.assert_allclose(g.array, x.grad, 1e-12)
    eps = 1e-4 if name == "cast" else 1e-6
    values = [F.sum(SCALAR[name](Variable(np.array(0.75 + d)))).array for d in (eps, -eps)]
    tolerance = 5e-3 if name == "cast" else 1e-7
    np.testing.assert_allclose((values[0] - values[1]) / (2 * eps), x.grad, tolerance)
    (gg,) = mpchain.grad([g * x], [x])
    assert gg.shape == ()


# Mixed dtypes.


OPERATIONS = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "power": lambda a, b: a**b,
    "maximum": F.maximum,
    "minimum": F.minimum,
    "matmul": lambda a, b: a @ b,
    "where": lambda a, b: F.where(np.array([[True, False]]), a, b),
    "concat": lambda a, b: F.concat([a, b]),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    "dtypes", list(itertools.permutations([np.float16, np.float32, np.float64], 2)), ids=str
)
def test_mixed_dtypes_give_the_wider_and_gradients_their_own(name, dtypes):
    a, b = (Variable(np.array([[0.5, 1.5], [2, 3]], dtype)) for dtype in dtypes)
    y = OPERATIONS[name](a, b)
    wide = [Variable(v.array.astype(np.float64)) for v in (a, b)]
    expected = OPERATIONS[name](*wide)
    assert y.dtype == np.result_type(*dtypes)
    tolerance = 2e-2 if np.float16 in dtypes else 1e-6
    np.testing.assert_allclose(y.array, expected.array, tolerance)
    F.sum(y).backward()
    F.sum(expected).backward()
    gradients = mpchain.grad([F.sum(y)], [a, b], enable_double_backprop=True)
    for v, w, g in zip((a, b), wide, gradients, strict=True):
        assert v.grad.dtype == g.dtype == v.dtype
        np.testing.assert_allclose(v.grad, w.grad, tolerance, tolerance)
        np.testing.assert_allclose(g.array, w.grad, tolerance, tolerance)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numbers_take_the_dtype_of_the_array(dtype):
    x = Variable(np.array([0.5, 1.5], dtype))
    for number in (2, 2.5, True, np.float64(2.5), np.int64(2), np.float16(2)):
        for y in (x + number, number - x, x * number, number / x, x**number, number**x):
            assert y.dtype == dtype
    assert np.maximum(x, 1).dtype == np.where(x.array > 1, x, 0).dtype == dtype


def test_integers_keep_to_themselves_where_no_derivative_is_asked():
    x = Variable(np.array([1, 2, 3]))
    for y, expected in [
        (x + 1, [2, 3, 4]),
        (x * x, [1, 4, 9]),
        (-x, [-1, -2, -3]),
        (x**2, [1, 4, 9]),
    ]:
        assert y.dtype == x.dtype and y.array.tolist() == expected
    assert F.sum(x).item() == 6 and x[1:].array.tolist() == [2, 3]
