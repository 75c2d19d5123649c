"""Choices between values, and logarithms that are infinite without warnings and without NaN."""

import math

import numpy as np

from mpchain import functions as F
from mpchain.variable import Variable, as_array


def choose(condition, value, y):
    """``value`` where the condition holds, else the Variable ``y``.

    Args:
        condition: array of bool; it broadcasts with ``y``.
        value: number, array or Variable.
        y: Variable.

    Returns:
        Variable of the broadcast shape, and of the dtype of ``y``.
    """
    if not isinstance(value, Variable):
        value = y.xp.asarray(value, y.dtype)
    # NumPy makes a scalar where it compares 0-d arrays.
    return F.where(y.xp.asarray(condition), value, y)


def log(x):
    """Logarithm of a Variable; at zero -inf, and of no gradient."""
    at_zero = x.array == 0
    return choose(at_zero, -math.inf, F.log(choose(at_zero, 1, x)))


def log_of_rest(x):
    """log(1 - x) of a Variable; at one -inf, and of no gradient."""
    at_one = x.array == 1
    return choose(at_one, -math.inf, F.log1p(-choose(at_one, 0, x)))


def weighted(weight, logarithm):
    """Product of a weight and a logarithm, both Variables; 0 times -inf is 0."""
    vanishes = (as_array(weight) == 0) & np.isinf(logarithm.array)
    return weight * choose(vanishes, 0, logarithm)
