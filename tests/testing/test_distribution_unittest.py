"""Tests test cases of distributions that users write, and wrong test cases, which must fail."""

import unittest

import numpy as np
import pytest
from scipy import stats

from mpchain import distributions, testing

pytestmark = pytest.mark.slow

_UNIVARIATE = {"batch_shape", "event_shape", "params", "support", "sample", "entropy", "mean"}
_UNIVARIATE |= {"variance", "stddev", "log_prob", "prob", "cdf", "survival"}


@testing.parameterize(
    *testing.product(
        {"shape": [(2, 3), ()], "is_variable": [True, False], "sample_shape": [(3, 2), ()]}
    )
)
@testing.fix_random()
class TestNormal(testing.distribution_unittest):
    scipy_onebyone = True

    def setUp_configure(self):
        self.dist, self.scipy_dist = distributions.Normal, stats.norm
        self.test_targets = _UNIVARIATE | {"icdf", "log_cdf", "log_survival"}
        loc = np.random.uniform(-1, 1, self.shape).astype(np.float32)
        scale = np.exp(np.random.uniform(-1, 1, self.shape)).astype(np.float32)
        self.params = {"loc": loc, "scale": scale}
        self.scipy_params = {"loc": loc, "scale": scale}

    def sample_for_test(self):
        return np.random.normal(size=self.sample_shape + self.shape).astype(np.float32)


@testing.fix_random()
class TestGeometric(testing.distribution_unittest):
    shape, sample_shape, continuous = (2,), (5,), False
    support = "positive integer"

    def setUp_configure(self):
        self.dist, self.scipy_dist = distributions.Geometric, stats.geom
        self.test_targets = _UNIVARIATE
        self.params = self.scipy_params = {"p": np.array([0.3, 0.6])}


@testing.fix_random()
class TestMultivariateNormal(testing.distribution_unittest):
    scipy_onebyone = True
    shape, sample_shape, event_shape = (2, 3), (4,), (2,)

    def setUp_configure(self):
        self.dist, self.scipy_dist = distributions.MultivariateNormal, stats.multivariate_normal
        self.test_targets = {"log_prob", "mean", "covariance", "entropy", "sample", "event_shape"}
        lower = np.tril(np.random.uniform(0.5, 1, (2, 3, 2, 2)))
        self.params = {"loc": np.random.uniform(-1, 1, (2, 3, 2)), "scale_tril": lower}
        covariance = lower @ np.swapaxes(lower, -1, -2)
        self.scipy_params = {"mean": self.params["loc"], "cov": covariance}


@testing.fix_random()
class _Exponential(testing.distribution_unittest):
    shape, sample_shape, support = (2,), (5,), "positive"
    targets = _UNIVARIATE
    rate = 1.0

    def setUp_configure(self):
        self.dist, self.scipy_dist = distributions.Exponential, stats.expon
        self.test_targets = self.targets
        self.params = {"lam": np.array([0.5, 2])}
        self.scipy_params = {"scale": 1 / (self.rate * self.params["lam"])}


def _results(**attributes):
    """Runs the CPU tests of a variant; returns the targets that failed, and those skipped."""
    cls = type("Exponential", (_Exponential,), attributes)
    names = [n for n in unittest.TestLoader().getTestCaseNames(cls) if n.endswith("_cpu")]
    result = unittest.TestResult()
    unittest.TestSuite(map(cls, names)).run(result)
    target = lambda found: found[0].id().split("test_")[-1].removesuffix("_cpu")
    failed = {target(f) for f in result.failures} | {target(f) for f in result.errors}
    return failed, {target(s) for s in result.skipped}


def test_a_right_distribution_passes():
    failed, skipped = _results()
    assert failed == set() and skipped == {"covariance", "icdf", "log_cdf", "log_survival"}


def test_another_distribution_fails():
    failed, _ = _results(rate=1.5)
    assert failed == _UNIVARIATE - {"batch_shape", "event_shape", "params", "support"}


@pytest.mark.parametrize(
    "attributes, targets",
    [
        ({"support": "real"}, {"support"}),
        ({"event_shape": (2,)}, {"event_shape", "sample"}),
    ],
)
def test_what_is_wrong_is_found(attributes, targets):
    assert _results(**attributes)[0] == targets


def test_unknown_targets():
    case = type("Exponential", (_Exponential,), {"targets": {"mean", "likelihood"}})(
        "test_mean_cpu"
    )
    message = r"distribution_unittest: unknown test_targets \['likelihood'\]; known are"
    with pytest.raises(ValueError, match=message):
        case.setUp()


def test_the_configuration_is_needed():
    with pytest.raises(NotImplementedError, match="setUp_configure"):
        testing.distribution_unittest("test_mean_cpu").setUp()
