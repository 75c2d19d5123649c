"""Elementwise exponentials, logarithms, powers, comparisons and rounding."""

import math

import numpy as np

from mpchain.formulas.symbol import written_as
from mpchain.functions.declaring.declaration import elementwise
from mpchain.kernels.logistic import limited
from mpchain.typing import Input, Output
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_array, as_variable


@elementwise(lambda g, y: g * y)
def exp(x: Input) -> Output:
    """Elementwise exponential.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.exp(np.array([0.5, 1.0, 2.0])).array.round(2)
        array([1.65, 2.72, 7.39])
    """
    return np.exp(x)


@elementwise(lambda g, y: g * (y + 1))
def expm1(x: Input) -> Output:
    """Elementwise exp(x) - 1, accurate near zero.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.expm1(np.array([0.5, 1.0, 2.0])).array.round(2)
        array([0.65, 1.72, 6.39])
    """
    return np.expm1(x)


@elementwise(lambda g, x: g / x)
def log(x: Input) -> Output:
    """Elementwise natural logarithm.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.log(np.array([0.5, 1.0, 2.0])).array.round(2)
        array([-0.69,  0.  ,  0.69])
    """
    return np.log(x)


@elementwise(lambda g, x: g / (x + 1))
def log1p(x: Input) -> Output:
    """Elementwise log(1 + x), accurate near zero.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.log1p(np.array([0.5, 1.0, 2.0])).array.round(2)
        array([0.41, 0.69, 1.1 ])
    """
    return np.log1p(x)


@elementwise(lambda g, x: g * (1 / math.log(2)) / x)
def log2(x: Input) -> Output:
    """Elementwise logarithm to base 2.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.log2(np.array([0.5, 1.0, 2.0])).array.round(2)
        array([-1.,  0.,  1.])
    """
    return np.log2(x)


@elementwise(lambda g, x: g * (1 / math.log(10)) / x)
def log10(x: Input) -> Output:
    """Elementwise logarithm to base 10.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.log10(np.array([0.5, 1.0, 2.0])).array.round(2)
        array([-0.3,  0. ,  0.3])
    """
    return np.log10(x)


@elementwise(lambda g, y: g / (y * 2))
def sqrt(x: Input) -> Output:
    """Elementwise square root.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.sqrt(np.array([0.5, 1.0, 2.0])).array.round(2)
        array([0.71, 1.  , 1.41])
    """
    return np.sqrt(x)


@elementwise(lambda g, y: g * (y * np.square(y) * -0.5))
def rsqrt(x: Input) -> Output:
    """Elementwise reciprocal square root, x ** (-1/2).

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.rsqrt(np.array([0.5, 1.0, 2.0])).array.round(2)
        array([1.41, 1.  , 0.71])
    """
    return 1 / np.sqrt(x)


@elementwise(lambda g, x: g * (x * 2), any_dtype=True)
def square(x: Input) -> Output:
    """Elementwise square.

    Args:
        x: Variable or array of any shape.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.square(np.array([0.5, 1.0, 2.0])).array.round(2)
        array([0.25, 1.  , 4.  ])
    """
    return np.square(x)


@elementwise(
    lambda g, x1, x2: g * ((x1 - x2) * 2), lambda g, x1, x2: g * ((x2 - x1) * 2), any_dtype=True
)
def _squared_difference(x1, x2):
    return np.square(x1 - x2)


def squared_difference(x1: Input, x2: Input) -> Variable:
    """Elementwise squared difference: (x1 - x2) ** 2.

    Args:
        x1, x2: Variables or arrays of the same shape.

    Returns:
        Variable of this shape.

    Raises:
        InvalidType: the shapes differ.

    Example:
        >>> F.squared_difference(np.array([1.0, 2.0]), np.array([3.0, 3.0])).array
        array([4., 1.])
    """
    rule = "x1 and x2 must have the same shape"
    check(x1.shape == x2.shape, "squared_difference", rule, x1=x1, x2=x2)
    return _squared_difference(x1, x2)


@elementwise(lambda g: g, lambda g, x, divisor: -g * np.trunc(x / divisor))
def fmod(x: Input, divisor: Input) -> Output:
    """Elementwise remainder of a division, with the sign of ``x``; ``x`` and ``divisor`` broadcast.

    Args:
        x: Variable or array, floating point: the dividend.
        divisor: Variable or array, floating point.

    Returns:
        Variable of the broadcast shape.

    Example:
        >>> F.fmod(np.array([-5.0, 5.0]), np.array([3.0, 3.0])).array
        array([-2.,  2.])
    """
    return np.fmod(x, divisor)


@elementwise(
    lambda g, x1, x2: g * np.greater_equal(x1, x2),
    lambda g, x1, x2: g * np.less(x1, x2),
    any_dtype=True,
)
def maximum(x1: Input, x2: Input) -> Output:
    """Elementwise maximum of two arrays, which broadcast. For equal elements, ``x1`` gets the
    gradient.

    Args:
        x1, x2: Variables or arrays.

    Returns:
        Variable of the broadcast shape.

    Example:
        >>> F.maximum(np.array([1.0, 4.0]), np.array([3.0, 3.0])).array
        array([3., 4.])
    """
    return np.maximum(x1, x2)


@elementwise(
    lambda g, x1, x2: g * np.less_equal(x1, x2),
    lambda g, x1, x2: g * np.greater(x1, x2),
    any_dtype=True,
)
def minimum(x1: Input, x2: Input) -> Output:
    """Elementwise minimum of two arrays, which broadcast. For equal elements, ``x1`` gets the
    gradient.

    Args:
        x1, x2: Variables or arrays.

    Returns:
        Variable of the broadcast shape.

    Example:
        >>> F.minimum(np.array([1.0, 4.0]), np.array([3.0, 3.0])).array
        array([1., 3.])
    """
    return np.minimum(x1, x2)


@elementwise(
    None,
    lambda g, condition: np.where(condition, g, 0),
    lambda g, condition: np.where(condition, 0, g),
    any_dtype=True,
)
def where(condition: Input, x: Input, y: Input) -> Output:
    """Elementwise choice: ``x`` where the condition is True, else ``y``; the three arrays
    broadcast.

    Args:
        condition: array of bool.
        x, y: Variables or arrays.

    Returns:
        Variable of the broadcast shape.

    Example:
        >>> F.where(np.array([True, False]), np.ones(2), np.zeros(2)).array
        array([1., 0.])
    """
    return np.where(condition, x, y)


@elementwise(
    lambda g, x, x_min, x_max: (
        g * np.logical_and(np.greater_equal(x, x_min), np.less_equal(x, x_max))
    )
)
def _clip(x, x_min, x_max):
    return np.minimum(np.maximum(x, x_min), x_max)


_NOT_BELOW = "(({0} != {0} || {0} > {1}) ? {0} : {1})"
_limited = written_as(
    f"({_NOT_BELOW} != {_NOT_BELOW} || {_NOT_BELOW} < {{2}}) ? {_NOT_BELOW} : {{2}}",
    special="{2} if {0} > {2} else ({1} if {0} < {1} else {0})",
)(limited)
_limited.declared = _clip


def clip(x: Input, x_min: float | None, x_max: float | None) -> Variable:
    """Limits the elements to an interval: min(max(x, x_min), x_max).

    Args:
        x: Variable or array of any shape, floating point.
        x_min, x_max: the bounds of the interval; None means no limit. The derivative is one at the
            bounds.

    Returns:
        Variable of the shape and dtype of ``x``.

    Raises:
        ValueError: ``x_min`` is not below ``x_max``.

    Example:
        >>> F.clip(np.array([-2.0, 0.5, 3.0]), -1.0, 1.0).array
        array([-1. ,  0.5,  1. ])
    """
    x_min, x_max = -math.inf if x_min is None else x_min, math.inf if x_max is None else x_max
    if not x_min < x_max:
        raise ValueError(
            f"clip: x_min must be less than x_max, but x_min is {x_min} and x_max is {x_max}"
        )
    return _clip(x, x_min, x_max)


def _flat(function, x):
    return as_variable(as_array(function(as_array(x))))


def ceil(x: Input) -> Variable:
    """Elementwise ceiling; the result has no gradient.

    Args:
        x: Variable or array of any shape.

    Returns:
        Variable of the shape and dtype of ``x``, which requires no gradient.

    Example:
        >>> F.ceil(np.array([-1.5, 0.5])).array
        array([-1.,  1.])
    """
    return _flat(np.ceil, x)


def floor(x: Input) -> Variable:
    """Elementwise floor; the result has no gradient.

    Args:
        x: Variable or array of any shape.

    Returns:
        Variable of the shape and dtype of ``x``, which requires no gradient.

    Example:
        >>> F.floor(np.array([-1.5, 0.5])).array
        array([-2.,  0.])
    """
    return _flat(np.floor, x)


def fix(x: Input) -> Variable:
    """Elementwise rounding towards zero; the result has no gradient.

    Args:
        x: Variable or array of any shape.

    Returns:
        Variable of the shape and dtype of ``x``, which requires no gradient.

    Example:
        >>> F.fix(np.array([-1.5, 0.5])).array
        array([-1.,  0.])
    """
    return _flat(np.trunc, x)


def sign(x: Input) -> Variable:
    """Elementwise sign: -1, 0 or 1; the result has no gradient.

    Args:
        x: Variable or array of any shape.

    Returns:
        Variable of the shape and dtype of ``x``, which requires no gradient.

    Example:
        >>> F.sign(np.array([-1.5, 0.5])).array
        array([-1.,  1.])
    """
    return _flat(np.sign, x)
