"""Error functions, the normal distribution and the gamma function.

Arrays in host memory need SciPy, except for float32 arrays that compiled loops compute; SciPy is
imported when a function first needs it.
"""

import math

import numpy as np

from mpchain.backends import cuda
from mpchain.formulas.symbol import Symbol, UntraceableError, written_as
from mpchain.functions.array import broadcast_to
from mpchain.functions.declaring.declaration import elementwise
from mpchain.functions.mathematics import _limited
from mpchain.kernels.cpu import special_loops
from mpchain.kernels.cpu.loops import loop_of_special
from mpchain.observers import one_call
from mpchain.typing import Array, Input, Output
from mpchain.utils.type_check import check, fail
from mpchain.variable import Variable, as_array

_SQRT_2 = math.sqrt(2)
_SQRT_PI = math.sqrt(math.pi)


def _special(name, x, *others):
    """Returns the result, in the dtype of ``x``, of a function of ``scipy.special`` whose last
    argument is ``x``."""
    if isinstance(x, Symbol):
        raise UntraceableError(f"scipy.special.{name}")
    if name in special_loops.SINGLE and (y := _by_loop(name, x)) is not None:
        return y
    function = getattr(_library(name, x), name)
    wide = x.astype(np.float32) if x.dtype == np.float16 else x
    return one_call(function, *others, wide).astype(x.dtype, copy=False)


def _by_loop(name, x):
    """Returns the values of a special function, computed by a compiled loop; None for arrays
    that the loop does not compute."""
    return loop_of_special(name)(x) if x.dtype == np.float32 else None


def _library(name, x):
    if cuda.is_gpu_array(x):
        return cuda.special_functions()
    try:
        import scipy.special
    except ImportError:
        raise ImportError(
            f"{name}: SciPy is not installed; install it by pip install 'mpchain[cpu]'"
        ) from None
    return scipy.special


@written_as("erf({})", special="erf({})")
def _erf(x):
    return _special("erf", x)


@written_as("erfc({})", special="erfc({})")
def _erfc(x):
    return _special("erfc", x)


@written_as("(T)0.5 * erfc({} * (T)-0.7071067811865476)", special="ndtr({})")
def _ndtr(x):
    return _special("ndtr", x)


_FAR = 40  # exp(-x^2 / 2) is 0 beyond this x in every precision


# This function is declared separately, so that its derivatives have no powers of large x, which
# would overflow.
@elementwise(lambda g, x, y, c: g * (_limited(x, -_FAR, _FAR) * y) * (c * 2))
def _bell(x, c):
    """Returns exp(c x^2)."""
    return np.exp(np.square(_limited(x, -_FAR, _FAR)) * c)


@elementwise(lambda g, x: g * (_bell.on(x, -1.0) * (2 / _SQRT_PI)))
def erf(x: Input) -> Output:
    """Elementwise error function: 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.erf(np.array([0.5, 1.0])).array.round(2)
        array([0.52, 0.84])
    """
    return _erf(x)


@elementwise(lambda g, x: g * (_bell.on(x, -1.0) * (-2 / _SQRT_PI)))
def erfc(x: Input) -> Output:
    """Elementwise complementary error function: 1 - erf(x), accurate where the result is small.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.erfc(np.array([0.5, 1.0])).array.round(2)
        array([0.48, 0.16])
    """
    return _erfc(x)


@elementwise(lambda g, x, y: g * (x * y * 2 - 2 / _SQRT_PI))
def erfcx(x: Input) -> Output:
    """Elementwise scaled complementary error function: exp(x^2) erfc(x).

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.erfcx(np.array([0.5, 1.0])).array.round(2)
        array([0.62, 0.43])
    """
    return _special("erfcx", x)


@elementwise(lambda g, y: g * (np.exp(np.square(y)) * (_SQRT_PI / 2)))
def erfinv(x: Input) -> Output:
    """Elementwise inverse of :func:`erf`.

    Args:
        x: Variable or array of any shape, floating point, in [-1, 1].

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.erfinv(np.array([0.0, 0.5])).array.round(2)
        array([0.  , 0.48])
    """
    return _special("erfinv", x)


@elementwise(lambda g, y: g * (np.exp(np.square(y)) * (-_SQRT_PI / 2)))
def erfcinv(x: Input) -> Output:
    """Elementwise inverse of :func:`erfc`.

    Args:
        x: Variable or array of any shape, floating point, in [0, 2].

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.erfcinv(np.array([0.5, 1.5])).array.round(2)
        array([ 0.48, -0.48])
    """
    return _special("erfcinv", x)


@elementwise(lambda g, x: g * (_bell.on(x, -0.5) * (1 / (_SQRT_2 * _SQRT_PI))))
def ndtr(x: Input) -> Output:
    """Elementwise cumulative distribution function of the standard normal distribution.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.ndtr(np.array([0.5, 1.0])).array.round(2)
        array([0.69, 0.84])
    """
    return _ndtr(x)


_erf.declared, _erfc.declared, _ndtr.declared = erf, erfc, ndtr


@elementwise(lambda g, y: g * (np.exp(np.square(y) * 0.5) * (_SQRT_2 * _SQRT_PI)))
def ndtri(x: Input) -> Output:
    """Elementwise inverse of :func:`ndtr`: quantiles of the standard normal distribution.

    Args:
        x: Variable or array of any shape, floating point, in [0, 1].

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.ndtri(np.array([0.5, 0.975])).array.round(2)
        array([0.  , 1.96])
    """
    return _special("ndtri", x)


@elementwise(lambda g, x, y: -g * (y * (x + y)))
def _normal_hazard(x):
    """Returns the density of the standard normal distribution at x, divided by its distribution
    function."""
    y = _by_loop("normal_hazard", x)
    return (_SQRT_2 / _SQRT_PI) / _special("erfcx", x * (-1 / _SQRT_2)) if y is None else y


@elementwise(lambda g, x: g * _normal_hazard.on(x))
def log_ndtr(x: Input) -> Output:
    """Elementwise logarithm of :func:`ndtr`, accurate where :func:`ndtr` is small.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.log_ndtr(np.array([0.5, 1.0])).array.round(2)
        array([-0.37, -0.17])
    """
    return _special("log_ndtr", x)


@elementwise(lambda g, x: g * digamma.on(x))
def lgamma(x: Input) -> Output:
    """Elementwise logarithm of the absolute value of the gamma function.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.lgamma(np.array([0.5, 1.0])).array.round(2)
        array([0.57, 0.  ])
    """
    return _special("gammaln", x)


@elementwise(lambda g, x: g * _polygamma.on(x, 1))
def digamma(x: Input) -> Output:
    """Elementwise derivative of :func:`lgamma`.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.digamma(np.array([0.5, 1.0])).array.round(2)
        array([-1.96, -0.58])
    """
    return _special("digamma", x)


def _broadcast(name, variable, constants):
    """Broadcasts a variable to the common shape with an array of constants."""
    try:
        shape = np.broadcast_shapes(variable.shape, constants.shape)
    except ValueError:
        rule = "the variable must broadcast with the constants"
        fail(name, rule, variable=variable, constants=constants)
    return variable if variable.shape == shape else broadcast_to(variable, shape)


@elementwise(lambda g, x, n: g * _polygamma.on(x, n + 1))
def _polygamma(x, n):
    y = _by_loop("trigamma", x) if type(n) is int and n == 1 else None
    if y is not None:
        return y
    return _special("polygamma", x, cuda.get_array_module(x).asarray(n))


def polygamma(n: Array | int, x: Input) -> Variable:
    """Elementwise n-th derivative of :func:`digamma`; ``n`` and ``x`` broadcast.

    Args:
        n: the orders: integers that are not negative, and have no gradient.
        x: Variable or array, floating point, positive.

    Returns:
        Variable of the broadcast shape and the dtype of ``x``.

    Raises:
        InvalidType: ``n`` does not hold integers, or does not broadcast with ``x``.

    Example:
        >>> F.polygamma(1, np.array([1.0, 2.0])).array.round(2)
        array([1.64, 0.64])
    """
    if not isinstance(n, int):
        n = as_array(n)
        check(n.dtype.kind in "iu", "polygamma", "n must hold integers", n=n)
        x = _broadcast("polygamma", x, n)
    return _polygamma(x, n)


@elementwise(lambda g, q, x: g * _zeta.on(q, x + 1) * -x)
def _zeta(q, x):
    return _special("zeta", q, x)


def zeta(x: Array | float, q: Input) -> Variable:
    """Elementwise Hurwitz zeta function: the sum over k >= 0 of (k + q)^(-x). ``x`` and ``q``
    broadcast.

    Args:
        x: the exponents, above 1, which have no gradient.
        q: Variable or array, floating point, positive.

    Returns:
        Variable of the broadcast shape and the dtype of ``q``.

    Raises:
        InvalidType: ``x`` does not broadcast with ``q``.

    Example:
        >>> F.zeta(2.0, np.array([1.0, 2.0])).array.round(2)
        array([1.64, 0.64])
    """
    if not isinstance(x, (int, float)):
        x = as_array(x).astype(q.dtype)
        q = _broadcast("zeta", q, x)
    return _zeta(q, x)
