"""Tests the gamma distribution's cdf and samples against mpmath, mainly their derivatives with
respect to the shape parameter."""

import mpmath
import numpy as np
import pytest
from scipy import special

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain import distributions as D
from mpchain.distributions.gamma_variates import (
    _quantile_slope,
    log_gamma_variates,
    lower_gamma,
    upper_gamma,
)
from tests.functions.harness import check_orders, weighted_sum

pytestmark = pytest.mark.slow


def _distribution_function(a, x):
    return mpmath.gammainc(a, 0, x, regularized=True)


def _by_shape(a, x):
    return mpmath.diff(lambda t: _distribution_function(t, x), a)


@pytest.mark.parametrize("a", [1, 1.5, 5, 100, 1e4])
def test_slope_of_quantiles(a):
    far = np.array([-6, -3, -1, 0, 1, 3, 6]) * np.sqrt(a)
    xs = np.concatenate([(a + far)[a + far > 0], [a * 1e-3]])
    with mpmath.workdps(40):
        exact = []
        for x in map(mpmath.mpf, xs):
            density = x ** (a - 1) * mpmath.exp(-x) / mpmath.gamma(a)
            exact.append(float(-_by_shape(mpmath.mpf(a), x) / density))
    np.testing.assert_allclose(_quantile_slope(np.full_like(xs, a), xs), exact, 2e-12)
    single = _quantile_slope(np.full(xs.shape, a, np.float32), xs.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, exact, 2e-3 if a > 1e3 else 2e-5)


@pytest.mark.parametrize("a", [0.01, 0.5, 1, 3, 50])
def test_distribution_function_and_its_derivatives(a):
    xs = np.array([1e-4, 0.3, 1, 2.5, 8]) * max(a, 0.2)
    va, vx = Variable(np.full_like(xs, a)), Variable(xs)
    for function, sign in ((lower_gamma, 1), (upper_gamma, -1)):
        va.cleargrad()
        vx.cleargrad()
        F.sum(function(va, vx)).backward()
        with mpmath.workdps(40):
            exact = [float(sign * _by_shape(mpmath.mpf(a), mpmath.mpf(x))) for x in xs]
        np.testing.assert_allclose(va.grad, exact, 1e-10, 1e-14)
        density = xs ** (a - 1) * np.exp(-xs - special.gammaln(a))
        np.testing.assert_allclose(vx.grad, sign * density, 1e-12)
    np.testing.assert_allclose(lower_gamma(va, vx).array, special.gammainc(a, xs))
    np.testing.assert_allclose(upper_gamma(va, vx).array, special.gammaincc(a, xs))


@pytest.mark.parametrize("function", [lower_gamma, upper_gamma])
def test_higher_derivatives_of_the_distribution_function(function):
    arrays = np.array([0.5, 1.0, 3.0, 30.0]), np.array([0.4, 2.5, 1.5, 33.0])
    check_orders(weighted_sum(function, arrays), arrays, 4, eps=1e-4, tolerance=1e-6)


def test_the_distribution_function_at_zero():
    a, x = Variable(np.array([0.5, 1.0, 2.0])), Variable(np.zeros(3))
    y = lower_gamma(a, x)
    assert not y.array.any() and (upper_gamma(a, x).array == 1).all()
    F.sum(y).backward()
    assert not a.grad.any() and not x.grad.any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_logarithms_of_gamma_variables(dtype):
    a = Variable(np.array([0.1, 0.5, 4], dtype))
    with mpchain.using_config("rng", np.random.default_rng(0)):
        y = log_gamma_variates(a, 20_000)
    assert y.shape == (20_000, 3) and y.dtype == dtype
    mean, deviation = special.digamma(a.array.astype("d")), special.polygamma(1, a.array) ** 0.5
    error = abs(y.array.astype("d").mean(0) - mean)
    assert (error < 5 * deviation / np.sqrt(20_000) + 1e-3 * abs(mean)).all()
    F.sum(y * a.dtype.type(1 / 20_000)).backward()
    assert a.grad.dtype == dtype and np.isfinite(a.grad).all()


@pytest.mark.parametrize("k", [0.3, 1.0, 7.0])
def test_gradients_of_samples_are_unbiased(k):
    """The mean derivatives of log x and x are the derivatives of their means, psi(k) and k."""
    n = 40_000
    for function, expected in ((F.log, special.polygamma(1, k)), (F.identity, 1.0)):
        ks = Variable(np.full(n, k))
        with mpchain.using_config("rng", np.random.default_rng(2)):
            F.sum(function(D.Gamma(ks, np.ones(n)).sample())).backward()
        assert abs(ks.grad.mean() - expected) < 5 * ks.grad.std() / np.sqrt(n)
