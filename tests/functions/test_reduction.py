"""Tests reductions and cumulative functions."""

import functools
import math

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.kernels import thresholds
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch


def _with_zeros(function):
    """Sets some of the factors to zero: one in the first row, two in the second."""
    mask = np.ones((3, 5))
    mask[0, 1] = mask[1, 0] = mask[1, 3] = 0

    def call(x):
        like = (
            torch.as_tensor if isinstance(x, torch.Tensor) else (lambda m: x.xp.asarray(m, x.dtype))
        )
        return function(x * like(mask))

    return call


TABLE = [
    row("sum", F.sum, torch.sum, (3, 4)),
    row("sum axis", lambda x: F.sum(x, 1), lambda x: torch.sum(x, 1), (3, 4, 2)),
    row(
        "sum axes",
        lambda x: F.sum(x, (0, -1), keepdims=True),
        lambda x: torch.sum(x, (0, 2), keepdim=True),
        (3, 4, 2),
    ),
    row("mean", F.mean, torch.mean, (3, 4)),
    row("mean axis", lambda x: F.mean(x, (1, 2)), lambda x: torch.mean(x, (1, 2)), (3, 4, 2)),
    row(
        "mean weights",
        lambda x, w: F.mean(x, 1, weights=w),
        lambda x, w: (x * w).sum(1) / w.sum(),
        (3, 4),
        (4,),
        low=0.5,
    ),
    row("max", F.max, torch.max, (3, 4), smooth=False),
    row("max axis", lambda x: F.max(x, 1), lambda x: x.amax(1), (3, 4), smooth=False),
    row(
        "max axes",
        lambda x: F.max(x, (0, -1), True),
        lambda x: x.amax((0, 2), True),
        (3, 4, 2),
        smooth=False,
    ),
    row("min", F.min, torch.min, (3, 4), smooth=False),
    row(
        "min axis",
        lambda x: F.min(x, -1, keepdims=True),
        lambda x: x.amin(1, True),
        (3, 4),
        smooth=False,
    ),
    row("prod", F.prod, torch.prod, (2, 3), low=0.5),
    row("prod axis", lambda x: F.prod(x, 1), lambda x: x.prod(1), (3, 4, 2)),
    row(
        "prod axes",
        lambda x: F.prod(x, (0, 2), True),
        lambda x: x.prod(2, True).prod(0, True),
        (2, 3, 2),
    ),
    row(
        "prod zeros",
        _with_zeros(lambda x: F.prod(x, 1)),
        _with_zeros(lambda x: x.prod(1)),
        (3, 5),
        low=0.5,
    ),
    row("logsumexp", F.logsumexp, lambda x: torch.logsumexp(x, (0, 1)), (3, 4)),
    row("logsumexp axis", lambda x: F.logsumexp(x, 1), lambda x: torch.logsumexp(x, 1), (3, 4, 2)),
    row(
        "logsumexp axes",
        lambda x: F.logsumexp(x, (0, -1)),
        lambda x: torch.logsumexp(x, (0, 2)),
        (3, 4, 2),
    ),
    row("batch_l2_norm_squared", F.batch_l2_norm_squared, lambda x: (x**2).sum((1, 2)), (3, 4, 2)),
    row("cumsum", F.cumsum, lambda x: x.flatten().cumsum(0), (3, 4)),
    row("cumsum axis", lambda x: F.cumsum(x, 0), lambda x: x.cumsum(0), (3, 4, 2)),
    row("cumprod", F.cumprod, lambda x: x.flatten().cumprod(0), (2, 3)),
    row("cumprod axis", lambda x: F.cumprod(x, -2), lambda x: x.cumprod(1), (2, 5, 2)),
    row(
        "cumprod zeros",
        _with_zeros(lambda x: F.cumprod(x, 1)),
        _with_zeros(lambda x: x.cumprod(1)),
        (3, 5),
        low=0.5,
    ),
]

test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    assert uncovered(TABLE, "reduction", "cumulative") == set()


def test_every_extremum_of_a_tie_gets_the_gradient():
    for function in (F.max, F.min):
        x = Variable(np.array([[1.0, 1.0], [0.0, 2.0], [3.0, 3.0]]))
        y = function(x, axis=1)
        y.grad = np.array([1.0, 2.0, 3.0])
        y.backward()
        expected = [0, 2] if function is F.max else [2, 0]
        assert x.grad.tolist() == [[1, 1], expected, [3, 3]]


@pytest.mark.parametrize("axis, expected", [(None, 1), (0, [1, 0, 0]), (-1, [1, 0])])
def test_argmax_and_argmin(axis, expected):
    x = Variable(np.array([[1.0, 3, 2], [1.5, 0, 1]], np.float32))
    y = F.argmax(x, axis)
    assert y.dtype == np.int32 and not y.requires_grad and y.creator is None
    assert y.array.tolist() == expected
    assert F.argmin(-x, axis).array.tolist() == expected
    assert F.argmax(x.array, axis).array.tolist() == expected
    assert F.argmax(np.ones((2, 3)), 1).array.tolist() == [0, 0]


def test_prod_of_nothing_is_one():
    x = Variable(np.ones((2, 0)))
    y = F.prod(x, 1)
    F.sum(y).backward()
    assert y.array.tolist() == [1, 1] and x.grad.shape == (2, 0)
    assert F.cumprod(x, 1).shape == F.cumsum(x, 1).shape == (2, 0)
    F.sum(F.cumprod(x, 1)).backward()
    F.sum(F.cumsum(x, 0)).backward()


@pytest.mark.parametrize(
    "function", [F.max, F.min, F.prod, F.logsumexp, F.argmax, F.argmin, F.cumsum, F.cumprod]
)
def test_empty_batches_and_scalars(function):
    y = function(Variable(np.ones((0, 3), np.float32)), axis=1)
    assert y.shape == ((0, 3) if function in (F.cumsum, F.cumprod) else (0,))
    x = Variable(np.array(2.0))
    y = function(x)
    if function in (F.argmax, F.argmin):
        assert y.shape == () and y.array == 0
        return
    assert y.size == 1 and isinstance(y.array, np.ndarray) and float(y.array.ravel()[0]) == 2
    F.sum(y).backward()
    assert x.grad.shape == () and x.grad == 1


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 33])
def test_products_of_any_length(n):
    values = np.random.RandomState(0).uniform(0.5, 1.5, (2, n))
    values[0, n // 2] = 0
    for function, reference in [(F.prod, torch.prod), (F.cumprod, torch.cumprod)]:
        x, t = Variable(values), torch.tensor(values, requires_grad=True)
        y, z = function(x, axis=1), reference(t, 1)
        weights = np.random.RandomState(1).uniform(0.5, 1.5, y.shape)
        y.grad = weights
        y.backward()
        z.backward(torch.as_tensor(weights))
        np.testing.assert_allclose(y.array, z.detach(), 1e-12)
        np.testing.assert_allclose(x.grad, t.grad, 1e-11, 1e-13)


def test_long_sums_and_products_of_half_precision():
    x = np.full((2, 4096), 1, np.float16)
    assert F.cumsum(x, 1).array[0, -1] == 4096
    assert F.logsumexp(x * 0, 1).array.tolist() == [np.float16(math.log(4096))] * 2
    halves = np.array([[1e4, 1e4, 1e-4, 1e-4]], np.float16)
    np.testing.assert_allclose(F.prod(halves, 1).array, [1], 1e-2)


@pytest.fixture(params=[0, 1 << 16], ids=["compiled", "by NumPy"])
def either_pass(request):
    with thresholds.using(compiled=request.param):
        yield


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logsumexp_of_large_inputs(dtype, either_pass):
    x = Variable(np.array([[1e4, 0, -1e4], [-1e4, -1e4, -1e4]], dtype))
    y = F.logsumexp(x, 1)
    F.sum(y).backward()
    np.testing.assert_allclose(y.array, [1e4, -1e4 + math.log(3)], 1e-6)
    np.testing.assert_allclose(x.grad, [[1, 0, 0], [1 / 3] * 3], 1e-3)


def test_logsumexp_of_infinities(either_pass):
    x = Variable(np.array([[-np.inf, -np.inf], [-np.inf, 1.0], [np.inf, 1.0]]))
    y = F.logsumexp(x[:2], 1)
    F.sum(y).backward()
    np.testing.assert_array_equal(y.array, [-np.inf, 1])
    np.testing.assert_array_equal(x.grad[:2], [[0, 0], [0, 1]])
    assert F.logsumexp(x[2:]).array == np.inf
    rows = np.array([[np.nan, np.inf, 0], [np.nan, -np.inf, 0], [0, 0, 0]])
    assert np.isnan(F.logsumexp(rows, 1).array).tolist() == [True, True, False]


@pytest.mark.parametrize("function", [F.max, F.min, F.prod, F.logsumexp, F.argmax, F.argmin])
def test_axes_that_are_not_there(function):
    name = function.__name__
    with pytest.raises(InvalidType, match=f"{name}: every axis must be an axis of x.*axis: 2"):
        function(np.ones((2, 3)), axis=2)
    with pytest.raises(InvalidType, match=f"{name}: x must be floating point.*int64"):
        function(np.array([1, 2]))


@pytest.mark.parametrize("function", [F.max, F.min, F.prod, F.logsumexp])
def test_axes_must_differ(function):
    with pytest.raises(InvalidType, match=rf"{function.__name__}: the axes must differ.*\(0, -2\)"):
        function(np.ones((2, 3)), axis=(0, -2))


@pytest.mark.parametrize("function", [F.max, F.min, F.logsumexp, F.argmax, F.argmin])
def test_nothing_has_no_extremum(function):
    with pytest.raises(InvalidType, match=rf"{function.__name__}: x must have elements.*\(2, 0\)"):
        function(np.ones((2, 0)), axis=1)


@pytest.mark.parametrize("function", [F.argmax, F.argmin])
def test_places_have_one_axis(function):
    with pytest.raises(TypeError, match=rf"{function.__name__}: axis must be an integer or None"):
        function(np.ones((2, 3)), axis=(0, 1))


@pytest.mark.parametrize("function", [F.cumsum, F.cumprod])
def test_cumulative_functions_check(function):
    name = function.__name__
    with pytest.raises(InvalidType, match=f"{name}: axis must be an axis of x.*axis: -3"):
        function(np.ones((2, 3)), axis=-3)
    with pytest.raises(InvalidType, match=f"{name}: x must be floating point.*int64"):
        function(np.array([1, 2]))


def test_batch_l2_norm_squared_needs_a_batch():
    with pytest.raises(InvalidType, match=r"batch_l2_norm_squared: x must be .*\(3,\)"):
        F.batch_l2_norm_squared(np.ones(3))


def test_numpys_names_on_variables():
    x = Variable(np.array([[1.0, 3.0], [2.0, 5.0]]))
    assert np.max(x).array == 5 and np.min(x, axis=1).array.tolist() == [1, 2]
    assert np.prod(x, axis=0, keepdims=True).array.tolist() == [[2, 15]]
    assert np.cumsum(x, axis=1).array.tolist() == [[1, 4], [2, 7]]
    assert np.cumprod(x).array.tolist() == [1, 3, 6, 30]
    (g,) = mpchain.grad([functools.reduce(lambda a, b: a + b, [np.max(x), np.prod(x)])], [x])
    assert g.array.tolist() == [[30, 10], [15, 7]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_gradient_of_logsumexp_sums_to_one_where_its_value_is_rounded(dtype, either_pass):
    far = 700 if dtype == np.float16 else 1e6
    x = Variable(np.array([[far, far - 1, far - 2], [0, -1, -2], [-far, -far, -far]], dtype))
    y = F.logsumexp(x, axis=1)
    (g,) = mpchain.grad([F.sum(y)], [x], enable_double_backprop=True)
    expected = np.exp([[0.0, -1, -2], [0, -1, -2], [0, 0, 0]])
    expected /= expected.sum(axis=1, keepdims=True)
    # The bound is the rounding error of products of some numbers.
    np.testing.assert_allclose(g.array, expected, 8 * np.finfo(dtype).eps)
    (gg,) = mpchain.grad([F.sum(g * np.array([1, 0, 0], dtype))], [x])
    onehot = np.array([1, 0, 0])
    second = expected * onehot - expected * expected[:, :1]
    np.testing.assert_allclose(gg.array, second, 8 * np.finfo(dtype).eps, np.finfo(dtype).eps)


LONG = [
    (70, 64),
    (9, 1000),
    (5, 2048),
    (5, 2049),
    (8192,),
    (5000,),
    (0, 5000),
    (5000, 0),
    (3, 4, 700),
]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", LONG, ids=str)
def test_long_sums_are_as_exact_as_numpys(shape, dtype):
    x = np.random.RandomState(0).uniform(0, 1, shape).astype(dtype)
    laid_out = [x, np.ascontiguousarray(x.T).T, np.repeat(x, 2, axis=-1)[..., ::2]]
    wide = x.astype(np.longdouble)
    for axis in (None, -1, x.ndim - 1, 0):
        for keepdims in (False, True):
            expected = wide.sum(axis=axis, keepdims=keepdims).astype(dtype)
            for array in laid_out:
                y = F.sum(array, axis, keepdims)
                assert y.dtype == dtype and y.shape == expected.shape
                # The error of NumPy's sum of columns is larger.
                units = 4 if array is x and axis != 0 else 40
                np.testing.assert_allclose(y.array, expected, units * np.finfo(dtype).eps)
            if x.shape[axis or 0] and x.size:
                y = F.mean(x, axis, keepdims=keepdims)
                mean = wide.mean(axis=axis, keepdims=keepdims).astype(dtype)
                assert y.dtype == dtype and y.shape == mean.shape
                units = 4 if axis != 0 else 40
                np.testing.assert_allclose(y.array, mean, units * np.finfo(dtype).eps)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e-40])
def test_long_sums_of_unusual_values(value):
    x = np.zeros((8, 1024), np.float32)
    x[3, 7] = value
    np.testing.assert_array_equal(F.sum(x, 1).array, x.sum(axis=1))
    np.testing.assert_array_equal(F.sum(x).array, x.sum())


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 0), (1,), (2, 3), (4, 1, 5)])
@pytest.mark.parametrize("function", [F.sum, F.mean])
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_gradients_of_one_number_repeat_it(function, shape):
    for dtype in (np.float16, np.float32, np.float64):
        x = Variable(np.ones(shape, dtype))
        y = function(x * 1)
        for g in (np.array(2.5, y.dtype), np.ones((2, 2), y.dtype)[:1, 0].reshape(())):
            (gx,) = y.creator_node.pull_arrays((0,), [g])
            expected = np.broadcast_to(g / (x.size or 1) if function is F.mean else g, shape)
            assert gx.dtype == x.dtype and not gx.flags.writeable
            np.testing.assert_array_equal(gx, expected.astype(dtype))
            assert x.size < 2 or gx.strides == expected.strides


@pytest.mark.parametrize("axis", [np.int64(0), np.array(0), (np.array(0),)])
@pytest.mark.parametrize("function", [F.sum, F.mean])
def test_axes_that_are_numpys_numbers(function, axis):
    x = Variable(np.ones((2, 3)))
    F.sum(function(x, axis=axis) * np.arange(3.0)).backward()
    expected = np.broadcast_to(np.arange(3.0), (2, 3))
    np.testing.assert_array_equal(x.grad, expected / (1 if function is F.sum else 2))
