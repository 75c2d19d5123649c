"""Tests functions that depend on the mode or keep state: dropout and normalization."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable

# Dropout.


def test_dropout_is_the_identity_in_test_mode():
    x = Variable(np.ones((4, 5), np.float32))
    with mpchain.using_config("train", False):
        assert F.dropout(x) is x
        y, mask = F.dropout(x, 0.3, return_mask=True)
        assert y is x and mask is None
        assert F.dropout(x, mask=np.zeros((4, 5), np.float32)) is x


@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dropout_zeroes_a_share_and_scales_the_rest(ratio, dtype):
    x = Variable(np.ones((200, 100), dtype))
    y, mask = F.dropout(x, ratio, return_mask=True)
    assert y.dtype == mask.dtype == dtype and mask.shape == x.shape
    scale = dtype(1 / (1 - ratio))
    assert set(np.unique(mask)) <= {dtype(0), scale}
    np.testing.assert_array_equal(y.array, mask)
    dropped = float((mask == 0).mean())
    # The bound is five standard deviations of the share of 20,000 independent draws.
    assert abs(dropped - ratio) <= 5 * np.sqrt(ratio * (1 - ratio) / mask.size)


def test_dropout_differentiates_by_its_own_mask():
    x = Variable(np.random.randn(6, 5))
    y, mask = F.dropout(x * x, 0.4, return_mask=True)
    (g,) = mpchain.grad([F.sum(y)], [x], enable_double_backprop=True)
    np.testing.assert_allclose(g.array, 2 * x.array * mask)
    np.testing.assert_allclose(mpchain.grad([F.sum(g)], [x])[0].array, 2 * mask)


def test_dropout_by_a_given_mask():
    x, mask = Variable(np.arange(4.0)), np.array([0.0, 2.0, 0.0, 3.0])
    y, same = F.dropout(x, mask=mask, return_mask=True)
    assert same is mask
    np.testing.assert_array_equal(y.array, [0, 2, 0, 9])


def test_dropout_draws_anew_each_time_and_repeats_by_seed():
    x = Variable(np.ones(100))
    first, second = F.dropout(x).array, F.dropout(x).array
    assert (first != second).any()
    np.random.seed(0)
    np.testing.assert_array_equal(F.dropout(x).array, first)


# Batch normalization.


def _expected_statistics(x, axes, mean, var, decay):
    """Returns the running statistics after one batch, by a plain formula in double precision."""
    x = x.astype(np.float64)
    count = np.prod([x.shape[a] for a in axes])
    unbiased = ((x - x.mean(axes, keepdims=True)) ** 2).sum(axes) / (count - 1)
    return decay * mean + (1 - decay) * x.mean(axes), decay * var + (1 - decay) * unbiased


@pytest.mark.parametrize(
    "shape, axis, axes",
    [
        ((7, 3), None, (0,)),
        ((5, 3, 2, 4), None, (0, 2, 3)),
        ((5, 3, 2), (0, 2), (0, 2)),
        ((5, 3, 2), 0, (0,)),
        ((2, 4, 3), (0, -2), (0, 1)),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_running_statistics(shape, axis, axes, dtype):
    random = np.random.RandomState(1)
    kept = tuple(n for i, n in enumerate(shape) if i not in axes)
    gamma, beta = random.randn(*kept).astype(dtype), random.randn(*kept).astype(dtype)
    mean, var = random.randn(*kept).astype(np.float32), random.rand(*kept).astype(np.float32)
    held = mean, var
    for decay in (0.9, 0.25):
        x = random.randn(*shape).astype(dtype)
        expected = _expected_statistics(x, axes, mean.copy(), var.copy(), decay)
        y = F.batch_normalization(
            Variable(x), gamma, beta, running_mean=mean, running_var=var, decay=decay, axis=axis
        )
        assert y.dtype == dtype and mean is held[0] and mean.dtype == var.dtype == np.float32
        np.testing.assert_allclose(mean, expected[0], 1e-5, 1e-6)
        np.testing.assert_allclose(var, expected[1], 1e-5, 1e-6)


def test_running_statistics_are_updated_one_without_the_other():
    x, ones = np.random.randn(5, 3), np.ones(3)
    mean, var = np.zeros(3), np.ones(3)
    F.batch_normalization(x, ones, ones, running_mean=mean)
    np.testing.assert_allclose(mean, 0.1 * x.mean(0))
    F.batch_normalization(x, ones, ones, running_var=var)
    np.testing.assert_allclose(var, 0.9 + 0.1 * x.var(0, ddof=1))


def test_running_variance_of_one_sample_is_that_of_the_batch():
    var = np.ones(3)
    F.batch_normalization(np.ones((1, 3)), np.ones(3), np.zeros(3), running_var=var)
    np.testing.assert_allclose(var, 0.9)


def test_running_statistics_are_no_part_of_the_graph():
    x, ones = Variable(np.random.randn(5, 3)), np.ones(3)
    plain = Variable(x.array)
    mean, var = np.zeros(3), np.ones(3)
    weights = np.random.randn(5, 3)
    y = F.batch_normalization(x, ones, ones, running_mean=mean, running_var=var)
    F.sum(y * weights).backward()
    F.sum(F.batch_normalization(plain, ones, ones) * weights).backward()
    np.testing.assert_array_equal(x.grad, plain.grad)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_normalized_by_batch_or_by_given_statistics(dtype):
    x = np.random.randn(50, 3).astype(dtype) * 3 + 5
    gamma, beta = np.array([1, 2, 3], dtype), np.array([0, 1, 2], dtype)
    y = F.batch_normalization(x, gamma, beta, eps=1e-5)
    tolerance = {np.float16: 2e-2, np.float32: 1e-4, np.float64: 1e-5}[dtype]
    np.testing.assert_allclose(y.array.astype("d").mean(0), beta, tolerance, tolerance)
    np.testing.assert_allclose(y.array.astype("d").std(0), gamma, tolerance)
    mean, var = x.mean(0), x.var(0)
    fixed = F.fixed_batch_normalization(x, gamma, beta, mean, var, eps=1e-5)
    assert fixed.dtype == dtype
    np.testing.assert_allclose(fixed.array, y.array, tolerance, tolerance)


def test_fixed_statistics_may_be_differentiated():
    x, gamma, beta, mean, var = (
        Variable(np.random.RandomState(i).rand(*shape) + 0.5)
        for i, shape in enumerate([(4, 3), (3,), (3,), (3,), (3,)])
    )
    F.sum(F.fixed_batch_normalization(x, gamma, beta, mean, var, eps=0)).backward()
    std = np.sqrt(var.array)
    np.testing.assert_allclose(mean.grad, -4 * gamma.array / std)
    centered = (x.array - mean.array).sum(0)
    np.testing.assert_allclose(var.grad, -0.5 * gamma.array * centered / std**3)
