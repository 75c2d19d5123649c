"""The log-normal distribution, and distributions of loc + scale z, where z has a standard
distribution, such as the standard normal distribution."""

import math
from typing import TYPE_CHECKING

import numpy as np

from mpchain import functions as F
from mpchain.distributions import logarithms
from mpchain.distributions.distribution import POSITIVE, Parametric, check_values, only_one
from mpchain.distributions.logarithms import choose
from mpchain.distributions.sampling import draw
from mpchain.typing import Input
from mpchain.variable import Variable

_LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)


class LocationScale(Parametric):
    """Base of the distributions of loc + scale z; subclasses define the standard distribution, with
    loc 0 and scale 1.

    >>> issubclass(Normal, LocationScale)
    True
    """

    loc: Variable
    scale: Variable
    _rules = {"scale": POSITIVE}
    if TYPE_CHECKING:

        def _standard_log_density(self, z: Variable) -> Variable: ...
        def _standard_cdf(self, z: Variable) -> Variable: ...
        def _standard_icdf(self, p: Variable) -> Variable: ...

    _noise: str  # this is the name of the random generator's method that draws z
    _standard_mean = 0.0
    _standard_variance = math.nan
    _standard_entropy = math.nan

    def __init__(self, loc: Input, scale: Input) -> None:
        super().__init__(loc=loc, scale=scale)

    _log_scale = property(lambda self: F.log(self.scale))
    support: str = "real"

    @property
    def mean(self) -> Variable:
        return self.loc + self.scale * self._standard_mean if self._standard_mean else self.loc

    mode = property(lambda self: self.loc)
    variance = property(lambda self: F.square(self.scale) * self._standard_variance)
    stddev = property(lambda self: self.scale * math.sqrt(self._standard_variance))
    entropy = property(lambda self: self._log_scale + self._standard_entropy)

    def _standardized(self, method, x):
        return (self._points(method, x) - self.loc) / self.scale

    def _log_density(self, x):
        return self._standard_log_density((x - self.loc) / self.scale) - self._log_scale

    def cdf(self, x: Input) -> Variable:
        return self._standard_cdf(self._standardized("cdf", x))

    def icdf(self, x: Input) -> Variable:
        return self.loc + self.scale * self._standard_icdf(self._points("icdf", x))

    def sample_n(self, n: int) -> Variable:
        noise = draw(self.loc, self._noise, size=(n, *self.batch_shape))
        return self.loc + self.scale * noise


class _Symmetric(LocationScale):
    """Base of distributions that are symmetric about loc."""

    def _standard_log_cdf(self, z):
        return logarithms.log(self._standard_cdf(z))

    def log_cdf(self, x: Input) -> Variable:
        return self._standard_log_cdf(self._standardized("log_cdf", x))

    def survival_function(self, x: Input) -> Variable:
        return self._standard_cdf(-self._standardized("survival_function", x))

    def log_survival_function(self, x: Input) -> Variable:
        return self._standard_log_cdf(-self._standardized("log_survival_function", x))


class Normal(_Symmetric):
    """Normal distribution: density exp(-(x - loc)^2 / (2 scale^2)) / sqrt(2 pi scale^2).

        >>> Normal(np.array([0.0, 1.0]), 2.0).log_prob(0.0).array.round(3)
        array([-1.612, -1.737])
        >>> Normal(np.array([0.0, 1.0]), 2.0).sample(3).shape
        (3, 2)

    Args:
        loc: Variable or array: the means.
        scale: Variable or array: the standard deviations, positive.
        log_scale: the logarithms of the standard deviations, instead of ``scale``.

    Raises:
        ValueError: a scale is not positive, or ``scale`` and ``log_scale`` are both given or both
            missing.
    """

    _noise = "standard_normal"
    _standard_variance = 1.0
    _standard_entropy = 0.5 + _LOG_SQRT_2_PI

    def __init__(
        self, loc: Input, scale: Input | None = None, *, log_scale: Input | None = None
    ) -> None:
        given = only_one(self._name, ("scale",), ("log_scale",), scale=scale, log_scale=log_scale)
        if scale is not None:
            super().__init__(loc, scale)
            return
        Parametric.__init__(self, loc=loc, **given)
        self._given_log_scale = vars(self).pop("log_scale")
        self.scale = F.exp(self._given_log_scale)
        self._params = {"loc": self.loc, "scale": self.scale}

    _given_log_scale = None

    @property
    def log_scale(self) -> Variable:
        """Variable: the logarithm of the scale."""
        return F.log(self.scale) if self._given_log_scale is None else self._given_log_scale

    _log_scale = log_scale

    def _standard_log_density(self, z):
        return F.square(z) * -0.5 - _LOG_SQRT_2_PI

    def _standard_cdf(self, z):
        return F.ndtr(z)

    def _standard_icdf(self, p):
        return F.ndtri(p)

    def _standard_log_cdf(self, z):
        return F.log_ndtr(z)


class Laplace(_Symmetric):
    """Laplace distribution: density exp(-|x - loc| / scale) / (2 scale).

        >>> Laplace(0.0, 1.0).cdf(np.array([-1.0, 0.0, 1.0])).array.round(3)
        array([0.184, 0.5  , 0.816])

    Args:
        loc: Variable or array.
        scale: Variable or array, positive.
    """

    _noise = "laplace"
    _standard_variance = 2.0
    _standard_entropy = 1 + math.log(2)

    def _standard_log_density(self, z):
        return -F.absolute(z) - math.log(2)

    def _standard_cdf(self, z):
        # Where the arguments of minimum and maximum are equal, the first argument gets the
        # gradient, so the density at loc is correct.
        below, above = np.exp(np.minimum(z, 0)) * 0.5, np.exp(-np.maximum(z, 0)) * 0.5
        return choose(z.array < 0, below, 1 - above)

    def _standard_log_cdf(self, z):
        above = F.log1p(np.exp(-np.maximum(z, 0)) * -0.5)
        return choose(z.array < 0, z - math.log(2), above)

    def _standard_icdf(self, p):
        tail = logarithms.log(F.minimum(1 - p, p) * 2)
        return choose(p.array < 0.5, tail, -tail)


class Cauchy(_Symmetric):
    """Cauchy distribution: density 1 / (pi scale (1 + ((x - loc) / scale)^2)).

    The mean and the variance do not exist, so they are NaN.

        >>> Cauchy(0.0, 1.0).icdf(np.array([0.25, 0.5])).array.round(3)
        array([-1., -0.])

    Args:
        loc: Variable or array: the medians.
        scale: Variable or array, positive.
    """

    _noise = "standard_cauchy"
    _standard_mean = math.nan
    _standard_entropy = math.log(4 * math.pi)

    def _standard_log_density(self, z):
        # The term log(1 + z^2) is computed from z / m with m = max(|z|, 1), so that distant points
        # do not overflow.
        m = np.maximum(abs(z.array), 1)
        rest = F.square(z / m) + (np.square(1 / m) - 1)
        return -F.log1p(rest) - (np.log(m) * 2 + math.log(math.pi))

    def _standard_cdf(self, z):
        # Unlike arctan(z) / pi + 1/2, this formula is accurate even far below loc.
        return F.arctan2(z.xp.ones_like(z.array), -z) / math.pi

    def _standard_log_cdf(self, z):
        # ``beyond`` is the probability of points on the side of z that are farther from loc than z,
        # computed without the square of z, which could overflow.
        distance = choose(z.array < 0, -z, z)
        is_far = distance.array > 1
        near = F.arctan2(z.xp.ones_like(z.array), choose(is_far, 1, distance))
        far = F.arctan(1 / choose(~is_far, 1, distance))
        beyond = choose(is_far, far, near) / math.pi
        return choose(z.array < 0, F.log(beyond), F.log1p(-beyond))

    def _standard_icdf(self, p):
        return -1 / F.tan(p * math.pi)


class Gumbel(LocationScale):
    """Gumbel distribution of maxima: density exp(-(z + exp(-z))) / scale, z = (x - loc) / scale.

        >>> Gumbel(np.array(0.0), 1.0).mean.array.round(3)
        np.float64(0.577)

    Args:
        loc: Variable or array: the modes.
        scale: Variable or array, positive.
    """

    _noise = "gumbel"
    _standard_mean = float(np.euler_gamma)
    _standard_variance = math.pi**2 / 6
    _standard_entropy = 1 + float(np.euler_gamma)

    def _standard_log_density(self, z):
        return -z - F.exp(-z)

    def _standard_cdf(self, z):
        return F.exp(-self._rate(z))

    @staticmethod
    def _rate(z):
        # Below z = -7, the distribution function is zero in every precision.
        return F.exp(-np.maximum(z, -7))

    def _standard_icdf(self, p):
        return -logarithms.log(-logarithms.log(p))

    def log_cdf(self, x: Input) -> Variable:
        return -F.exp(-self._standardized("log_cdf", x))

    def survival_function(self, x: Input) -> Variable:
        return -F.expm1(-self._rate(self._standardized("survival_function", x)))

    def log_survival_function(self, x: Input) -> Variable:
        z = self._standardized("log_survival_function", x)
        is_far = z.array > 18  # for these points, 1 - exp(-u) is u - u^2 / 2
        u = self._rate(choose(is_far, 0, z))
        far = choose(~is_far, 0, z)
        return choose(is_far, F.exp(-far) * -0.5 - far, logarithms.log_of_rest_of_exp(u))


class Uniform(LocationScale):
    """Uniform distribution on [low, high], which is [loc, loc + scale].

        >>> Uniform(low=np.array(0.0), high=4.0).prob(np.array([1.0, 5.0])).array
        array([0.25, 0.  ])

    Args:
        low, high: Variables or arrays, low < high.
        loc, scale: the lower bound and the width, instead of ``low`` and ``high``.

    Raises:
        ValueError: an interval is empty, or not exactly one of the two pairs is given.
    """

    _noise = "random"
    _standard_mean = 0.5
    _standard_variance = 1 / 12
    _standard_entropy = 0.0

    def __init__(
        self,
        *,
        low: Input | None = None,
        high: Input | None = None,
        loc: Input | None = None,
        scale: Input | None = None,
    ) -> None:
        ends = {"low": low, "high": high}
        given = only_one(
            self._name, ("low", "high"), ("loc", "scale"), **ends, loc=loc, scale=scale
        )
        Parametric.__init__(self, **given)
        if "low" in given:
            self.loc, self.scale = self.low, self.high - self.low
            rule = "be above low", lambda high: high <= self.low.array
            check_values(self._name, "high", self.high, *rule)
        else:
            self.low, self.high = self.loc, self.loc + self.scale

    support: str = "[low, high]"

    @property
    def mode(self) -> Variable:
        raise self._lacks("mode")

    def _outside(self, x):
        return (x < self.low.array) | (x > self.high.array)

    def _standard_log_density(self, z):
        return z * 0

    def _standard_cdf(self, z):
        return F.clip(z, 0.0, 1.0)

    def _standard_icdf(self, p):
        return p

    def survival_function(self, x: Input) -> Variable:
        x = self._points("survival_function", x)
        return F.clip((self.high - x) / self.scale, 0.0, 1.0)


class LogNormal(Parametric):
    """Log-normal distribution: log(x) is normal with mean mu and standard deviation sigma.

        >>> LogNormal(np.array(0.0), 1.0).mode.array.round(3)
        np.float64(0.368)

    Args:
        mu: Variable or array.
        sigma: Variable or array, positive.
    """

    mu: Variable
    sigma: Variable
    _rules = {"sigma": POSITIVE}

    def __init__(self, mu: Input, sigma: Input) -> None:
        super().__init__(mu=mu, sigma=sigma)

    _normal = property(lambda self: Normal(self.mu, self.sigma))
    support: str = "positive"
    mean = property(lambda self: F.exp(self.mu + F.square(self.sigma) * 0.5))
    mode = property(lambda self: F.exp(self.mu - F.square(self.sigma)))

    @property
    def variance(self) -> Variable:
        square = F.square(self.sigma)
        return F.expm1(square) * F.exp(self.mu * 2 + square)

    entropy = property(lambda self: self.mu + self._normal.entropy)

    def _outside(self, x):
        return x <= 0

    def _log_density(self, x):
        log_x = F.log(x)
        return self._normal.log_prob(log_x) - log_x

    def _by_normal(self, method, x, value):
        function = getattr(self._normal, method)
        return self._evaluate(method, x, lambda x: function(F.log(x)), value)

    def cdf(self, x: Input) -> Variable:
        return self._by_normal("cdf", x, 0)

    def icdf(self, x: Input) -> Variable:
        return F.exp(self._normal.icdf(x))

    def log_cdf(self, x: Input) -> Variable:
        return self._by_normal("log_cdf", x, -math.inf)

    def survival_function(self, x: Input) -> Variable:
        return self._by_normal("survival_function", x, 1)

    def log_survival_function(self, x: Input) -> Variable:
        return self._by_normal("log_survival_function", x, 0)

    def sample_n(self, n: int) -> Variable:
        return F.exp(self._normal.sample_n(n))
