"""Tests the base class, arguments and errors that all distributions share, and the registry of
divergences."""

import math
import sys

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Distribution, Variable, cross_entropy, kl_divergence, register_kl
from mpchain import distributions as D
from mpchain.distributions import kl
from mpchain.utils.type_check import InvalidType


class Coin(Distribution):
    """A distribution that a user defines: heads or tails."""

    batch_shape = event_shape = ()

    def log_prob(self, x):
        return Variable(np.full(np.shape(x), -math.log(2)))

    def cdf(self, x):
        return Variable(np.where(np.asarray(x) < 1, 0.5, 1.0))

    @property
    def variance(self):
        return Variable(np.array(0.25))

    def sample_n(self, n):
        return Variable(np.random.randint(0, 2, n))


def test_what_a_distribution_gets_from_what_it_defines():
    coin, x = Coin(), np.array([0.0, 0.5])
    np.testing.assert_allclose(coin.prob(x).array, 0.5)
    np.testing.assert_allclose(coin.perplexity(x).array, 2)
    np.testing.assert_allclose(coin.log_cdf(x).array, -math.log(2))
    np.testing.assert_allclose(coin.survival_function(x).array, 0.5)
    np.testing.assert_allclose(coin.log_survival_function(x).array, -math.log(2))
    np.testing.assert_allclose(coin.stddev.array, 0.5)
    assert coin.sample((2, 3)).shape == (2, 3) and coin.sample(4).shape == (4,)
    assert coin.sample().shape == ()


def test_what_is_not_defined():
    d = Distribution()
    properties = "batch_shape event_shape params support mean mode variance covariance entropy"
    for name in properties.split():
        with pytest.raises(NotImplementedError, match=f"^Distribution: {name} is not defined$"):
            getattr(d, name)
    for name in "log_prob cdf icdf sample_n".split():
        with pytest.raises(NotImplementedError, match=f"^Distribution: {name} is not defined$"):
            getattr(d, name)(1)
    with pytest.raises(NotImplementedError, match=r"^Gamma: icdf is not defined$"):
        D.Gamma(1.0, 1.0).icdf(0.5)
    with pytest.raises(NotImplementedError, match=r"^Uniform: mode is not defined$"):
        D.Uniform(low=0.0, high=1.0).mode
    with pytest.raises(NotImplementedError, match=r"^Beta: cdf is not defined$"):
        D.Beta(1.0, 1.0).survival_function(0.5)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_numbers_take_the_dtype_of_the_arrays_beside_them(dtype):
    d = D.Normal(0.0, np.ones(2, dtype))
    assert d.loc.dtype == dtype and d.batch_shape == (2,)
    assert D.Normal([0.0, 1.0], 2).scale.dtype == np.float32
    with mpchain.using_config("dtype", np.dtype(dtype)):
        assert D.Normal(0, 1).sample(2).dtype == dtype
    assert D.Normal(np.float64(0), 1).loc.dtype == np.float64
    assert d.log_prob(0.5).dtype == dtype and d.log_prob(np.array([1, 2])).dtype == dtype


def test_parameters_broadcast_and_gradients_come_back_in_their_shapes():
    loc, scale = Variable(np.zeros((3, 1))), Variable(np.ones(2))
    d = D.Normal(loc, scale)
    assert d.batch_shape == (3, 2) and d.mean.shape == (3, 2) and d.entropy.shape == (3, 2)
    F.sum(d.log_prob(np.ones((5, 3, 2)))).backward()
    assert loc.grad.shape == (3, 1) and scale.grad.shape == (2,)
    assert list(d.params) == ["loc", "scale"] and d.xp is np
    d = D.MultivariateNormal(np.zeros((3, 1, 2)), scale_tril=np.tile(np.eye(2), (4, 1, 1)))
    assert d.batch_shape == (3, 4) and d.event_shape == (2,) and d.sample(5).shape == (5, 3, 4, 2)


def test_params_are_those_of_chainer():
    one = np.ones(1)
    names = {
        D.Bernoulli(one): "logit",
        D.Categorical(one): "p",
        D.Categorical(logit=one): "p",
        D.Normal(one, log_scale=one): "loc scale",
        D.Uniform(low=0 * one, high=one): "low high",
        D.Uniform(loc=0 * one, scale=one): "loc scale",
        D.Independent(D.Gamma(one, one)): "k theta",
    }
    assert [" ".join(d.params) for d in names] == list(names.values())


def test_what_is_above_the_diagonal_is_not_read():
    lower = np.array([[1, 0], [0.5, 2.0]])
    full = Variable(lower + np.array([[0, 7], [0, 0]]))
    d, expected = (D.MultivariateNormal(np.zeros(2), scale_tril=L) for L in (full, lower))
    np.testing.assert_array_equal(d.covariance.array, expected.covariance.array)
    np.testing.assert_array_equal(d.log_prob(np.ones(2)).array, expected.log_prob(np.ones(2)).array)
    d.log_prob(np.ones(2)).backward()
    assert full.grad[0, 1] == 0 and full.grad.any()


_E = np.eye(2)
_ERRORS = [
    (lambda: D.Normal(0.0, [1.0, -2.0]), "Normal: scale must be positive, but holds -2.0"),
    (lambda: D.Laplace(0.0, 0.0), "Laplace: scale must be positive, but holds 0.0"),
    (lambda: D.Gamma(-1.0, 1.0), "Gamma: k must be positive, but holds -1.0"),
    (lambda: D.Beta(1.0, -1.0), "Beta: b must be positive, but holds -1.0"),
    (lambda: D.Dirichlet([1.0, 0.0]), "Dirichlet: alpha must be positive, but holds 0.0"),
    (lambda: D.Chisquare(-1.0), "Chisquare: k must be positive"),
    (lambda: D.Exponential(-1.0), "Exponential: lam must be positive"),
    (lambda: D.LogNormal(0.0, -1.0), "LogNormal: sigma must be positive"),
    (lambda: D.Pareto(1.0, -1.0), "Pareto: alpha must be positive"),
    (lambda: D.Poisson(-1.0), "Poisson: lam must not be negative, but holds -1.0"),
    (lambda: D.Bernoulli(1.5), "Bernoulli: p must be from 0 to 1, but holds 1.5"),
    (lambda: D.Geometric(0.0), "Geometric: p must be above 0 and at most 1, but holds 0.0"),
    (lambda: D.Categorical([-0.5, 1.5]), "Categorical: p must be from 0 to 1, but holds -0.5"),
    (
        lambda: D.OneHotCategorical([0.5, 0.7]),
        "OneHotCategorical: p must sum to one over its last axis, but holds 0.5",
    ),
    (lambda: D.Uniform(low=1.0, high=1.0), "Uniform: high must be above low, but holds 1.0"),
    (lambda: D.Uniform(loc=1.0, scale=-1.0), "Uniform: scale must be positive, but holds -1.0"),
    (
        lambda: D.MultivariateNormal([0.0, 0.0], scale_tril=-_E),
        "MultivariateNormal: scale_tril must have a positive diagonal, but holds -1.0",
    ),
    (lambda: D.Normal(0.0), "Normal: either scale, or log_scale must be given, but got none"),
    (
        lambda: D.Normal(0.0, 1.0, log_scale=1.0),
        "Normal: either scale, or log_scale must be given, but got scale and log_scale",
    ),
    (D.Bernoulli, "Bernoulli: either p, or logit must be given, but got none"),
    (D.Categorical, "Categorical: either p, or logit must be given"),
    (
        lambda: D.Uniform(low=0.0, scale=1.0),
        "Uniform: either low and high, or loc and scale must be given, but got low and scale",
    ),
    (
        lambda: D.Independent(D.Normal([0.0], 1.0), 2),
        "Independent: reinterpreted_batch_ndims must be from 0 to the number of axes of the batch, "
        r"but is 2, and the batch shape \(1,\)",
    ),
    (lambda: D.Independent(D.Normal([0.0], 1.0), -1), "Independent: .* but is -1"),
    (
        lambda: D.Normal(0.0, 1.0).sample((2, -1)),
        r"Normal.sample: sample_shape must not be negative, but is \(2, -1\)",
    ),
    (
        lambda: kl_divergence(
            D.Independent(D.Normal([0.0], 1.0), 1), D.Independent(D.Normal([0.0], 1.0), 0)
        ),
        "kl_divergence: reinterpreted_batch_ndims of dist1 and dist2 must be equal, but are 1 and",
    ),
]
_TYPE_ERRORS = [
    (
        lambda: D.Normal(np.zeros(2), np.ones(3)),
        r"Normal: loc and scale must broadcast: loc: float64 \(2,\), scale: float",
    ),
    (
        lambda: D.Normal(np.zeros(2, int), np.ones(2)),
        r"Normal: loc must be floating point: loc: int64 \(2,\)",
    ),
    (lambda: D.Categorical(1.0), "Categorical: p must have 1 axis or more: p: float32"),
    (
        lambda: D.MultivariateNormal(np.zeros(3), scale_tril=_E),
        r"MultivariateNormal: loc must be \(..., d\) and scale_tril \(..., d, d\): loc: float",
    ),
    (
        lambda: D.MultivariateNormal(np.zeros((3, 2)), scale_tril=np.stack([_E, _E])),
        "MultivariateNormal: the batches of loc and scale_tril must broadcast: loc: float",
    ),
    (
        lambda: D.MultivariateNormal(np.zeros(2), scale_tril=_E).log_prob(np.zeros(1)),
        r"MultivariateNormal.log_prob: x must broadcast with the shape \(2,\) \(axes of the event: "
        r"1\): x: ",
    ),
    (
        lambda: D.Normal(np.zeros(2), 1.0).cdf(np.zeros(3)),
        r"Normal.cdf: x must broadcast with the shape \(2,\): x: float64 \(3,\)",
    ),
]


@pytest.mark.parametrize("make, message", _ERRORS)
def test_wrong_values(make, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


@pytest.mark.parametrize("make, message", _TYPE_ERRORS)
def test_wrong_types(make, message):
    with pytest.raises(InvalidType, match=f"^{message}"):
        make()


def test_values_are_not_checked_if_types_are_not():
    with mpchain.using_config("type_check", False), np.errstate(invalid="ignore"):
        assert np.isnan(D.Normal(0.0, -1.0).entropy.array)


def test_scipy_is_asked_for(monkeypatch):
    d = D.Gamma(Variable(np.ones(2)), np.ones(2))
    samples = d.sample(3)  # no derivative is needed if no gradient is requested
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(ImportError, match=r"gammaln: SciPy is not .*pip install 'mpchain\[cpu\]"):
        d.log_prob(samples)
    with pytest.raises(ImportError, match=r"gammainc: SciPy is not .*pip install 'mpchain\[cpu\]"):
        d.cdf(samples)
    assert np.isfinite(d.sample(3).array).all()


# Independent.


def test_independent_takes_axes_of_the_batch():
    base = D.Normal(np.zeros((2, 3, 4)), np.full((2, 3, 4), 2.0))
    shapes = {None: ((2,), (3, 4)), 0: ((2, 3, 4), ()), 1: ((2, 3), (4,)), 3: ((), (2, 3, 4))}
    x = np.random.randn(5, 2, 3, 4)
    for n, (batch, event) in shapes.items():
        d = D.Independent(base, n)
        assert (d.batch_shape, d.event_shape) == (batch, event)
        axes = tuple(range(4 - len(event), 4))
        for name in ("log_prob", "log_cdf", "log_survival_function"):
            expected = getattr(base, name)(x).array.sum(axes)
            np.testing.assert_allclose(getattr(d, name)(x).array, expected)
        for name in ("prob", "cdf", "survival_function"):
            expected = getattr(base, name)(x).array.prod(axes)
            np.testing.assert_allclose(getattr(d, name)(x).array, expected)
        np.testing.assert_allclose(
            d.entropy.array, base.entropy.array.sum(tuple(a - 1 for a in axes))
        )
    assert D.Independent(D.Normal(0.0, 1.0)).event_shape == ()
    np.testing.assert_array_equal(D.Independent(base, 0).icdf(0.3).array, base.icdf(0.3).array)
    with pytest.raises(RuntimeError, match=r"Independent\.icdf: .* has no inverse"):
        D.Independent(base).icdf(0.5)


def test_covariance_of_independent_elements():
    scale = np.arange(1.0, 7).reshape(2, 3)
    d = D.Independent(D.Normal(np.zeros((2, 3)), scale))
    np.testing.assert_allclose(d.covariance.array, [np.diag(row**2) for row in scale])
    base = D.MultivariateNormal(
        np.zeros((2, 2)), scale_tril=[[[1.0, 0], [2, 3]], [[4.0, 0], [5, 6]]]
    )
    expected = np.zeros((4, 4))
    expected[:2, :2], expected[2:, 2:] = base.covariance.array
    np.testing.assert_allclose(D.Independent(base, 1).covariance.array, expected)


@pytest.mark.parametrize("make", [D.OneHotCategorical, D.Dirichlet], ids=lambda c: c.__name__)
def test_covariance_of_shares(make):
    d = make(np.array([0.2, 0.3, 0.5]))
    covariance = d.covariance.array
    np.testing.assert_allclose(covariance.sum(0), 0, atol=1e-15)
    np.testing.assert_allclose(np.diag(covariance), d.variance.array)
    samples = d.sample(20_000).array
    np.testing.assert_allclose(covariance, np.cov(samples.T), 0, 0.01)


# Divergences.


class Special(D.Normal):
    """A subclass of Normal, from which the next class derives."""


class MoreSpecial(Special):
    pass


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(kl, "_registry", dict(kl._registry))


def test_subclasses_have_the_divergence_of_their_bases(registry):
    normal, special = D.Normal(0.0, 1.0), Special(1.0, 2.0)
    expected = kl_divergence(normal, D.Normal(1.0, 2.0)).array
    np.testing.assert_array_equal(kl_divergence(normal, special).array, expected)

    register_kl(Special, D.Normal)(lambda p, q: "nearer")
    more = MoreSpecial(0.0, 1.0)
    assert kl_divergence(more, normal) == kl_divergence(more, more) == "nearer"
    np.testing.assert_array_equal(kl_divergence(normal, special).array, expected)

    # Both functions are registered one class away, so the nearer first argument decides.
    register_kl(D.Normal, Special)(lambda p, q: "farther")
    assert kl_divergence(special, special) == "nearer"
    register_kl(Special, D.Normal)(lambda p, q: "replaced")
    assert kl_divergence(special, normal) == "replaced"


def test_pairs_without_a_formula():
    message = "kl_divergence: no formula .* dist1 and dist2 of classes Normal and Gumbel"
    with pytest.raises(NotImplementedError, match=message):
        kl_divergence(D.Normal(0.0, 1.0), D.Gumbel(0.0, 1.0))
    with pytest.raises(NotImplementedError, match="no formula is registered"):
        cross_entropy(D.Normal(0.0, 1.0), D.Gumbel(0.0, 1.0))


@pytest.mark.parametrize("pair", [(D.Normal, int), (3, D.Normal)])
def test_only_distributions_have_divergences(pair):
    message = r"register_kl: Dist[12] must be a subclass of Distribution, not (<class 'int'>|3)"
    with pytest.raises(TypeError, match=message):
        register_kl(*pair)


def test_divergence_of_batches_that_broadcast():
    p = D.Normal(np.zeros((3, 1)), np.ones((3, 1)))
    q = D.Normal(np.zeros(2), np.ones(2))
    assert kl_divergence(p, q).shape == cross_entropy(p, q).shape == (3, 2)
    p = D.MultivariateNormal(np.zeros((3, 1, 2)), scale_tril=_E)
    q = D.MultivariateNormal(np.zeros((4, 2)), scale_tril=_E)
    np.testing.assert_array_equal(kl_divergence(p, q).array, np.zeros((3, 4)))


def test_bernoulli_samples_are_those_that_chainer_draws():
    # Chainer 7.8.1 printed these numbers.
    np.random.seed(0)
    distribution = D.Bernoulli(p=np.array([0.2, 0.5, 0.9], np.float32))
    expected = [[0, 1, 1], [0, 0, 1], [0, 1, 0], [0, 1, 1]]
    assert distribution.sample((4,)).array.tolist() == expected
    assert np.random.rand() == pytest.approx(0.568045, abs=1e-6)
    with mpchain.using_config("rng", np.random.default_rng(0)):
        assert distribution.sample((4,)).array.shape == (4, 3)
