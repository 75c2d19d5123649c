"""Exponentials, logarithms, powers, comparisons and rounding, element by element."""

import math

import numpy as np

from mpchain.functions.declaration import elementwise
from mpchain.utils.type_check import check
from mpchain.variable import as_array, as_variable


@elementwise(lambda g, y: g * y)
def exp(x):
    """Elementwise exponential.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.exp(x)


@elementwise(lambda g, y: g * (y + 1))
def expm1(x):
    """Elementwise exp(x) - 1, exact near zero.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.expm1(x)


@elementwise(lambda g, x: g / x)
def log(x):
    """Elementwise natural logarithm.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.log(x)


@elementwise(lambda g, x: g / (x + 1))
def log1p(x):
    """Elementwise log(1 + x), exact near zero.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.log1p(x)


@elementwise(lambda g, x: g / (x * math.log(2)))
def log2(x):
    """Elementwise logarithm to base 2.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.log2(x)


@elementwise(lambda g, x: g / (x * math.log(10)))
def log10(x):
    """Elementwise logarithm to base 10.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.log10(x)


@elementwise(lambda g, y: g / (y * 2))
def sqrt(x):
    """Elementwise square root.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.sqrt(x)


@elementwise(lambda g, y: g * (y * np.square(y) * -0.5))
def rsqrt(x):
    """Elementwise reciprocal square root, x ** (-1/2).

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return 1 / np.sqrt(x)


@elementwise(lambda g, x: g * (x * 2), any_dtype=True)
def square(x):
    """Elementwise square.

    Args:
        x: Variable or array of any shape.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.square(x)


@elementwise(
    lambda g, x1, x2: g * ((x1 - x2) * 2), lambda g, x1, x2: g * ((x2 - x1) * 2), any_dtype=True
)
def _squared_difference(x1, x2):
    return np.square(x1 - x2)


def squared_difference(x1, x2):
    """Elementwise squared difference: (x1 - x2) ** 2.

    Args:
        x1, x2: Variables or arrays of one shape.

    Returns:
        Variable of that shape.

    Raises:
        InvalidType: the shapes differ.
    """
    rule = "x1 and x2 must have the same shape"
    check(x1.shape == x2.shape, "squared_difference", rule, x1=x1, x2=x2)
    return _squared_difference(x1, x2)


@elementwise(lambda g: g, lambda g, x, divisor: -g * np.trunc(x / divisor))
def fmod(x, divisor):
    """Elementwise remainder of a division, with the sign of ``x``; the two broadcast.

    Args:
        x: Variable or array, floating point: the dividend.
        divisor: Variable or array, floating point.

    Returns:
        Variable of the broadcast shape.
    """
    return np.fmod(x, divisor)


@elementwise(
    lambda g, x1, x2: g * np.greater_equal(x1, x2),
    lambda g, x1, x2: g * np.less(x1, x2),
    any_dtype=True,
)
def maximum(x1, x2):
    """Elementwise maximum of two arrays, which broadcast; at a tie, the first gets the gradient.

    Args:
        x1, x2: Variables or arrays.

    Returns:
        Variable of the broadcast shape.
    """
    return np.maximum(x1, x2)


@elementwise(
    lambda g, x1, x2: g * np.less_equal(x1, x2),
    lambda g, x1, x2: g * np.greater(x1, x2),
    any_dtype=True,
)
def minimum(x1, x2):
    """Elementwise minimum of two arrays, which broadcast; at a tie, the first gets the gradient.

    Args:
        x1, x2: Variables or arrays.

    Returns:
        Variable of the broadcast shape.
    """
    return np.minimum(x1, x2)


@elementwise(
    None,
    lambda g, condition: np.where(condition, g, 0),
    lambda g, condition: np.where(condition, 0, g),
    any_dtype=True,
)
def where(condition, x, y):
    """Elementwise choice: ``x`` where the condition holds, else ``y``; all three broadcast.

    Args:
        condition: array of bool.
        x, y: Variables or arrays.

    Returns:
        Variable of the broadcast shape.
    """
    return np.where(condition, x, y)


@elementwise(
    lambda g, x, x_min, x_max: (
        g * np.logical_and(np.greater_equal(x, x_min), np.less_equal(x, x_max))
    )
)
def _clip(x, x_min, x_max):
    return np.minimum(np.maximum(x, x_min), x_max)


def clip(x, x_min, x_max):
    """Limits the elements to an interval: min(max(x, x_min), x_max).

    Args:
        x: Variable or array of any shape, floating point.
        x_min, x_max (float): the interval; None means no limit. Elements at the limits have the
            gradient of those between.

    Returns:
        Variable of the shape and dtype of ``x``.

    Raises:
        ValueError: ``x_min`` is not below ``x_max``.
    """
    x_min, x_max = -math.inf if x_min is None else x_min, math.inf if x_max is None else x_max
    if not x_min < x_max:
        raise ValueError(f"clip: x_min must be less than x_max, but they are {x_min} and {x_max}")
    return _clip(x, x_min, x_max)


def _flat(function, x):
    return as_variable(as_array(function(as_array(x))))


def ceil(x):
    """Rounds elements up; the result is flat almost everywhere, and so has no gradient.

    Args:
        x: Variable or array of any shape.

    Returns:
        Variable of the shape and dtype of ``x``, which needs no gradient.
    """
    return _flat(np.ceil, x)


def floor(x):
    """Rounds elements down; the result is flat almost everywhere, and so has no gradient.

    Args:
        x: Variable or array of any shape.

    Returns:
        Variable of the shape and dtype of ``x``, which needs no gradient.
    """
    return _flat(np.floor, x)


def fix(x):
    """Rounds elements towards zero; the result is flat almost everywhere, and so has no gradient.

    Args:
        x: Variable or array of any shape.

    Returns:
        Variable of the shape and dtype of ``x``, which needs no gradient.
    """
    return _flat(np.trunc, x)


def sign(x):
    """The sign of each element, -1, 0 or 1; flat almost everywhere, and so without gradient.

    Args:
        x: Variable or array of any shape.

    Returns:
        Variable of the shape and dtype of ``x``, which needs no gradient.
    """
    return _flat(np.sign, x)
