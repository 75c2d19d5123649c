"""Distributions on a half line: exponential, Pareto, gamma and chi-squared."""

import math
from typing import Any

from mpchain import functions as F
from mpchain.distributions import logarithms
from mpchain.distributions.distribution import POSITIVE, Parametric
from mpchain.distributions.gamma_tails import log_lower_gamma, log_poisson, log_upper_gamma
from mpchain.distributions.gamma_variates import log_gamma_variates, lower_gamma, upper_gamma
from mpchain.distributions.logarithms import choose
from mpchain.distributions.sampling import draw
from mpchain.typing import Input
from mpchain.variable import Variable


class HalfLine(Parametric):
    """Base of distributions on a half line; subclasses define the logarithm of the survival
    function.

    >>> issubclass(Exponential, HalfLine)
    True
    """

    def _log_survival(self, x):
        raise self._lacks("cdf")

    def cdf(self, x: Input) -> Variable:
        return self._evaluate("cdf", x, lambda x: -F.expm1(self._log_survival(x)), 0)

    def log_cdf(self, x: Input) -> Variable:
        formula = lambda x: logarithms.log_of_rest_of_exp(-self._log_survival(x))
        return self._evaluate("log_cdf", x, formula, -math.inf)

    def survival_function(self, x: Input) -> Variable:
        return self._evaluate("survival_function", x, lambda x: F.exp(self._log_survival(x)), 1)

    def log_survival_function(self, x: Input) -> Variable:
        return self._evaluate("log_survival_function", x, self._log_survival, 0)


class Exponential(HalfLine):
    """Exponential distribution: density lam exp(-lam x), x >= 0.

        >>> Exponential(np.array([1.0, 4.0])).mean.array
        array([1.  , 0.25])

    Args:
        lam: Variable or array: the rates, positive.
    """

    lam: Variable
    _rules = {"lam": POSITIVE}

    def __init__(self, lam: Input) -> None:
        super().__init__(lam=lam)

    support: str = "positive"
    mean = property(lambda self: 1 / self.lam)
    mode = property(lambda self: self.lam * 0)
    variance = property(lambda self: 1 / F.square(self.lam))
    stddev = property(lambda self: self.mean)
    entropy = property(lambda self: 1 - F.log(self.lam))

    def _outside(self, x):
        return x < 0

    def _log_density(self, x):
        return F.log(self.lam) - self.lam * x

    def _log_survival(self, x):
        return -self.lam * x

    def icdf(self, x: Input) -> Variable:
        return -logarithms.log_of_rest(self._points("icdf", x)) / self.lam

    def sample_n(self, n: int) -> Variable:
        noise: Any = draw(self.lam, "standard_exponential", size=(n, *self.batch_shape))
        return noise / self.lam


class Pareto(HalfLine):
    """Pareto distribution: density alpha scale^alpha / x^(alpha + 1), x >= scale.

    The mean is infinite for alpha up to 1, and the variance is infinite for alpha up to 2.

        >>> Pareto(np.array([1.0, 2.0]), 3.0).mean.array
        array([1.5, 3. ])

    Args:
        scale: Variable or array: the lower bounds, positive.
        alpha: Variable or array: the exponents, positive.
    """

    scale: Variable
    alpha: Variable
    _rules = {"scale": POSITIVE, "alpha": POSITIVE}

    def __init__(self, scale: Input, alpha: Input) -> None:
        super().__init__(scale=scale, alpha=alpha)

    _inner = property(lambda self: self.scale.array)
    support: str = "[scale, inf]"

    @property
    def mean(self) -> Variable:
        infinite = self.alpha.array <= 1
        alpha = choose(infinite, 2, self.alpha)
        return choose(infinite, math.inf, alpha * self.scale / (alpha - 1))

    mode = property(lambda self: self.scale)

    @property
    def variance(self) -> Variable:
        infinite = self.alpha.array <= 2
        alpha = choose(infinite, 3, self.alpha)
        variance = F.square(self.scale / (alpha - 1)) * alpha / (alpha - 2)
        return choose(infinite, math.inf, variance)

    entropy = property(lambda self: F.log(self.scale / self.alpha) + 1 / self.alpha + 1)

    def _outside(self, x):
        return x < self.scale.array

    def _log_density(self, x):
        return F.log(self.alpha / x) + self._log_survival(x)

    def _log_survival(self, x):
        # Near the scale, the difference is exact but the quotient is not, so the logarithm is
        # computed from the difference.
        is_near = x.array < 2 * self.scale.array
        near, far = choose(is_near, x, self.scale), choose(is_near, self.scale, x)
        near, far = F.log1p((self.scale - near) / near), F.log(self.scale / far)
        return self.alpha * choose(is_near, near, far)

    def icdf(self, x: Input) -> Variable:
        log_rest = logarithms.log_of_rest(self._points("icdf", x))
        return self.scale * F.exp(-log_rest / self.alpha)

    def sample_n(self, n: int) -> Variable:
        noise = draw(self.scale, "standard_exponential", size=(n, *self.batch_shape))
        return self.scale * F.exp(noise / self.alpha)


class Gamma(Parametric):
    """Gamma distribution: density x^(k - 1) exp(-x / theta) / (Gamma(k) theta^k), x >= 0.

    Gradients of samples come from implicit differentiation of the distribution function, an exact
    reparameterization (M. Figurnov et al., Implicit reparameterization gradients, 2018).
    On the host, everything except the mean, the mode, the variance, the standard deviation, and
    samples without gradients needs SciPy.

        >>> Gamma(np.array([1.0, 2.0]), 3.0).variance.array
        array([ 9., 18.])

    Args:
        k: Variable or array: the shapes, positive.
        theta: Variable or array: the scales, positive.
    """

    k: Variable
    theta: Variable
    _rules = {"k": POSITIVE, "theta": POSITIVE}

    def __init__(self, k: Input, theta: Input) -> None:
        super().__init__(k=k, theta=theta)

    support: str = "positive"
    mean = property(lambda self: self.k * self.theta)
    mode = property(lambda self: F.relu(self.k - 1) * self.theta)
    variance = property(lambda self: self.k * F.square(self.theta))

    @property
    def entropy(self) -> Variable:
        k = self.k
        return k + F.log(self.theta) + F.lgamma(k) + (1 - k) * F.digamma(k)

    def _outside(self, x):
        return x < 0

    def _log_density(self, x):
        return log_poisson(self.k - 1, x / self.theta) - F.log(self.theta)

    def cdf(self, x: Input) -> Variable:
        return self._evaluate("cdf", x, lambda x: lower_gamma(self.k, x / self.theta), 0)

    def log_cdf(self, x: Input) -> Variable:
        lower = lambda x: log_lower_gamma(self.k, x / self.theta)
        return self._evaluate("log_cdf", x, lower, -math.inf)

    def survival_function(self, x: Input) -> Variable:
        upper = lambda x: upper_gamma(self.k, x / self.theta)
        return self._evaluate("survival_function", x, upper, 1)

    def log_survival_function(self, x: Input) -> Variable:
        upper = lambda x: log_upper_gamma(self.k, x / self.theta)
        return self._evaluate("log_survival_function", x, upper, 0)

    def sample_n(self, n: int) -> Variable:
        return self.theta * F.exp(log_gamma_variates(self.k, n))


class Chisquare(Parametric):
    """Chi-squared distribution, of the sum of squares of k standard normal variables.

    It is :class:`Gamma` with shape k / 2 and scale 2.

        >>> Chisquare(np.array([1, 2.0])).variance.array
        array([2., 4.])

    Args:
        k: Variable or array: the degrees of freedom, positive.
    """

    k: Variable
    _rules = {"k": POSITIVE}

    def __init__(self, k: Input) -> None:
        super().__init__(k=k)

    _gamma = property(lambda self: Gamma(self.k * 0.5, self.xp.asarray(2, self.k.dtype)))
    support: str = "positive"
    mean = property(lambda self: self.k)
    mode = property(lambda self: self._gamma.mode)
    variance = property(lambda self: self.k * 2)
    entropy = property(lambda self: self._gamma.entropy)

    def log_prob(self, x: Input) -> Variable:
        return self._gamma.log_prob(self._points("log_prob", x))

    def cdf(self, x: Input) -> Variable:
        return self._gamma.cdf(self._points("cdf", x))

    def log_cdf(self, x: Input) -> Variable:
        return self._gamma.log_cdf(self._points("log_cdf", x))

    def survival_function(self, x: Input) -> Variable:
        return self._gamma.survival_function(self._points("survival_function", x))

    def log_survival_function(self, x: Input) -> Variable:
        return self._gamma.log_survival_function(self._points("log_survival_function", x))

    def sample_n(self, n: int) -> Variable:
        return self._gamma.sample_n(n)
