"""The table of distributions: for each one its constructor, references in SciPy and PyTorch, and
methods."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from mpchain import Variable
from mpchain import distributions as D
from tests.reference import torch

SHAPE = (2, 3)
T = torch.distributions


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        name: a unique name, the id of the tests.
        make: function that makes the distribution from its parameters, in order.
        params: the parameters, as float64 arrays.
        torch: function that makes PyTorch's distribution from tensors.
        scipy: function that makes SciPy's distribution from arrays; None if SciPy has no batches of
            this distribution.
        extra: names of properties and methods to test besides log_prob, prob, perplexity and
            sample.
        other: parameters of another distribution of the class, for divergences.
        discrete: whether points are integers.
        reparameterised: whether gradients flow through samples.
    """

    name: str
    make: Callable
    params: tuple
    torch: Callable
    scipy: Callable | None
    extra: str
    other: tuple
    discrete: bool = False
    reparameterised: bool = True

    @property
    def properties(self):
        return [m for m in self.extra.split() if m in PROPERTIES]

    @property
    def functions(self):
        return [m for m in self.extra.split() if m not in PROPERTIES]

    def points(self, n=4):
        """Returns points of the support: n points for each distribution of the batch."""
        torch.manual_seed(5)
        with torch.no_grad():
            return self.torch(*map(torch.tensor, self.params)).sample((n,)).numpy()

    def distribution(self, dtype=np.float64, device=None):
        send = (lambda x: x) if device is None else device.send
        return self.make(*[Variable(send(p.astype(dtype))) for p in self.params])


PROPERTIES = "mean mode variance stddev covariance entropy".split()
_MOMENTS = "mean variance stddev entropy "
_DISTRIBUTION = "cdf survival_function log_cdf log_survival_function "
_random = np.random.RandomState(0)


def _uniform(low, high, shape=SHAPE):
    return _random.uniform(low, high, shape)


def _shares(*shape):
    return _random.dirichlet(np.full(shape[-1], 2.0), shape[:-1])


def _lower(*shape):
    return np.tril(_random.uniform(-1, 1, shape)) + 2 * np.eye(shape[-1])


def _pairs(*bounds):
    return tuple([tuple(_uniform(*b) for b in bounds) for _ in range(2)])


def _row(name, make, pairs, torch, scipy, extra, **options):
    return Row(name, make, pairs[0], torch, scipy, extra, pairs[1], **options)


_LOC, _SCALE = (-1, 1), (0.5, 2)
_INTEGERS = {"discrete": True, "reparameterised": False}
TABLE = [
    _row(
        "Bernoulli",
        D.Bernoulli,
        _pairs((0.1, 0.9)),
        T.Bernoulli,
        stats.bernoulli,
        _MOMENTS + "cdf survival_function mode",
        **_INTEGERS,
    ),
    _row(
        "Bernoulli of logit",
        lambda logit: D.Bernoulli(logit=logit),
        _pairs((-2, 2)),
        lambda logit: T.Bernoulli(logits=logit),
        lambda logit: stats.bernoulli(1 / (1 + np.exp(-logit))),
        _MOMENTS + "cdf survival_function mode",
        **_INTEGERS,
    ),
    _row("Beta", D.Beta, _pairs((0.5, 3), (0.5, 3)), T.Beta, stats.beta, _MOMENTS),
    _row(
        "Categorical",
        D.Categorical,
        ((_shares(2, 3, 4),), (_shares(2, 3, 4),)),
        lambda p: T.Categorical(p, validate_args=False),
        None,
        "entropy mode",
        **_INTEGERS,
    ),
    _row(
        "Categorical of logit",
        lambda logit: D.Categorical(logit=logit),
        _pairs((-2, 2, (2, 3, 4))),
        lambda logit: T.Categorical(logits=logit),
        None,
        "entropy mode",
        **_INTEGERS,
    ),
    _row(
        "Cauchy",
        D.Cauchy,
        _pairs(_LOC, _SCALE),
        T.Cauchy,
        stats.cauchy,
        _DISTRIBUTION + "icdf entropy mode",
    ),
    _row(
        "Chisquare",
        D.Chisquare,
        _pairs((0.5, 6)),
        T.Chi2,
        stats.chi2,
        _MOMENTS + _DISTRIBUTION + "mode",
    ),
    _row(
        "Dirichlet",
        D.Dirichlet,
        _pairs((0.5, 3, (2, 3, 4))),
        T.Dirichlet,
        None,
        _MOMENTS.replace("stddev", ""),
    ),
    _row(
        "Exponential",
        D.Exponential,
        _pairs(_SCALE),
        T.Exponential,
        lambda lam: stats.expon(0, 1 / lam),
        _MOMENTS + _DISTRIBUTION + "icdf mode",
    ),
    _row(
        "Gamma",
        D.Gamma,
        _pairs((0.5, 5), _SCALE),
        lambda k, theta: T.Gamma(k, 1 / theta),
        lambda k, theta: stats.gamma(k, 0, theta),
        _MOMENTS + _DISTRIBUTION + "mode",
    ),
    _row(
        "Geometric",
        D.Geometric,
        _pairs((0.2, 0.9)),
        # PyTorch does not count the successful trial.
        lambda p: T.TransformedDistribution(T.Geometric(p), T.AffineTransform(1.0, 1.0)),
        stats.geom,
        _MOMENTS + _DISTRIBUTION,
        **_INTEGERS,
    ),
    _row(
        "Gumbel",
        D.Gumbel,
        _pairs(_LOC, _SCALE),
        T.Gumbel,
        stats.gumbel_r,
        _MOMENTS + _DISTRIBUTION + "icdf mode",
    ),
    _row(
        "Independent",
        lambda loc, scale: D.Independent(D.Normal(loc, scale)),
        _pairs((-1, 1, (2, 3, 2)), (0.5, 2, (2, 3, 2))),
        lambda loc, scale: T.Independent(T.Normal(loc, scale), 2),
        None,
        _MOMENTS,
    ),
    _row(
        "Laplace",
        D.Laplace,
        _pairs(_LOC, _SCALE),
        T.Laplace,
        stats.laplace,
        _MOMENTS + _DISTRIBUTION + "icdf mode",
    ),
    _row(
        "LogNormal",
        D.LogNormal,
        _pairs(_LOC, (0.3, 1)),
        T.LogNormal,
        lambda mu, sigma: stats.lognorm(sigma, 0, np.exp(mu)),
        _MOMENTS + _DISTRIBUTION + "icdf mode",
    ),
    _row(
        "MultivariateNormal",
        lambda loc, scale_tril: D.MultivariateNormal(loc, scale_tril=scale_tril),
        (
            (_uniform(-1, 1, (2, 3, 4)), _lower(2, 3, 4, 4)),
            (_uniform(-1, 1, (2, 3, 4)), _lower(2, 3, 4, 4)),
        ),
        lambda loc, scale_tril: T.MultivariateNormal(loc, scale_tril=torch.tril(scale_tril)),
        None,
        _MOMENTS + "covariance mode",
    ),
    _row(
        "Normal",
        D.Normal,
        _pairs(_LOC, _SCALE),
        T.Normal,
        stats.norm,
        _MOMENTS + _DISTRIBUTION + "icdf mode",
    ),
    _row(
        "Normal of log_scale",
        lambda loc, log_scale: D.Normal(loc, log_scale=log_scale),
        _pairs(_LOC, (-1, 1)),
        lambda loc, log_scale: T.Normal(loc, torch.exp(log_scale)),
        lambda loc, log_scale: stats.norm(loc, np.exp(log_scale)),
        _MOMENTS + _DISTRIBUTION + "icdf",
    ),
    _row(
        "OneHotCategorical",
        D.OneHotCategorical,
        ((_shares(2, 3, 4),), (_shares(2, 3, 4),)),
        lambda p: T.OneHotCategorical(p, validate_args=False),
        None,
        "mean variance entropy",
        **_INTEGERS,
    ),
    _row(
        "Pareto",
        D.Pareto,
        ((_uniform(1, 2), _uniform(2.5, 4)), (_uniform(0.3, 0.9), _uniform(2.5, 4))),
        T.Pareto,
        lambda scale, alpha: stats.pareto(alpha, 0, scale),
        _MOMENTS + _DISTRIBUTION + "icdf mode",
    ),
    _row(
        "Poisson",
        D.Poisson,
        _pairs((0.3, 6)),
        T.Poisson,
        stats.poisson,
        _MOMENTS + _DISTRIBUTION + "mode",
        **_INTEGERS,
    ),
    _row(
        "Uniform",
        lambda low, high: D.Uniform(low=low, high=high),
        ((_uniform(-1, 0), _uniform(1, 2)), (_uniform(-3, -2), _uniform(3, 4))),
        T.Uniform,
        lambda low, high: stats.uniform(low, high - low),
        _MOMENTS + "cdf survival_function icdf",
    ),
    _row(
        "Uniform of loc",
        lambda loc, scale: D.Uniform(loc=loc, scale=scale),
        ((_uniform(-1, 0), _uniform(1, 2)), (_uniform(-3, -2), _uniform(6, 8))),
        lambda loc, scale: T.Uniform(loc, loc + scale),
        stats.uniform,
        _MOMENTS + "cdf survival_function icdf",
    ),
]
