"""The gamma distribution function and gamma samples, with derivatives with respect to the shape.

Let P(a, x) be the distribution function of the gamma distribution of shape a and scale 1, and
p(a, x) its density. For a quantile x as a function of a, P(a, x) is constant, and so

    dx/da = -(dP/da)(a, x) / p(a, x) =: r(a, x).

r has no closed form. It is the integral of a smooth function, which a fixed quadrature rule
computes to 1e-12; the sign s is chosen to limit cancellation:

    r = x int_0^inf (s (log x - psi(a)) + v) exp(s a v - x (exp(s v) - 1)) dv,
    s = 1 if x > a + 1 else -1.

The quadrature is composed of differentiable functions, so all higher derivatives exist.
"""

import numpy as np

from mpchain import functions as F
from mpchain.backends.cuda import get_array_module
from mpchain.distributions.logarithms import choose
from mpchain.distributions.sampling import draw
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.special import _special as special_function
from mpchain.functions.special import digamma, lgamma
from mpchain.variable import Variable, as_array

_STEP = 0.1
_T = np.arange(-3.6, 4.6, _STEP)
_POINTS = np.exp(_T - np.exp(-_T))
_WEIGHTS = _STEP * _POINTS * (1 + np.exp(-_T))
"""The double-exponential rule for integrals from 0 to infinity of exponentially decaying
functions."""


def _quantile_slope(a, x):
    """Returns r(a, x), where a >= 1 and x are arrays or Variables of the same shape."""
    raw_a, raw_x = as_array(a)[..., None], as_array(x)[..., None]
    xp, dtype = get_array_module(raw_x), raw_x.dtype
    sign = xp.where(raw_x > raw_a + 1, 1, -1).astype(dtype)
    width = 1 / (xp.abs(raw_x - raw_a) + xp.sqrt(raw_a))
    v = width * xp.asarray(_POINTS, dtype)
    a, x = np.reshape(a, (*a.shape, 1)), np.reshape(x, (*x.shape, 1))
    rate = (np.log(x) - digamma.on(a)) * sign + v
    integrand = rate * np.exp(a * (sign * v) - x * xp.expm1(sign * v))
    return np.sum(integrand * x * (width * xp.asarray(_WEIGHTS, dtype)), axis=-1)


@differentiable(lambda g, a, y: g * _quantile_slope(a, y))
def _gamma_variate(a, drawn):
    return drawn


def log_gamma_variates(a: Variable, n: int) -> Variable:
    """Draws logarithms of gamma variables, which do not underflow for small shapes.

    If z has the shape a + 1 and u is uniform, z u^(1/a) has the shape a. Therefore r is needed only
    for shapes above one.

        >>> log_gamma_variates(Variable(np.array([1e-4, 2.0])), 3).shape
        (3, 2)

    Args:
        a: Variable: the shapes.
        n: the number of samples for each shape.

    Returns:
        Variable (n, *a.shape).
    """
    shape = (n, *a.shape)
    wide = F.broadcast_to(F.cast(a, np.promote_types(a.dtype, np.float32)), shape)
    drawn = draw(wide, "standard_gamma", wide.array + 1, size=shape)
    minus_log_u = draw(wide, "standard_exponential", size=shape)
    drawn = drawn.clip(np.finfo(drawn.dtype).tiny, None)
    return F.cast(F.log(_gamma_variate(wide + 1, drawn)) - minus_log_u / wide, a.dtype)


def _slope_by_shape(a, x):
    """Returns dP/da, computed by P(a, x) = P(a + 1, x) + p(a + 1, x) and r for the shape a + 1."""
    log_x = np.log(x)
    density = np.exp(a * log_x - x - lgamma.on(a + 1))
    return density * (log_x - digamma.on(a + 1) - _quantile_slope(a + 1, x))


def _density(a, x):
    return np.exp((a - 1) * np.log(x) - x - lgamma.on(a))


@differentiable(lambda g, a, x: g * _slope_by_shape(a, x), lambda g, a, x: g * _density(a, x))
def _lower_gamma(a, x):
    return special_function("gammainc", x, a)


@differentiable(lambda g, a, x: -g * _slope_by_shape(a, x), lambda g, a, x: -g * _density(a, x))
def _upper_gamma(a, x):
    return special_function("gammaincc", x, a)


def _at_points(function, a, x, at_zero):
    a, x = F.broadcast(a, x)
    is_zero = x.array == 0
    return choose(is_zero, at_zero, function(a, choose(is_zero, 1, x)))


def lower_gamma(a: Variable, x: Variable) -> Variable:
    """Returns P(a, x), the distribution function of the gamma distribution of shape a and scale 1.

        >>> lower_gamma(Variable(np.array(1.0)), Variable(np.array([0.0, 1.0]))).array.round(3)
        array([0.   , 0.632])

    Args:
        a: Variable: the shapes.
        x: Variable that broadcasts with ``a``: the points, not negative.

    Returns:
        Variable of the broadcast shape.
    """
    return _at_points(_lower_gamma, a, x, 0)


def upper_gamma(a: Variable, x: Variable) -> Variable:
    """Returns 1 - P(a, x), accurate where the result is small; see :func:`lower_gamma`.

    >>> upper_gamma(Variable(np.array(1.0)), Variable(np.array([0.0, 1.0]))).array.round(3)
    array([1.   , 0.368])
    """
    return _at_points(_upper_gamma, a, x, 1)
