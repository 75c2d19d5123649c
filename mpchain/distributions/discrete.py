"""Discrete distributions: Bernoulli, categorical, one-hot categorical, geometric and Poisson.

Their samples are whole numbers, or one-hot vectors, and have no gradients.
"""

import math

import numpy as np

from mpchain import functions as F
from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.distributions import logarithms
from mpchain.distributions.distribution import (
    NOT_NEGATIVE,
    PROBABILITY,
    Parametric,
    check_values,
    only_one,
)
from mpchain.distributions.gamma_tails import log_lower_gamma, log_poisson, log_upper_gamma
from mpchain.distributions.gamma_variates import lower_gamma, upper_gamma
from mpchain.distributions.logarithms import choose
from mpchain.distributions.sampling import draw
from mpchain.typing import Array, Input
from mpchain.utils.arrays import converted
from mpchain.variable import Variable, as_variable


def _fractional(x):
    """Returns an array that is True where elements are fractional or infinite, and False for
    NaN."""
    return np.isinf(x) | ((np.floor(x) != x) & ~np.isnan(x))


class Bernoulli(Parametric):
    """Bernoulli distribution: samples are 1 with probability p and 0 otherwise, as integers.

        >>> Bernoulli(np.array([0.2, 0.5])).prob(np.array([1, 1])).array
        array([0.2, 0.5])

    Args:
        p: Variable or array: the probabilities of one.
        logit: log(p / (1 - p)) instead of ``p``.
        binary_check: whether points between zero and one are outside of the support. If False, such
            points x are soft labels with log-probability x log p + (1 - x) log(1 - p) and
            probability x p + (1 - x) (1 - p).

    Raises:
        ValueError: ``p`` and ``logit`` are both given or both missing, or ``p`` is out of range.
    """

    p: Variable
    logit: Variable
    _rules = {"p": PROBABILITY}

    def __init__(
        self, p: Input | None = None, logit: Input | None = None, binary_check: bool = False
    ) -> None:
        super().__init__(**only_one(self._name, ("p",), ("logit",), p=p, logit=logit))
        self.binary_check = binary_check
        if p is None:
            self.p = F.sigmoid(self.logit)
            self._logs = -F.softplus(-self.logit), -F.softplus(self.logit)
        else:
            self._logs = logarithms.log(self.p), logarithms.log_of_rest(self.p)
            with np.errstate(invalid="ignore"):
                self.logit = self._logs[0] - self._logs[1]
        self._params = {"logit": self.logit}

    support: str = "{0, 1}"
    mean = property(lambda self: self.p)
    mode = property(lambda self: as_variable(converted(self.xp, self.p.array >= 0.5, self.p.dtype)))
    variance = property(lambda self: self.p * (1 - self.p))
    entropy = property(lambda self: -self._expected(*self._logs))

    def _expected(self, of_one, of_zero):
        """Returns the mean of a quantity whose values for one and for zero are given; the values
        may be infinite."""
        return logarithms.weighted(self.p, of_one) + logarithms.weighted(1 - self.p, of_zero)

    def _outside(self, x):
        outside = (x < 0) | (x > 1)
        return outside | _fractional(x) if self.binary_check else outside

    def _log_density(self, x):
        of_one, of_zero = self._logs
        return logarithms.weighted(x, of_one) + logarithms.weighted(1 - x, of_zero)

    def prob(self, x: Input) -> Variable:
        return self._evaluate("prob", x, lambda x: x * self.p + (1 - x) * (1 - self.p), 0)

    def cdf(self, x: Input) -> Variable:
        x = self._points("cdf", x).array
        return choose(x >= 1, 1, choose(x < 0, 0, 1 - self.p))

    def log_cdf(self, x: Input) -> Variable:
        x = self._points("log_cdf", x).array
        return choose(x >= 1, 0, choose(x < 0, -math.inf, self._logs[1]))

    def survival_function(self, x: Input) -> Variable:
        x = self._points("survival_function", x).array
        return choose(x >= 1, 0, choose(x < 0, 1, self.p))

    def log_survival_function(self, x: Input) -> Variable:
        x = self._points("log_survival_function", x).array
        return choose(x >= 1, -math.inf, choose(x < 0, 0, self._logs[0]))

    def sample_n(self, n: int) -> Variable:
        size = (n, *self.batch_shape)
        # Samples are drawn from the binomial distribution, as in Chainer, although uniform random
        # numbers would suffice.
        return as_variable(draw(self.p, "binomial", 1, self.p.array, size=size).astype(np.int64))


_SUM_TOLERANCE = 1e-2
"""The tolerance of the sum of probabilities, because half precision rounds each probability."""


def sums_to_one(x: Array) -> Array:
    """Returns an array that is True where the last axis of an array sums to one, up to 0.01.

    >>> bool(sums_to_one(np.array([0.2, 0.8])))
    True
    """
    return abs(x.sum(axis=-1, dtype="d" if is_floating(x.dtype) else None) - 1) <= _SUM_TOLERANCE


def _check_probabilities(owner, p):
    check_values(owner, "p", p, *PROBABILITY)
    rule = "sum to one over its last axis", lambda p: ~sums_to_one(p) & ~np.isnan(p).any(axis=-1)
    check_values(owner, "p", p, *rule)


def _draw_categories(p, n):
    """Draws ``n`` integers for each row of probabilities; returns an array (n, *p.shape[:-1])."""
    xp = p.xp
    *batch, size = p.shape
    rows = math.prod(batch)
    ends = xp.cumsum(p.array.astype("d").reshape(rows, size), axis=1)
    ends /= ends[:, -1:]
    # The rows are joined into one ascending sequence, in which row i covers [i, i + 1].
    begins = xp.arange(rows, dtype="d")
    like = Variable(begins)
    points = xp.minimum(begins + draw(like, "random", size=(n, rows)), xp.nextafter(begins + 1, 0))
    found = xp.searchsorted((ends + begins[:, None]).ravel(), points.ravel(), side="right")
    return (found.reshape(n, rows) % max(size, 1)).reshape(n, *batch).astype(np.int64)


class Categorical(Parametric):
    """Categorical distribution: integers from 0 with given probabilities.

        >>> Categorical(np.array([0.2, 0.3, 0.5])).log_prob(2).array.round(3)
        np.float64(-0.693)
        >>> Categorical(np.array([0.2, 0.3, 0.5])).sample((2, 4)).shape
        (2, 4)

    Args:
        p: Variable or array (..., n): the probabilities, with sum one.
        logit: the logarithms of the probabilities, up to a constant, instead of ``p``.

    Raises:
        ValueError: ``p`` and ``logit`` are both given or both missing, or ``p`` is negative or does
            not sum to one.
    """

    p: Variable
    logit: Variable
    _n_event_axes = 1

    def __init__(self, p: Input | None = None, *, logit: Input | None = None) -> None:
        given = only_one(self._name, ("p",), ("logit",), p=p, logit=logit)
        super().__init__(**given)
        (self._n_categories,) = self._event_shape
        self._event_shape = ()
        if logit is None:
            _check_probabilities(self._name, self.p)
            self.log_p = logarithms.log(self.p)
        else:
            self.log_p = F.log_softmax(self.logit, axis=-1)
            self.p = F.softmax(self.logit, axis=-1)
        self._params = {"p": self.p}

    support = property(lambda self: f"{{0, ..., {self._n_categories - 1}}}")
    mode = property(lambda self: F.argmax(self.p, axis=-1))
    entropy = property(lambda self: -F.sum(logarithms.weighted(self.p, self.log_p), axis=-1))

    def log_prob(self, x: Input) -> Variable:
        x = self._points("log_prob", x).array
        outside = (x < 0) | (x >= self._n_categories) | (np.floor(x) != x)
        xp = get_array_module(x)
        index = xp.where(outside, 0, x).astype(np.int64)
        grid = xp.ogrid[tuple(slice(size) for size in self.batch_shape)]
        grid = grid if isinstance(grid, (list, tuple)) else (grid,)
        return choose(outside, -math.inf, self.log_p[(*grid, index)])

    def sample_n(self, n: int) -> Variable:
        return as_variable(_draw_categories(self.p, n))


class OneHotCategorical(Parametric):
    """Distribution of one-hot vectors, where the probability of each position is given.

    Other vectors x without negative elements, and with sum one, are soft labels with
    log-probability sum(x log p).

        >>> OneHotCategorical(np.array([0.0, 1.0])).sample_n(2).array
        array([[0., 1.],
               [0., 1.]])

    Args:
        p: Variable or array (..., n): the probabilities, with sum one.
    """

    p: Variable
    _n_event_axes = 1

    def __init__(self, p: Input) -> None:
        super().__init__(p=p)
        _check_probabilities(self._name, self.p)
        self.log_p = logarithms.log(self.p)

    _inner = property(lambda self: 1 / self.p.shape[-1])
    support: str = "one-hot"
    mean = property(lambda self: self.p)
    variance = property(lambda self: self.p * (1 - self.p))
    covariance = property(lambda self: covariance_of_shares(self.p))
    entropy = property(lambda self: -F.sum(logarithms.weighted(self.p, self.log_p), axis=-1))

    def _outside(self, x):
        return outside_of_simplex(x)

    def _log_density(self, x):
        return F.sum(logarithms.weighted(x, self.log_p), axis=-1)

    def sample_n(self, n: int) -> Variable:
        found = _draw_categories(self.p, n)
        one = found[..., None] == self.xp.arange(self.p.shape[-1])
        return as_variable(one.astype(self.p.dtype))


def outside_of_simplex(x: Array) -> Array:
    """Returns an array that is True where the last axis of an array has a negative element or a sum
    other than one.

    >>> outside_of_simplex(np.array([[0.2, 0.8], [0.5, 0.8], [-0.1, 1.1]]))
    array([False,  True,  True])
    """
    return (x < 0).any(axis=-1) | ~(sums_to_one(x) | np.isnan(x).any(axis=-1))


def covariance_of_shares(p: Variable) -> Variable:
    """Returns diag(p) - p p^T of a Variable p (..., n).

    >>> covariance_of_shares(Variable(np.array([0.5, 0.5]))).array
    array([[ 0.25, -0.25],
           [-0.25,  0.25]])
    """
    rows, columns = F.expand_dims(p, -1), F.expand_dims(p, -2)
    return rows * (p.xp.eye(p.shape[-1], dtype=p.dtype) - columns)


class Geometric(Parametric):
    """Geometric distribution of the first success: probability (1 - p)^(x - 1) p, x = 1, 2, ...

        >>> Geometric(np.array(0.5)).prob(3).array.round(3)
        np.float64(0.125)

    Args:
        p: Variable or array: the probabilities of success.
    """

    p: Variable
    _rules = {"p": ("be above 0 and at most 1", lambda p: (p <= 0) | (p > 1))}

    def __init__(self, p: Input) -> None:
        super().__init__(p=p)

    _log_failure = property(lambda self: logarithms.log_of_rest(self.p))
    support: str = "positive integer"
    mean = property(lambda self: 1 / self.p)
    mode = property(lambda self: as_variable(self.xp.ones_like(self.p.array)))
    variance = property(lambda self: (1 - self.p) / F.square(self.p))
    entropy = property(lambda self: -self._expected(self._log_failure, F.log(self.p)))

    def _expected(self, of_failure, of_success):
        """Returns the mean of a sum that has a value for each failure and a value for the
        success."""
        return logarithms.weighted((1 - self.p) / self.p, of_failure) + of_success

    def _outside(self, x):
        return (x < 1) | _fractional(x)

    def _log_density(self, x):
        return logarithms.weighted(x - 1, self._log_failure) + F.log(self.p)

    def cdf(self, x: Input) -> Variable:
        return -F.expm1(self.log_survival_function(x))

    def log_cdf(self, x: Input) -> Variable:
        return logarithms.log_of_rest_of_exp(-self.log_survival_function(x))

    def survival_function(self, x: Input) -> Variable:
        return F.exp(self.log_survival_function(x))

    def log_survival_function(self, x: Input) -> Variable:
        n = np.maximum(F.floor(self._points("log_survival_function", x)), 0)
        return logarithms.weighted(n, self._log_failure)

    def sample_n(self, n: int) -> Variable:
        size = (n, *self.batch_shape)
        return as_variable(draw(self.p, "geometric", self.p.array, size=size))


class Poisson(Parametric):
    """Poisson distribution: probability lam^x exp(-lam) / x!, x = 0, 1, ...

        >>> Poisson(np.array([1.0, 2.0])).mean.array
        array([1., 2.])

    Args:
        lam: Variable or array: the means, not negative.
    """

    lam: Variable
    _rules = {"lam": NOT_NEGATIVE}

    def __init__(self, lam: Input) -> None:
        super().__init__(lam=lam)

    support: str = "non negative integer"
    mean = property(lambda self: self.lam)
    mode = property(lambda self: F.floor(self.lam))
    variance = property(lambda self: self.lam)

    @property
    def entropy(self) -> Variable:
        """Variable of shape ``batch_shape``, in nats, computed as a sum, because no closed form
        exists."""
        xp, lam = self.xp, self.lam
        # Points farther than this reach from the mean have negligible probabilities.
        largest = float(xp.nan_to_num(lam.array, posinf=0).max()) if lam.size else 0
        reach = int(12 * math.sqrt(largest)) + 30
        x = xp.floor(lam.array)[..., None] + xp.arange(-reach, reach + 1, dtype=lam.dtype)
        log_prob = log_poisson(as_variable(xp.maximum(x, 0)), F.expand_dims(lam, -1))
        terms = logarithms.weighted(F.exp(log_prob), log_prob)
        return -F.sum(terms * (x >= 0).astype(lam.dtype), axis=-1)

    def expected_log(self, lam: Variable) -> Variable:
        """Returns the mean, over this distribution, of x log(lam)."""
        return logarithms.weighted(self.lam, logarithms.log(lam))

    def _outside(self, x):
        return (x < 0) | _fractional(x)

    def _log_density(self, x):
        return log_poisson(x, self.lam)

    def cdf(self, x: Input) -> Variable:
        return self._by_gamma("cdf", x, upper_gamma, 0)

    def log_cdf(self, x: Input) -> Variable:
        return self._by_gamma("log_cdf", x, log_upper_gamma, -math.inf)

    def survival_function(self, x: Input) -> Variable:
        return self._by_gamma("survival_function", x, lower_gamma, 1)

    def log_survival_function(self, x: Input) -> Variable:
        return self._by_gamma("log_survival_function", x, log_lower_gamma, 0)

    def _by_gamma(self, method, x, function, below_zero):
        x = self._points(method, x)
        n = F.floor(np.maximum(x, 0)) + 1
        return choose(x.array < 0, below_zero, function(n, self.lam))

    def sample_n(self, n: int) -> Variable:
        size = (n, *self.batch_shape)
        return as_variable(draw(self.lam, "poisson", self.lam.array, size=size))
