"""Tests points outside of the support and at its ends, and parameters at the ends of their
domains."""

import math

import numpy as np
import pytest
from scipy import stats

import mpchain
import mpchain.functions as F
from mpchain import Variable, kl_divergence
from mpchain import distributions as D

INF = math.inf


def _array(*values):
    return np.array(values, np.float64)


@pytest.mark.parametrize(
    "distribution, points",
    [
        (D.Bernoulli(_array(0.3)), [-1, 2, 1.5, INF]),
        (D.Bernoulli(_array(0.3), binary_check=True), [-1, 2, 0.5]),
        (D.Bernoulli(logit=_array(0.3)), [-1, 2, INF]),
        (D.Beta(_array(2.0), _array(3.0)), [-0.1, 1.1, INF]),
        (D.Categorical(_array(0.3, 0.7)), [-1, 2, 0.5, INF]),
        (D.Chisquare(_array(3.0)), [-1, -INF]),
        (D.Exponential(_array(3.0)), [-1, -INF]),
        (D.Gamma(_array(3.0), _array(3.0)), [-1, -INF]),
        (D.Geometric(_array(0.3)), [0, -1, 1.5, INF]),
        (D.LogNormal(_array(3.0), _array(2.0)), [-1, 0]),
        (D.Pareto(_array(3.0), _array(2.0)), [-1, 2.9]),
        (D.Poisson(_array(3.0)), [-1, 0.5, INF]),
        (D.Uniform(low=_array(1.0), high=_array(2.0)), [0.9, 2.1, INF]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_points_outside(distribution, points):
    x = Variable(_array(*points))
    y = distribution.log_prob(x)
    np.testing.assert_array_equal(y.array, -INF)
    np.testing.assert_array_equal(distribution.prob(x).array, 0)
    y.grad = np.ones_like(y.array)
    y.backward()
    assert x.grad is None or not x.grad.any()
    inside = distribution.sample(3).array
    assert np.isfinite(distribution.log_prob(inside).array).all()


def _vectors(*rows):
    return np.array(rows, np.float64)


@pytest.mark.parametrize(
    "distribution",
    [D.Dirichlet(_array(1.0, 2.0)), D.OneHotCategorical(_array(0.2, 0.8))],
    ids=["Dirichlet", "OneHotCategorical"],
)
def test_vectors_outside(distribution):
    x = _vectors([-0.1, 1.1], [0.5, 0.6], [0.2, 0.8])
    y = distribution.log_prob(x).array
    assert np.isneginf(y[:2]).all() and np.isfinite(y[2])


@pytest.mark.parametrize(
    "distribution, reference, x",
    [
        (D.Beta(_array(0.5, 1, 2), _array(2, 1, 0.5)), stats.beta([0.5, 1, 2], [2, 1, 0.5]), 0),
        (D.Beta(_array(0.5, 1, 2), _array(2, 1, 0.5)), stats.beta([0.5, 1, 2], [2, 1, 0.5]), 1),
        (D.Gamma(_array(0.5, 1, 2), _array(2.0)), stats.gamma([0.5, 1, 2], 0, 2), 0),
        (D.Chisquare(_array(1, 2, 3)), stats.chi2([1, 2, 3]), 0),
        (D.Exponential(_array(2.0)), stats.expon(0, 0.5), 0),
        (D.Pareto(_array(2.0), _array(3.0)), stats.pareto(3, 0, 2), 2),
        (D.Uniform(low=_array(2.0), high=_array(3.0)), stats.uniform(2, 1), 3),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, mpchain.Distribution) else None,
)
def test_ends_of_the_support(distribution, reference, x):
    np.testing.assert_allclose(distribution.log_prob(float(x)).array, reference.logpdf(x), 1e-12)


@pytest.mark.parametrize(
    "distribution, below, above",
    [
        (D.Exponential(_array(2.0)), [-1], []),
        (D.LogNormal(_array(2.0), _array(1.0)), [-1, 0], []),
        (D.Pareto(_array(2.0), _array(1.0)), [-1, 1], []),
        (D.Gamma(_array(2.0), _array(1.0)), [-1, 0], []),
        (D.Chisquare(_array(2.0)), [-1, 0], []),
        (D.Poisson(_array(2.0)), [-1, -0.5], []),
        (D.Geometric(_array(0.2)), [-1, 0.5], []),
        (D.Bernoulli(_array(0.2)), [-1], [1, 2]),
        (D.Uniform(low=_array(1.0), high=_array(2.0)), [0], [2, 3]),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, mpchain.Distribution) else None,
)
def test_distribution_functions_outside(distribution, below, above):
    for points, expected in ((below, 0), (above, 1)):
        x = _array(*points)
        np.testing.assert_array_equal(distribution.cdf(x).array, expected)
        np.testing.assert_array_equal(distribution.survival_function(x).array, 1 - expected)


@pytest.mark.parametrize("name", ["Normal", "Laplace", "Cauchy", "Gumbel"])
def test_far_tails(name):
    reference = stats.gumbel_r if name == "Gumbel" else getattr(stats, name.lower(), stats.norm)
    reference = stats.norm if name == "Normal" else reference
    d = getattr(D, name)(_array(0.0), _array(1.0))
    low, high = _array(-5.0), _array(30.0)
    np.testing.assert_allclose(d.cdf(low).array, reference.cdf(low), 1e-13)
    np.testing.assert_allclose(d.survival_function(high).array, reference.sf(high), 1e-13)
    tiny = _array(1e-12)
    np.testing.assert_allclose(d.icdf(tiny).array, reference.ppf(tiny), 1e-12)


def test_far_points_do_not_overflow():
    d = D.Cauchy(np.zeros(2, np.float32), np.ones(2, np.float32))
    x = Variable(np.array([1e30, -1e30], np.float32))
    y = d.log_prob(x)
    np.testing.assert_allclose(y.array, stats.cauchy.logpdf([1e30, -1e30]), 1e-6)
    F.sum(y).backward()
    np.testing.assert_allclose(x.grad, [-2e-30, 2e-30], 1e-6)


def test_quantiles_at_the_ends():
    zero, one = _array(0.0), _array(1.0)
    assert D.Laplace(zero, one).icdf(_array(0, 1)).array.tolist() == [-INF, INF]
    assert D.Gumbel(zero, one).icdf(_array(0, 1)).array.tolist() == [-INF, INF]
    assert D.Exponential(one).icdf(_array(0, 1)).array.tolist() == [0, INF]
    assert D.Pareto(one, one).icdf(_array(0, 1)).array.tolist() == [1, INF]


def test_certain_events():
    d = D.Bernoulli(Variable(_array(0, 1)))
    assert d.log_prob(_array(0, 1)).array.tolist() == [0, 0]
    assert d.log_prob(_array(1, 0)).array.tolist() == [-INF, -INF]
    assert d.entropy.array.tolist() == [0, 0] and d.sample(9).array.mean(0).tolist() == [0, 1]
    assert d.logit.array.tolist() == [-INF, INF]
    d = D.Categorical(_vectors([0, 1, 0], [0.5, 0, 0.5]))
    np.testing.assert_allclose(d.entropy.array, [0, math.log(2)])
    assert d.log_prob(np.array([1, 1])).array.tolist() == [0, -INF]
    x = d.sample(1000).array
    assert set(x[:, 0]) == {1} and set(x[:, 1]) == {0, 2}
    assert D.Geometric(_array(1.0)).log_prob(_array(1, 2)).array.tolist() == [0, -INF]
    assert D.Geometric(_array(1.0)).entropy.array.tolist() == [0]
    assert D.Poisson(_array(0.0)).log_prob(_array(0, 1)).array.tolist() == [0, -INF]
    assert D.Poisson(_array(0.0)).entropy.array.tolist() == [0]


def test_divergence_from_what_excludes_it():
    half, certain = D.Bernoulli(_array(0.5)), D.Bernoulli(_array(1.0))
    assert kl_divergence(half, certain).array.tolist() == [INF]
    np.testing.assert_allclose(kl_divergence(certain, half).array, math.log(2))
    wide = D.Uniform(low=_array(0.0), high=_array(4.0))
    narrow = D.Uniform(low=_array(1.0), high=_array(2.0))
    assert kl_divergence(wide, narrow).array.tolist() == [INF]
    np.testing.assert_allclose(kl_divergence(narrow, wide).array, math.log(4))
    late, early = D.Pareto(_array(2.0), _array(1.0)), D.Pareto(_array(1.0), _array(1.0))
    assert kl_divergence(early, late).array.tolist() == [INF]
    np.testing.assert_allclose(kl_divergence(late, early).array, math.log(2))
    p, q = D.Categorical(_array(0, 1)), D.Categorical(_array(0.5, 0.5))
    np.testing.assert_allclose(kl_divergence(p, q).array, math.log(2))
    assert kl_divergence(q, p).array == INF


def test_moments_that_are_infinite():
    d = D.Pareto(_array(1, 1, 1), Variable(_array(0.5, 1.5, 3)))
    np.testing.assert_allclose(d.mean.array, [INF, 3, 1.5])
    np.testing.assert_allclose(d.variance.array, [INF, INF, 0.75])
    F.sum(d.mean).backward()
    np.testing.assert_allclose(d.params["alpha"].grad, [0, -4, -0.25])


def test_nan_stays_nan():
    one = _array(1.0)
    for d in (D.Normal(one, one), D.Gamma(one, one), D.Poisson(one), D.Uniform(low=one, high=2)):
        assert np.isnan(d.log_prob(_array(np.nan)).array).all()
    assert np.isnan(D.Normal(one, _array(np.nan)).log_prob(one).array).all()


def test_entropy_of_poisson_over_many_sizes():
    lam = _array(1e-3, 0.5, 20, 100)
    np.testing.assert_allclose(D.Poisson(lam).entropy.array, stats.poisson.entropy(lam), 1e-9)
    # The expected value is the asymptotic series, whose next term is below 1 / lam^3.
    lam = _array(3000, 1e5)
    expected = np.log(2 * np.pi * np.e * lam) / 2 - 1 / (12 * lam) - 1 / (24 * lam**2)
    np.testing.assert_allclose(D.Poisson(lam).entropy.array, expected, 1e-9)


def test_samples_of_small_shapes_do_not_underflow():
    x = D.Dirichlet(Variable(np.full((50, 3), 1e-3))).sample()
    np.testing.assert_allclose(x.array.sum(1), 1)
    assert np.isfinite(x.array).all() and (x.array.max(1) > 0.99).mean() > 0.9
    F.sum(F.square(x)).backward()


def test_soft_labels():
    d, x = D.Bernoulli(_array(0.3)), _array(0.25)
    expected = 0.25 * math.log(0.3) + 0.75 * math.log(0.7)
    np.testing.assert_allclose(d.log_prob(x).array, expected)
    np.testing.assert_allclose(d.prob(x).array, 0.25 * 0.3 + 0.75 * 0.7)
    checked = D.Bernoulli(_array(0.3), binary_check=True)
    assert checked.log_prob(x).array == -INF and checked.prob(x).array == 0
    d, x = D.OneHotCategorical(_array(0.3, 0.7)), _array(0.25, 0.75)
    expected = 0.25 * math.log(0.3) + 0.75 * math.log(0.7)
    np.testing.assert_allclose(d.log_prob(x).array, expected)
