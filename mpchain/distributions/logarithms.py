"""Choices between values, and logarithms that are -inf at zero without warnings or NaN
gradients."""

import math
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain.functions.declaring.declaration import elementwise
from mpchain.typing import Array, Input
from mpchain.utils.arrays import converted
from mpchain.variable import Variable, as_array


def choose(condition: Array, value: Input | float, y: Variable) -> Variable:
    """Returns ``value`` where the condition is True, and the Variable ``y`` elsewhere.

        >>> choose(np.array([True, False]), 0, Variable(np.array([3.0, 4.0]))).array
        array([0., 4.])

    Args:
        condition: array of bool; it broadcasts with ``y``.
        value: scalar, array or Variable.
        y: Variable.

    Returns:
        Variable of the broadcast shape, and of the dtype of ``y`` unless ``value`` is a Variable of
        a wider dtype.
    """
    if not isinstance(value, Variable):
        value = converted(y.xp, value, y.dtype)
    # The condition is converted, because NumPy's comparisons of 0-d arrays return scalars.
    return F.where(converted(y.xp, condition), value, y)


def log(x: Variable) -> Variable:
    """Returns the logarithm of a Variable. At zero, the result is -inf and the gradient is zero.

    >>> log(Variable(np.array([0.0, 1.0]))).array
    array([-inf,   0.])
    """
    at_zero = x.array == 0
    return choose(at_zero, -math.inf, F.log(choose(at_zero, 1, x)))


def log_of_rest(x: Variable) -> Variable:
    """Returns log(1 - x) of a Variable. At one, the result is -inf and the gradient is zero.

    >>> log_of_rest(Variable(np.array([0.0, 1.0]))).array
    array([ -0., -inf])
    """
    at_one = x.array == 1
    return choose(at_one, -math.inf, F.log1p(-choose(at_one, 0, x)))


def _by_exponent(g, x):
    rest = np.exp(-x)
    return g * (rest / -np.expm1(-x))


@elementwise(_by_exponent)
def _log_of_rest_of_exp(x):
    # Each of the two forms is exact where the other form suffers from cancellation.
    is_near = np.less(x, math.log(2))
    near = np.log(-np.expm1(-np.where(is_near, x, 1)))
    return np.where(is_near, near, np.log1p(-np.exp(-np.where(is_near, 1, x))))


def log_of_rest_of_exp(x: Variable) -> Variable:
    """Returns log(1 - exp(-x)) of a Variable that is not negative. At zero, the result is -inf and
    the gradient is zero.

    >>> log_of_rest_of_exp(Variable(np.array([0.0, 1e-20, 50.0]))).array
    array([           -inf, -4.60517019e+01, -1.92874985e-22])
    """
    at_zero = x.array == 0
    return choose(at_zero, -math.inf, _log_of_rest_of_exp(choose(at_zero, 1, x)))


def weighted(weight: Input, logarithm: Variable) -> Variable:
    """Returns the product of a weight and a logarithm; 0 times -inf is 0.

    >>> weighted(Variable(np.array(0.0)), Variable(np.array(-np.inf))).array
    array(0.)
    """
    vanishes = (as_array(weight) == 0) & np.isinf(logarithm.array)
    # the type is Any because NumPy's type hints say that an array times a Variable is an array
    factor: Any = weight
    return factor * choose(vanishes, 0, logarithm)
