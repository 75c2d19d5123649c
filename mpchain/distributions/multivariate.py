"""The beta distribution, distributions of vectors, and distributions whose events consist of
independent elements."""

import math

import numpy as np

from mpchain import functions as F
from mpchain.distributions import logarithms
from mpchain.distributions.discrete import covariance_of_shares, outside_of_simplex
from mpchain.distributions.distribution import (
    POSITIVE,
    Distribution,
    Parametric,
    as_parameters,
    check_values,
    to_shape,
)
from mpchain.distributions.gamma_variates import log_gamma_variates
from mpchain.distributions.sampling import draw
from mpchain.typing import Input
from mpchain.utils.type_check import check, fail
from mpchain.variable import Variable


class Beta(Parametric):
    """Beta distribution: density x^(a - 1) (1 - x)^(b - 1) / B(a, b), 0 <= x <= 1.

    Gradients of samples are computed as in :class:`Gamma`.

        >>> Beta(np.array([1.0, 2.0]), 2.0).mean.array.round(3)
        array([0.333, 0.5  ])

    Args:
        a, b: Variables or arrays, positive.
    """

    a: Variable
    b: Variable
    _rules = {"a": POSITIVE, "b": POSITIVE}
    _inner = 0.5

    def __init__(self, a: Input, b: Input) -> None:
        super().__init__(a=a, b=b)

    support: str = "[0, 1]"
    mean = property(lambda self: self.a / (self.a + self.b))

    @property
    def variance(self) -> Variable:
        total = self.a + self.b
        return self.a * self.b / (F.square(total) * (total + 1))

    @property
    def _log_normalizer(self):
        return F.lgamma(self.a) + F.lgamma(self.b) - F.lgamma(self.a + self.b)

    entropy = property(lambda self: -self.expected_log_prob(self))

    def expected_log_prob(self, other: "Beta") -> Variable:
        """Returns the mean, over this distribution, of the log_prob of another beta
        distribution."""
        of_total = F.digamma(self.a + self.b)
        log_x, log_rest = F.digamma(self.a) - of_total, F.digamma(self.b) - of_total
        return (other.a - 1) * log_x + (other.b - 1) * log_rest - other._log_normalizer

    def _outside(self, x):
        return (x < 0) | (x > 1)

    def _log_density(self, x):
        log_x = logarithms.weighted(self.a - 1, logarithms.log(x))
        log_rest = logarithms.weighted(self.b - 1, logarithms.log_of_rest(x))
        return log_x + log_rest - self._log_normalizer

    def sample_n(self, n: int) -> Variable:
        return F.sigmoid(log_gamma_variates(self.a, n) - log_gamma_variates(self.b, n))


class Dirichlet(Parametric):
    """Dirichlet distribution: density proportional to prod_i x_i^(alpha_i - 1), for x_i >= 0 with
    sum one.

    Points whose sum differs from one by more than 0.01 are outside of the support. Gradients of
    samples are computed as in :class:`Gamma`.

        >>> Dirichlet(np.array([1.0, 1.0, 2.0])).mean.array
        array([0.25, 0.25, 0.5 ])

    Args:
        alpha: Variable or array (..., n), positive.
    """

    alpha: Variable
    _rules = {"alpha": POSITIVE}
    _n_event_axes = 1

    def __init__(self, alpha: Input) -> None:
        super().__init__(alpha=alpha)

    _inner = property(lambda self: 1 / self.event_shape[0])

    @property
    def alpha0(self) -> Variable:
        """Variable of the shape ``batch_shape``: the sum of the elements of each alpha."""
        return F.sum(self.alpha, axis=-1)

    _total = property(lambda self: F.sum(self.alpha, axis=-1, keepdims=True))
    support: str = "[0, 1]"
    mean = property(lambda self: self.alpha / self._total)

    @property
    def variance(self) -> Variable:
        mean = self.mean
        return mean * (1 - mean) / (self._total + 1)

    @property
    def covariance(self) -> Variable:
        return covariance_of_shares(self.mean) / F.expand_dims(self._total + 1, -1)

    @property
    def _log_normalizer(self):
        return F.sum(F.lgamma(self.alpha), axis=-1) - F.lgamma(self.alpha0)

    entropy = property(lambda self: -self.expected_log_prob(self))

    def expected_log_prob(self, other: "Dirichlet") -> Variable:
        """Returns the mean, over this distribution, of the log_prob of another Dirichlet
        distribution."""
        log_x = F.digamma(self.alpha) - F.digamma(self._total)
        return F.sum((other.alpha - 1) * log_x, axis=-1) - other._log_normalizer

    def _outside(self, x):
        return outside_of_simplex(x)

    def _log_density(self, x):
        log_x = logarithms.weighted(self.alpha - 1, logarithms.log(x))
        return F.sum(log_x, axis=-1) - self._log_normalizer

    def sample_n(self, n: int) -> Variable:
        return F.softmax(log_gamma_variates(self.alpha, n), axis=-1)


class MultivariateNormal(Parametric):
    """Normal distribution of vectors with the covariance L L^T.

        >>> normal = MultivariateNormal(np.zeros(2), scale_tril=np.array([[1.0, 0.0], [1.0, 1.0]]))
        >>> normal.covariance.array
        array([[1., 1.],
               [1., 2.]])

    Args:
        loc: Variable or array (..., d): the means.
        scale_tril: Variable or array (..., d, d): the lower triangular matrices L, with a positive
            diagonal; elements above the diagonal are ignored.

    Raises:
        InvalidType: the shapes do not match.
        ValueError: a diagonal element is not positive.
    """

    def __init__(self, loc: Input, *, scale_tril: Input) -> None:
        given = as_parameters(self._name, {"loc": loc, "scale_tril": scale_tril})
        loc, scale_tril = given.values()
        d = loc.shape[-1] if loc.ndim else 0
        fits = loc.ndim > 0 and scale_tril.ndim > 1 and scale_tril.shape[-2:] == (d, d)
        rule = "loc must be (..., d) and scale_tril (..., d, d)"
        check(fits, self._name, rule, **given)
        try:
            batch = np.broadcast_shapes(loc.shape[:-1], scale_tril.shape[:-2])
        except ValueError:
            fail(self._name, "the batches of loc and scale_tril must broadcast", **given)
        self.loc = to_shape(loc, (*batch, d))
        self.scale_tril = to_shape(scale_tril, (*batch, d, d))
        self._params = {"loc": self.loc, "scale_tril": self.scale_tril}
        self._set_shapes(self.loc.shape, 1)
        diagonal = "have a positive diagonal", lambda x: x <= 0
        check_values(self._name, "scale_tril", self._diagonal, *diagonal)

    @property
    def d(self) -> int:
        """The number of elements of a vector."""
        return self.event_shape[0]

    @property
    def _lower(self):
        return self.scale_tril * self.xp.tri(self.d, dtype=self.scale_tril.dtype)

    _diagonal = property(lambda self: F.diagonal(self.scale_tril, 0, -2, -1))

    @property
    def log_det(self):
        """Variable: the logarithms of the determinants of L."""
        return F.sum(F.log(self._diagonal), axis=-1)

    @property
    def _inverse(self):
        """Variable (*batch_shape, d, d): the inverses of L."""
        lower = self._lower
        return F.reshape(F.batch_inv(F.reshape(lower, (-1, self.d, self.d))), lower.shape)

    support: str = "real"
    mean = property(lambda self: self.loc)
    mode = property(lambda self: self.loc)
    variance = property(lambda self: F.sum(F.square(self._lower), axis=-1))
    covariance = property(lambda self: F.matmul(self._lower, self._lower, transb=True))
    entropy = property(lambda self: self.log_det + 0.5 * self.d * (1 + math.log(2 * math.pi)))

    def square_distance(self, x: Input) -> Variable:
        """Returns |L^-1 (x - loc)|^2, a Variable."""
        z = F.matmul(self._inverse, F.expand_dims(x - self.loc, -1))
        return F.sum(F.square(z), axis=(-2, -1))

    def _log_density(self, x):
        constant = 0.5 * self.d * math.log(2 * math.pi)
        return self.square_distance(x) * -0.5 - self.log_det - constant

    def sample_n(self, n: int) -> Variable:
        noise = draw(self.loc, "standard_normal", size=(n, *self.loc.shape, 1))
        return self.loc + F.squeeze(F.matmul(self._lower, noise), axis=-1)


class Independent(Distribution):
    """Reinterprets the last axes of a batch as axes of the event, with independent elements.

        >>> joint = Independent(mpchain.distributions.Normal(np.zeros((5, 3)), 1.0))
        >>> joint.batch_shape, joint.event_shape, joint.log_prob(np.zeros((5, 3))).shape
        ((5,), (3,), (5,))

    Args:
        distribution: the distribution to reinterpret.
        reinterpreted_batch_ndims: the number of axes to reinterpret; None means all axes except the
            first.

    Raises:
        ValueError: ``reinterpreted_batch_ndims`` is negative, or the batch has fewer axes.
    """

    def __init__(
        self, distribution: Distribution, reinterpreted_batch_ndims: int | None = None
    ) -> None:
        batch_shape = distribution.batch_shape
        n = reinterpreted_batch_ndims
        n = max(len(batch_shape) - 1, 0) if n is None else n
        if not 0 <= n <= len(batch_shape):
            raise ValueError(
                "Independent: reinterpreted_batch_ndims must be from 0 to the number of axes of "
                f"the batch, but is {n}, and the batch shape {batch_shape}"
            )
        self.distribution, self.reinterpreted_batch_ndims = distribution, n
        self._n_batch_axes = len(batch_shape) - n

    batch_shape = property(lambda self: self.distribution.batch_shape[: self._n_batch_axes])

    @property
    def event_shape(self) -> tuple[int, ...]:
        base = self.distribution
        return (*base.batch_shape[self._n_batch_axes :], *base.event_shape)

    params = property(lambda self: self.distribution.params)
    support = property(lambda self: self.distribution.support)
    mean = property(lambda self: self.distribution.mean)
    mode = property(lambda self: self.distribution.mode)
    variance = property(lambda self: self.distribution.variance)
    stddev = property(lambda self: self.distribution.stddev)

    @property
    def covariance(self) -> Variable:
        """Variable (*batch_shape, d, d), of the d elements of the event in row-major order."""
        base, d = self.distribution, math.prod(self.event_shape)
        if not base.event_shape:
            variance = F.reshape(base.variance, (*self.batch_shape, d, 1))
            return variance * self.xp.eye(d, dtype=variance.dtype)
        size = math.prod(base.event_shape)
        n = d // max(size, 1)
        blocks = F.reshape(base.covariance, (*self.batch_shape, n, size, 1, size))
        own = self.xp.eye(n, dtype=blocks.dtype)[:, None, :, None]
        return F.reshape(blocks * own, (*self.batch_shape, d, d))

    entropy = property(lambda self: self._total(self.distribution.entropy))

    def _total(self, x, function=F.sum):
        """Reduces the reinterpreted axes by ``function``, such as a sum or a product."""
        n = self.reinterpreted_batch_ndims
        return function(x, axis=tuple(range(x.ndim - n, x.ndim))) if n else x

    def log_prob(self, x: Input) -> Variable:
        return self._total(self.distribution.log_prob(x))

    def prob(self, x: Input) -> Variable:
        return self._total(self.distribution.prob(x), F.prod)

    def cdf(self, x: Input) -> Variable:
        """Returns the probability that no element of a sample is above the corresponding element of
        ``x``."""
        return self._total(self.distribution.cdf(x), F.prod)

    def log_cdf(self, x: Input) -> Variable:
        return self._total(self.distribution.log_cdf(x))

    def survival_function(self, x: Input) -> Variable:
        """Returns the probability that all elements of a sample are above the corresponding
        elements of ``x``."""
        return self._total(self.distribution.survival_function(x), F.prod)

    def log_survival_function(self, x: Input) -> Variable:
        return self._total(self.distribution.log_survival_function(x))

    def icdf(self, x: Input) -> Variable:
        """Raises RuntimeError if axes are reinterpreted, because the distribution function of
        several variables has no inverse."""
        if self.reinterpreted_batch_ndims == 0:
            return self.distribution.icdf(x)
        raise RuntimeError(
            "Independent.icdf: the distribution function of several variables has no inverse"
        )

    def sample_n(self, n: int) -> Variable:
        return self.distribution.sample_n(n)
