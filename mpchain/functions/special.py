"""Special functions: error functions, the normal distribution, the gamma function's family.

Arrays in host memory need SciPy, which is imported when one of these functions is first called.
"""

import math

import numpy as np

from mpchain.backends import cuda
from mpchain.functions.array import broadcast_to
from mpchain.functions.declaration import elementwise
from mpchain.functions.symbol import Symbol, UntraceableError, written_as
from mpchain.utils.type_check import check
from mpchain.variable import as_array

_SQRT_2 = math.sqrt(2)
_SQRT_PI = math.sqrt(math.pi)


def _special(name, x, *others):
    """Applies a function of ``scipy.special`` that keeps the dtype of ``x``, which comes last."""
    if isinstance(x, Symbol):
        raise UntraceableError(f"scipy.special.{name}")
    function = getattr(_library(name, x), name)
    wide = x.astype(np.float32) if x.dtype == np.float16 else x
    return function(*others, wide).astype(x.dtype, copy=False)


def _library(name, x):
    if cuda.is_gpu_array(x):
        return cuda.special_functions()
    try:
        import scipy.special
    except ImportError:
        raise ImportError(f"{name}: SciPy is not installed: pip install 'mpchain[cpu]'") from None
    return scipy.special


@written_as("erf({})")
def _erf(x):
    return _special("erf", x)


@written_as("erfc({})")
def _erfc(x):
    return _special("erfc", x)


@written_as("(T)0.5 * erfc({} * (T)-0.7071067811865476)")
def _ndtr(x):
    return _special("ndtr", x)


@elementwise(lambda g, x: g * (np.exp(-np.square(x)) * (2 / _SQRT_PI)))
def erf(x):
    """Elementwise error function: 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return _erf(x)


@elementwise(lambda g, x: g * (np.exp(-np.square(x)) * (-2 / _SQRT_PI)))
def erfc(x):
    """Elementwise complementary error function: 1 - erf(x), exact where that is small.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return _erfc(x)


@elementwise(lambda g, x, y: g * (x * y * 2 - 2 / _SQRT_PI))
def erfcx(x):
    """Elementwise scaled complementary error function: exp(x^2) erfc(x).

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return _special("erfcx", x)


@elementwise(lambda g, y: g * (np.exp(np.square(y)) * (_SQRT_PI / 2)))
def erfinv(x):
    """Elementwise inverse of :func:`erf`.

    Args:
        x: Variable or array of any shape, floating point, in [-1, 1].

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return _special("erfinv", x)


@elementwise(lambda g, y: g * (np.exp(np.square(y)) * (-_SQRT_PI / 2)))
def erfcinv(x):
    """Elementwise inverse of :func:`erfc`.

    Args:
        x: Variable or array of any shape, floating point, in [0, 2].

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return _special("erfcinv", x)


@elementwise(lambda g, x: g * (np.exp(np.square(x) * -0.5) * (1 / (_SQRT_2 * _SQRT_PI))))
def ndtr(x):
    """Elementwise cumulative distribution function of the standard normal distribution.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return _ndtr(x)


_erf.declared, _erfc.declared, _ndtr.declared = erf, erfc, ndtr


@elementwise(lambda g, y: g * (np.exp(np.square(y) * 0.5) * (_SQRT_2 * _SQRT_PI)))
def ndtri(x):
    """Elementwise inverse of :func:`ndtr`: quantiles of the standard normal distribution.

    Args:
        x: Variable or array of any shape, floating point, in [0, 1].

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return _special("ndtri", x)


@elementwise(lambda g, x, y: -g * (y * (x + y)))
def _normal_hazard(x):
    """The density of the standard normal distribution at x over its distribution function."""
    return (_SQRT_2 / _SQRT_PI) / _special("erfcx", x * (-1 / _SQRT_2))


@elementwise(lambda g, x: g * _normal_hazard.on(x))
def log_ndtr(x):
    """Elementwise logarithm of :func:`ndtr`, exact where that is small.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return _special("log_ndtr", x)


@elementwise(lambda g, x: g * digamma.on(x))
def lgamma(x):
    """Elementwise logarithm of the absolute value of the gamma function.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return _special("gammaln", x)


@elementwise(lambda g, x: g * _polygamma.on(x, 1))
def digamma(x):
    """Elementwise derivative of :func:`lgamma`.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return _special("digamma", x)


def _broadcast(name, variable, constants):
    """Gives a variable the shape that it has together with an array of constants."""
    try:
        shape = np.broadcast_shapes(variable.shape, constants.shape)
    except ValueError:
        check(
            False,
            name,
            "the variable must broadcast with the constants",
            variable=variable,
            constants=constants,
        )
    return variable if variable.shape == shape else broadcast_to(variable, shape)


@elementwise(lambda g, x, n: g * _polygamma.on(x, n + 1))
def _polygamma(x, n):
    return _special("polygamma", x, cuda.get_array_module(x).asarray(n))


def polygamma(n, x):
    """Elementwise n-th derivative of :func:`digamma`; the two broadcast.

    Args:
        n (int or array of integers): the orders, not negative; they have no gradient.
        x: Variable or array, floating point, positive.

    Returns:
        Variable of the broadcast shape and the dtype of ``x``.

    Raises:
        InvalidType: ``n`` holds no integers, or does not broadcast with ``x``.
    """
    if not isinstance(n, int):
        n = as_array(n)
        check(n.dtype.kind in "iu", "polygamma", "n must hold integers", n=n)
        x = _broadcast("polygamma", x, n)
    return _polygamma(x, n)


@elementwise(lambda g, q, x: g * _zeta.on(q, x + 1) * -x)
def _zeta(q, x):
    return _special("zeta", q, x)


def zeta(x, q):
    """Elementwise Hurwitz zeta function: the sum over k >= 0 of (k + q)^(-x); the two broadcast.

    Args:
        x (number or array): the exponents, above 1; they have no gradient.
        q: Variable or array, floating point, positive.

    Returns:
        Variable of the broadcast shape and the dtype of ``q``.

    Raises:
        InvalidType: ``x`` does not broadcast with ``q``.
    """
    if not isinstance(x, (int, float)):
        x = as_array(x).astype(q.dtype)
        q = _broadcast("zeta", q, x)
    return _zeta(q, x)
