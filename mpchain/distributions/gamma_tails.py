"""Logarithms of gamma and Poisson probabilities, computed without underflow or cancellation.

A Poisson probability lam^x exp(-lam) / x! is a quotient of huge, almost equal numbers. For large x,
it is computed with C. Loader's saddle-point method (Fast and accurate computation of binomial
probabilities, 2000), from the deviance x log(x / lam) + lam - x and the remainder of Stirling's
formula. The same number is the density of a gamma distribution of shape x + 1, so x need not be an
integer.

Where the distribution function underflows, its logarithm is computed as the sum of the logarithms
of the density and of a series (on the left) or a continued fraction (on the right).
"""

import math

import numpy as np

from mpchain import functions as F
from mpchain.backends.cuda import get_array_module
from mpchain.distributions.gamma_variates import _at_points, _quantile_slope
from mpchain.distributions.logarithms import choose
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.special import _special as special_function
from mpchain.functions.special import digamma
from mpchain.variable import Variable

_STIRLING = [1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360]
_LARGE = 10.0  # Stirling's series is accurate to all digits above this number
_UNDERFLOW = 1e-290
_MOST_TERMS = 100_000


def _deviance(xp, x, lam):
    """Returns x log(x / lam) + lam - x for x > 0. Near lam, the result is a series in (x - lam) /
    (x + lam)."""
    v = (x - lam) / (x + lam)
    near = (x - lam) * v
    term = 2 * x * v
    for j in range(1, 10):
        term = term * v * v
        near = near + term / (2 * j + 1)
    far = x * xp.log(x / lam) + lam - x
    return xp.where(abs(v) < 0.1, near, far)


def _log_poisson_values(x, lam):
    """Returns the logarithm of the Poisson probability in double precision, for x > -1 and lam >
    0."""
    xp = get_array_module(x)
    is_large = x >= _LARGE
    large = xp.where(is_large, x, _LARGE)
    rest = sum(c / large ** (2 * i + 1) for i, c in enumerate(_STIRLING))
    by_saddle = -_deviance(xp, large, lam) - rest - xp.log(large * (2 * math.pi)) * 0.5
    small = xp.where(is_large, 1, x)
    direct = small * xp.log(lam) - lam - special_function("gammaln", small + 1)
    return xp.where(is_large, by_saddle, direct)


@differentiable(
    lambda g, x, lam: g * (np.log(lam) - digamma.on(x + 1)),
    lambda g, x, lam: g * ((x - lam) / lam),
)
def _log_poisson(x, lam):
    return _log_poisson_values(x.astype("d"), lam.astype("d")).astype(lam.dtype)


def log_poisson(x: Variable, lam: Variable) -> Variable:
    """Returns x log(lam) - lam - log(x!), for real x above -1; at lam = 0, returns the limit.

        >>> log_poisson(Variable(np.array(1e6)), Variable(np.array(1e6))).array.round(9)
        np.float64(-7.826693896)

    Args:
        x: Variable: the points.
        lam: Variable that broadcasts with ``x``, not negative.

    Returns:
        Variable of the broadcast shape.
    """
    x, lam = F.broadcast(x, lam)
    is_zero, xp = lam.array == 0, x.xp
    limit = xp.where(x.array == 0, 0, xp.where(x.array > 0, -math.inf, math.inf))
    y = _log_poisson(x, choose(is_zero, 1, lam))
    return choose(is_zero, limit.astype(lam.dtype) - lam, y)


def _log_series(xp, a, x):
    """Returns log(1 + x / (a + 1) + x^2 / ((a + 1) (a + 2)) + ...), for x < a."""
    term = total = xp.ones_like(x)
    for n in range(1, _MOST_TERMS):
        term = term * (x / (a + n))
        total = total + term
        if not (term > total * 1e-17).any():
            break
    return xp.log(total)


def _log_fraction(xp, a, x):
    """Returns log(a / (x + 1 - a - (1 - a) / (x + 3 - a - 2 (2 - a) / (...)))), for x > a + 1."""
    b = x + 1 - a
    c, d = xp.full_like(x, 1e300), 1 / b
    h = d
    for n in range(1, _MOST_TERMS):
        b = b + 2
        numerator = n * (a - n)
        d = 1 / (numerator * d + b)
        c = numerator / c + b
        h = h * (c * d)
        if not (abs(c * d - 1) > 1e-16 * 2).any():
            break
    return xp.log(a * h)


def _log_gamma_values(a, x, is_upper):
    """Returns log P(a, x) or log(1 - P(a, x)) in double precision."""
    xp = get_array_module(x)
    lower, upper = special_function("gammainc", x, a), special_function("gammaincc", x, a)
    p, rest = (upper, lower) if is_upper else (lower, upper)
    is_tiny = p < _UNDERFLOW
    y = xp.where(p > 0.5, xp.log1p(-xp.where(p > 0.5, rest, 0)), xp.log(xp.where(is_tiny, 1, p)))
    if is_tiny.any():
        # For all other elements, dummy values are inserted for which both sums converge
        # immediately.
        a, x = xp.where(is_tiny, a, 1), xp.where(is_tiny, x, 50 if is_upper else 0.02)
        tail = _log_fraction(xp, a, x) if is_upper else _log_series(xp, a, x)
        y = xp.where(is_tiny, _log_poisson_values(a, x) + tail, y)
    return y


def _by_shape(a, x, share):
    """Returns dP/da / P, given ``share`` = dP/dx / P; see ``gamma_variates`` for the formula."""
    return share * (x / a) * (np.log(x) - digamma.on(a + 1) - _quantile_slope(a + 1, x))


@differentiable(
    lambda g, a, x, y: g * y * (np.log(x) - digamma.on(a) - _by_shape(a, x, y)),
    lambda g, a, x, y: g * y * ((a - 1) / x - 1 - y),
)
def _share_of_lower(a, x):
    """Returns the quotient of the density and P(a, x), both of which may underflow."""
    wide = a.astype("d"), x.astype("d")
    share = np.exp(_log_poisson_values(wide[0] - 1, wide[1]) - _log_gamma_values(*wide, False))
    return share.astype(x.dtype)


@differentiable(
    lambda g, a, x, y: g * y * (np.log(x) - digamma.on(a) + _by_shape(a, x, y)),
    lambda g, a, x, y: g * y * ((a - 1) / x - 1 + y),
)
def _share_of_upper(a, x):
    """Returns the quotient of the density and 1 - P(a, x)."""
    wide = a.astype("d"), x.astype("d")
    share = np.exp(_log_poisson_values(wide[0] - 1, wide[1]) - _log_gamma_values(*wide, True))
    return share.astype(x.dtype)


@differentiable(
    lambda g, a, x: g * _by_shape(a, x, _share_of_lower.on(a, x)),
    lambda g, a, x: g * _share_of_lower.on(a, x),
)
def _log_lower_gamma(a, x):
    return _log_gamma_values(a.astype("d"), x.astype("d"), False).astype(x.dtype)


@differentiable(
    lambda g, a, x: -g * _by_shape(a, x, _share_of_upper.on(a, x)),
    lambda g, a, x: -g * _share_of_upper.on(a, x),
)
def _log_upper_gamma(a, x):
    return _log_gamma_values(a.astype("d"), x.astype("d"), True).astype(x.dtype)


def log_lower_gamma(a: Variable, x: Variable) -> Variable:
    """Returns log P(a, x), where P is the distribution function of the gamma distribution of scale
    1.

        >>> a, x = Variable(np.array(50.0)), Variable(np.array([1e-10, 50.0]))
        >>> log_lower_gamma(a, x).array.round(3)
        array([-1.29977e+03, -6.56000e-01])

    Args:
        a: Variable: the shapes.
        x: Variable that broadcasts with ``a``: the points, not negative.

    Returns:
        Variable of the broadcast shape.
    """
    return _at_points(_log_lower_gamma, a, x, -math.inf)


def log_upper_gamma(a: Variable, x: Variable) -> Variable:
    """Returns log(1 - P(a, x)); see :func:`log_lower_gamma`.

    >>> log_upper_gamma(Variable(np.array(2.0)), Variable(np.array([0.0, 1e3]))).array.round(3)
    array([  0.   , -993.091])
    """
    return _at_points(_log_upper_gamma, a, x, 0)
