"""Tests logarithms of cdf and survival functions, and their slopes, where the functions are
tiny."""

import mpmath
import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain import distributions as D


def _one(value):
    return lambda dtype: np.array(value, dtype)


def _gamma(k, theta, is_upper):
    def probability(x):
        ends = (x / theta, mpmath.inf) if is_upper else (0, x / theta)
        return mpmath.gammainc(k, *ends, regularized=True)

    return probability


def _poisson(lam, is_upper):
    def probability(x):
        ends = (0, lam) if is_upper else (lam, mpmath.inf)
        return mpmath.gammainc(mpmath.floor(x) + 1, *ends, regularized=True)

    return probability


exp, expm1 = mpmath.exp, mpmath.expm1
# For each name: a function that makes the distribution from a function that makes parameters, its
# cdf and survival function in mpmath, and points.
CASES = {
    "Exponential": (
        lambda p: D.Exponential(p(2.0)),
        lambda x: -expm1(-2 * x),
        lambda x: exp(-2 * x),
        [1e-30, 1e-5, 0.3, 1, 40, 300],
    ),
    "Pareto": (
        lambda p: D.Pareto(p(2.0), p(3.0)),
        lambda x: 1 - (2 / x) ** 3,
        lambda x: (2 / x) ** 3,
        [2.00001, 2.5, 3.9, 4.1, 100, 1e10, 1e30],
    ),
    "Gamma": (
        lambda p: D.Gamma(p(50.0), p(2.0)),
        _gamma(50, 2, False),
        _gamma(50, 2, True),
        [1e-10, 1, 50, 100, 200, 1000, 5000],
    ),
    "Gamma of small shape": (
        lambda p: D.Gamma(p(0.5), p(2.0)),
        _gamma(0.5, 2, False),
        _gamma(0.5, 2, True),
        [1e-30, 0.1, 1, 100, 1500, 5000],
    ),
    "Gamma of large shape": (
        lambda p: D.Gamma(p(16384.0), p(1.0)),
        _gamma(16384, 1, False),
        _gamma(16384, 1, True),
        [1000, 12000, 16000, 16384, 17000, 22000, 50000],
    ),
    "Chisquare": (
        lambda p: D.Chisquare(p(3.0)),
        _gamma(1.5, 2, False),
        _gamma(1.5, 2, True),
        [1e-30, 1, 5, 400, 3000],
    ),
    "Gumbel": (
        lambda p: D.Gumbel(p(0.0), p(2.0)),
        lambda x: exp(-exp(-x / 2)),
        lambda x: -expm1(-exp(-x / 2)),
        [-100, -12, -1, 0, 1, 30, 35.5, 36.5, 100, 700],
    ),
    "Laplace": (
        lambda p: D.Laplace(p(0.0), p(2.0)),
        lambda x: exp(x / 2) / 2 if x < 0 else 1 - exp(-x / 2) / 2,
        lambda x: exp(-x / 2) / 2 if x > 0 else 1 - exp(x / 2) / 2,
        [-500, -30, -0.1, 0.1, 30, 500],
    ),
    "Cauchy": (
        lambda p: D.Cauchy(p(0.0), p(2.0)),
        lambda x: mpmath.atan2(2, -x) / mpmath.pi,
        lambda x: mpmath.atan2(2, x) / mpmath.pi,
        [-1e30, -500, -3, -1, 0, 0.1, 3, 500, 1e30],
    ),
    "Normal": (
        lambda p: D.Normal(p(0.0), p(2.0)),
        lambda x: mpmath.erfc(-x / mpmath.sqrt(8)) / 2,
        lambda x: mpmath.erfc(x / mpmath.sqrt(8)) / 2,
        [-500, -30, -0.1, 0, 0.1, 30, 500],
    ),
    "LogNormal": (
        lambda p: D.LogNormal(p(0.0), p(2.0)),
        lambda x: mpmath.erfc(-mpmath.log(x) / mpmath.sqrt(8)) / 2,
        lambda x: mpmath.erfc(mpmath.log(x) / mpmath.sqrt(8)) / 2,
        [1e-30, 0.1, 1.5, 30, 1e30],
    ),
    "Uniform": (
        lambda p: D.Uniform(low=p(1.0), high=p(3.0)),
        lambda x: (x - 1) / 2,
        lambda x: (3 - x) / 2,
        [1.00001, 2, 2.5, 2.99999],
    ),
    "Poisson": (
        lambda p: D.Poisson(p(3.0)),
        _poisson(3, False),
        _poisson(3, True),
        [0, 1, 5, 30, 100, 400],
    ),
    "Geometric": (
        lambda p: D.Geometric(p(0.25)),
        lambda x: 1 - mpmath.mpf(0.75) ** x,
        lambda x: mpmath.mpf(0.75) ** x,
        [1, 2, 100, 2000],
    ),
}
DISCRETE = {"Poisson", "Geometric"}
NOTHING = 1e-42  # the absolute tolerance, which is a subnormal number of single precision


def _close(actual, expected, dtype, logarithms):
    # SciPy's gamma functions err by some 150 units in the last place. A logarithm is rounded before
    # its exponential is taken, and is itself a difference of larger numbers.
    expected = np.array([float(e) for e in expected])
    tolerance = (256 + 32 * logarithms) * np.finfo(dtype).eps * abs(expected) + NOTHING
    assert (abs(actual - expected) <= tolerance).all(), (actual, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_logarithms_in_tails(name, dtype):
    make, cdf, survival, points = CASES[name]
    distribution, x = make(lambda value: np.array(value, dtype)), np.array(points, dtype)
    with mpmath.workdps(70):  # 1 - 1e-50 must differ from 1
        exact = [mpmath.mpf(float(v)) for v in x]
        tails = [-mpmath.log(min(cdf(v), survival(v))) for v in exact]
        tails = np.array([float(v) for v in tails])
        for method, probability in [("log_cdf", cdf), ("log_survival_function", survival)]:
            point = Variable(x)
            y = getattr(distribution, method)(point)
            assert y.dtype == dtype
            _close(y.array, [mpmath.log(probability(v)) for v in exact], dtype, tails)
            if name in DISCRETE:
                continue
            (slope,) = mpchain.grad([F.sum(y)], [point])
            expected = [
                mpmath.diff(probability, v, h=v / mpmath.mpf(10) ** 20 or mpmath.mpf(10) ** -20)
                for v in exact
            ]
            expected = [d / probability(v) for d, v in zip(expected, exact)]
            _close(slope.array, expected, dtype, tails)


@pytest.mark.parametrize("k", [0.5, 3.0, 50.0])
def test_slopes_by_the_shape_in_tails(k):
    x = np.array([1e-10, k / 10, k, 10 * k + 5, 1000 * k + 1000])
    for method, ends in [
        ("log_cdf", lambda v: (0, v)),
        ("log_survival_function", lambda v: (v, mpmath.inf)),
    ]:
        shape = Variable(np.full(x.shape, k))
        y = getattr(D.Gamma(shape, np.array(1.0)), method)(x)
        (slope,) = mpchain.grad([F.sum(y)], [shape])
        expected = [_slope_by_shape(k, ends(mpmath.mpf(float(v)))) for v in x]
        # The integration rule has 12 digits, and on the right, the digits of log(x / k) cancel.
        np.testing.assert_allclose(slope.array, expected, 1e-8, NOTHING)


def _slope_by_shape(k, ends):
    with mpmath.workdps(70):
        probability = lambda a: mpmath.gammainc(a, *ends, regularized=True)
        slope = mpmath.diff(lambda a: mpmath.log(probability(a)), k, h=mpmath.mpf(10) ** -20)
        return float(slope)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lam", [0.1, 5.0, 1e6, 1e9])
def test_poisson_probabilities_of_large_means(lam, dtype):
    lam = float(dtype(lam))
    x = np.floor(np.array([0, 1, 4, 9, 10, 11, 40, lam / 2, lam * 0.99, lam, lam * 1.3], dtype))
    with mpmath.workdps(40):
        expected = [
            v * mpmath.log(lam) - lam - mpmath.loggamma(v + 1)
            for v in map(mpmath.mpf, map(float, x))
        ]
    rate = Variable(np.full(x.shape, lam, dtype))
    y = D.Poisson(rate).log_prob(x)
    # The bound is some rounding errors of the largest term that does not cancel.
    np.testing.assert_allclose(y.array, [float(e) for e in expected], 32 * np.finfo(dtype).eps)
    (slope,) = mpchain.grad([F.sum(y)], [rate])
    np.testing.assert_allclose(slope.array, (x.astype("d") - lam) / lam, 4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gamma_densities_of_large_shapes(dtype):
    k, x = 1e6, np.array([9e5, 999000, 1e6, 1.1e6], dtype)
    with mpmath.workdps(40):
        expected = [float((k - 1) * mpmath.log(v) - v - mpmath.loggamma(k)) for v in map(float, x)]
    y = D.Gamma(np.array(k, dtype), np.array(1, dtype)).log_prob(x)
    np.testing.assert_allclose(y.array, expected, 8 * np.finfo(dtype).eps)


def test_bernoulli_keeps_small_probabilities():
    p = np.array([1e-20, 0.25])
    distribution = D.Bernoulli(p)
    x = np.array([[-1.0], [0.0], [1.0]])
    np.testing.assert_array_equal(distribution.survival_function(x).array, [[1, 1], p, [0, 0]])
    inf = np.inf
    expected = [[-inf, -inf], np.log1p(-p), [0, 0]]
    np.testing.assert_allclose(distribution.log_cdf(x).array, expected, 1e-15)
    expected = [[0, 0], np.log(p), [-inf, -inf]]
    np.testing.assert_allclose(distribution.log_survival_function(x).array, expected, 1e-15)
