"""Choices between values, and logarithms that are -inf at zero without warnings or NaN."""

import math

import numpy as np

from mpchain import functions as F
from mpchain.typing import Array, Input
from mpchain.utils.arrays import converted
from mpchain.variable import Variable, as_array


def choose(condition: Array, value: Input, y: Variable) -> Variable:
    """Returns ``value`` where the condition holds, else the Variable ``y``.

        >>> choose(np.array([True, False]), 0, Variable(np.array([3.0, 4.0]))).array
        array([0., 4.])

    Args:
        condition: array of bool; it broadcasts with ``y``.
        value: number, array or Variable.
        y: Variable.

    Returns:
        Variable of the broadcast shape, and of the dtype of ``y``.
    """
    if not isinstance(value, Variable):
        value = converted(y.xp, value, y.dtype)
    # NumPy returns scalars from comparisons of 0-d arrays.
    return F.where(converted(y.xp, condition), value, y)


def log(x: Variable) -> Variable:
    """Returns the logarithm of a Variable; at zero -inf without gradient.

    >>> log(Variable(np.array([0.0, 1.0]))).array
    array([-inf,   0.])
    """
    at_zero = x.array == 0
    return choose(at_zero, -math.inf, F.log(choose(at_zero, 1, x)))


def log_of_rest(x: Variable) -> Variable:
    """Returns log(1 - x) of a Variable; at one -inf without gradient.

    >>> log_of_rest(Variable(np.array([0.0, 1.0]))).array
    array([ -0., -inf])
    """
    at_one = x.array == 1
    return choose(at_one, -math.inf, F.log1p(-choose(at_one, 0, x)))


def weighted(weight: Input, logarithm: Variable) -> Variable:
    """Returns the product of a weight and a logarithm; 0 times -inf is 0.

    >>> weighted(Variable(np.array(0.0)), Variable(np.array(-np.inf))).array
    array(0.)
    """
    vanishes = (as_array(weight) == 0) & np.isinf(logarithm.array)
    return weight * choose(vanishes, 0, logarithm)
