"""Kullback-Leibler divergences, by a registry of formulas for pairs of classes."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain.distributions import discrete, logarithms
from mpchain.distributions.distribution import Distribution
from mpchain.distributions.location_scale import Cauchy, Gumbel, Laplace, LogNormal, Normal, Uniform
from mpchain.distributions.logarithms import choose
from mpchain.distributions.multivariate import Beta, Dirichlet, Independent, MultivariateNormal
from mpchain.distributions.positive import Chisquare, Exponential, Gamma, Pareto
from mpchain.variable import Variable

_registry = {}


def register_kl(Dist1: type, Dist2: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that registers the divergence of two classes of distributions.

    A registration applies to subclasses too; the registration for the nearest pair of base classes
    is used. A new registration replaces an older registration for the same pair.

    Args:
        Dist1, Dist2: subclasses of :class:`Distribution`.

    Raises:
        TypeError: ``Dist1`` or ``Dist2`` is not a subclass of Distribution.

    Example:
        >>> @register_kl(Normal, Normal)
        ... def kl_of_normals(dist1, dist2):
        ...     ...
    """
    for name, cls in (("Dist1", Dist1), ("Dist2", Dist2)):
        if not (isinstance(cls, type) and issubclass(cls, Distribution)):
            raise TypeError(f"register_kl: {name} must be a subclass of Distribution, not {cls!r}")

    def register(function):
        _registry[Dist1, Dist2] = function
        return function

    return register


def _find(type1, type2):
    """Returns the function that is registered for the nearest pair of base classes, or None."""
    pairs = itertools.product(enumerate(type1.__mro__), enumerate(type2.__mro__))
    found = [(i + j, i, (c1, c2)) for (i, c1), (j, c2) in pairs if (c1, c2) in _registry]
    return _registry[min(found, key=lambda x: x[:2])[2]] if found else None


def kl_divergence(dist1: Distribution, dist2: Distribution) -> Variable:
    """Returns the Kullback-Leibler divergence: the mean over ``dist1`` of log(p1(x) / p2(x)).

        >>> kl_divergence(Normal(np.array(0.0), 1.0), Normal(np.array(1.0), 1.0)).array
        array(0.5)

    Args:
        dist1, dist2: distributions with batch shapes that broadcast.

    Returns:
        Variable of the shape of the batch; infinite where the support of ``dist2`` does not contain
        the support of ``dist1``.

    Raises:
        NotImplementedError: no formula is registered (:func:`register_kl`) for the two classes.
        ValueError: two :class:`Independent` distributions reinterpret different numbers of axes.
    """
    function = _find(type(dist1), type(dist2))
    if function is None:
        names = f"{type(dist1).__name__} and {type(dist2).__name__}"
        raise NotImplementedError(
            f"kl_divergence: no formula is registered for dist1 and dist2 of classes {names}; "
            "register one by register_kl"
        )
    return function(dist1, dist2)


def cross_entropy(dist1: Distribution, dist2: Distribution) -> Variable:
    """Returns the cross entropy: the mean over ``dist1`` of -log p2(x).

        >>> wide = Uniform(low=np.array(0.0), high=2.0)
        >>> cross_entropy(Uniform(low=np.array(0.0), high=1.0), wide).array.round(3)
        np.float64(0.693)

    Args:
        dist1, dist2: distributions with batch shapes that broadcast.

    Returns:
        Variable of the shape of the batch, in nats.

    Raises:
        NotImplementedError: see :func:`kl_divergence`; or the entropy is not defined.
    """
    return dist1.entropy + kl_divergence(dist1, dist2)


@register_kl(discrete.Bernoulli, discrete.Bernoulli)
@register_kl(discrete.Geometric, discrete.Geometric)
def _by_two_logarithms(dist1, dist2):
    one, two = map(_two_logarithms, (dist1, dist2))
    return dist1._expected(*one) - dist1._expected(*two)


def _two_logarithms(dist):
    is_bernoulli = isinstance(dist, discrete.Bernoulli)
    return dist._logs if is_bernoulli else (dist._log_failure, F.log(dist.p))


@register_kl(discrete.Categorical, discrete.Categorical)
@register_kl(discrete.OneHotCategorical, discrete.OneHotCategorical)
def _by_categories(dist1, dist2):
    p, one, two = dist1.p, dist1.log_p, dist2.log_p
    return F.sum(logarithms.weighted(p, one) - logarithms.weighted(p, two), axis=-1)


@register_kl(Beta, Beta)
@register_kl(Dirichlet, Dirichlet)
def _by_expected_log_prob(dist1, dist2):
    return dist1.expected_log_prob(dist1) - dist1.expected_log_prob(dist2)


@register_kl(Cauchy, Cauchy)
def _cauchy(dist1, dist2):
    scale1, scale2 = dist1.scale, dist2.scale
    square = F.square(scale1 + scale2) + F.square(dist1.loc - dist2.loc)
    return F.log(square / (scale1 * scale2 * 4))


@register_kl(Exponential, Exponential)
def _exponential(dist1, dist2):
    ratio = dist2.lam / dist1.lam
    return ratio - 1 - F.log(ratio)


@register_kl(Gamma, Gamma)
def _gamma(dist1, dist2):
    k1, k2, ratio = dist1.k, dist2.k, dist1.theta / dist2.theta
    by_shape = (k1 - k2) * F.digamma(k1) - F.lgamma(k1) + F.lgamma(k2)
    return by_shape - k2 * F.log(ratio) + k1 * (ratio - 1)


@register_kl(Chisquare, Chisquare)
def _chisquare(dist1, dist2):
    return _gamma(dist1._gamma, dist2._gamma)


@register_kl(Gumbel, Gumbel)
def _gumbel(dist1, dist2):
    ratio = dist1.scale / dist2.scale
    shift = (dist1.loc - dist2.loc) / dist2.scale
    mean = shift + ratio * float(np.euler_gamma)
    return mean + F.exp(F.lgamma(ratio + 1) - shift) - F.log(ratio) - (1 + float(np.euler_gamma))


@register_kl(Laplace, Laplace)
def _laplace(dist1, dist2):
    ratio = dist1.scale / dist2.scale
    distance = F.absolute(dist1.loc - dist2.loc)
    return distance / dist2.scale + ratio * F.exp(-distance / dist1.scale) - 1 - F.log(ratio)


@register_kl(Normal, Normal)
def _normal(dist1, dist2):
    log_ratio = dist1.log_scale - dist2.log_scale
    shift = (dist1.loc - dist2.loc) / dist2.scale
    return (F.square(shift) + F.expm1(log_ratio * 2)) * 0.5 - log_ratio


@register_kl(LogNormal, LogNormal)
def _log_normal(dist1, dist2):
    return _normal(dist1._normal, dist2._normal)


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate_normal(dist1, dist2):
    ratio = F.matmul(dist2._inverse, dist1._lower)
    squares = F.sum(F.square(ratio), axis=(-2, -1)) + dist2.square_distance(dist1.loc)
    return (squares - dist1.d) * 0.5 + dist2.log_det - dist1.log_det


@register_kl(Pareto, Pareto)
def _pareto(dist1, dist2):
    ratio = dist2.alpha / dist1.alpha
    finite = dist2.alpha * F.log(dist1.scale / dist2.scale) + ratio - 1 - F.log(ratio)
    return choose(dist1.scale.array < dist2.scale.array, math.inf, finite)


@register_kl(discrete.Poisson, discrete.Poisson)
def _poisson(dist1, dist2):
    lam1, lam2 = dist1.lam, dist2.lam
    return dist1.expected_log(lam1) - dist1.expected_log(lam2) - lam1 + lam2


@register_kl(Uniform, Uniform)
def _uniform(dist1, dist2):
    low1, high1, low2, high2 = (end.array for d in (dist1, dist2) for end in (d.low, d.high))
    excluded = (low1 < low2) | (high1 > high2)
    return choose(excluded, math.inf, F.log(dist2.scale / dist1.scale))


@register_kl(Independent, Independent)
def _independent(dist1, dist2):
    n1, n2 = dist1.reinterpreted_batch_ndims, dist2.reinterpreted_batch_ndims
    if n1 != n2:
        raise ValueError(
            "kl_divergence: reinterpreted_batch_ndims of dist1 and dist2 must be equal, but are "
            f"{n1} and {n2}"
        )
    return dist1._total(kl_divergence(dist1.distribution, dist2.distribution))
