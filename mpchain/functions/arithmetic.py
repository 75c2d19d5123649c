"""Arithmetic functions, and the operators of Variable."""

import numbers
from typing import Any

import numpy as np

from mpchain.backends.cuda import is_gpu_array
from mpchain.backends.dtypes import is_floating
from mpchain.formulas.symbol import Symbol
from mpchain.functions.array import reshape
from mpchain.functions.declaring.declaration import elementwise
from mpchain.functions.declaring.precision import differ, mixed
from mpchain.typing import Input, Output
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_array, as_variable


@elementwise(lambda g: g, lambda g: g, any_dtype=True)
def _add(x0, x1):
    return x0 + x1


@elementwise(lambda g: g, lambda g: -g, any_dtype=True)
def _subtract(x0, x1):
    return x0 - x1


@elementwise(lambda g, x1: g * x1, lambda g, x0: g * x0, any_dtype=True)
def _multiply(x0, x1):
    return x0 * x1


@elementwise(lambda g, x1: g / x1, lambda g, x1, y: -g * y / x1)
def _divide(x0, x1):
    return x0 / x1


def _power_by_exponent(g, x0, x1, y):
    # At x0 = 0, the limit of the derivative is zero for x1 > 0; for x1 = 0 it is zero by
    # convention, as in PyTorch.
    is_flat = np.logical_and(np.equal(x0, 0), np.greater_equal(x1, 0))
    return g * np.log(np.where(is_flat, 1, x0)) * y


# For x1 = 0, the factor x0 ** (x1 - 1) would be infinite at x0 = 0, and its product with x1 would
# be NaN.
@elementwise(lambda g, x0, x1: g * x1 * x0 ** (x1 - 1 + np.equal(x1, 0)), _power_by_exponent)
def _power(x0, x1):
    return x0**x1


@elementwise(lambda g: -g, any_dtype=True)
def _negative(x):
    return -x


@elementwise(lambda g: g, any_dtype=True)
def _add_constant(x, c):
    return x + c


@elementwise(lambda g: -g, any_dtype=True)
def _subtract_from_constant(x, c):
    return c - x


@elementwise(lambda g, c: g * c, any_dtype=True)
def _multiply_by_constant(x, c):
    return x * c


@elementwise(lambda g, c: g / c)
def _divide_by_constant(x, c):
    return x / c


@elementwise(lambda g, x, y: -g * y / x)
def _divide_constant(x, c):
    return c / x


# For c = 0, the factor x ** (c - 1) would be infinite at zero, and its product with c would be NaN.
@elementwise(lambda g, x, c: g * (c * x ** (c - 1 + (c == 0))), any_dtype=True)
def _power_of_constant_exponent(x, c):
    return x**c


# NumPy's power takes a hundred times as long for the exponent 3, which is common in networks.
@elementwise(lambda g, x: g * (np.square(x) * 3), any_dtype=True)
def _cube(x):
    return x * x * x


def _power_of_number(x, c):
    is_cube = c.__class__ in (int, float) and c == 3 and x.dtype.kind != "b"
    return _cube(x) if is_cube else _power_of_constant_exponent(x, c)


@elementwise(lambda g, y, c: g * y * np.log(c + (c == 0)))
def _power_of_constant_base(x, c):
    return c**x


@elementwise(lambda g, x: g * np.sign(x), any_dtype=True)
def absolute(x: Input) -> Output:
    """Elementwise absolute value; the derivative at zero is zero.

    Args:
        x: Variable or array of any shape.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.absolute(np.array([-1.0, 0.0, 2.0])).array
        array([1., 0., 2.])
    """
    return np.absolute(x)


def add(*xs: Input | float) -> Variable:
    """Elementwise sum of arrays, which broadcast.

    Args:
        xs: Variables, arrays or numbers; the first two are not both numbers.

    Returns:
        Variable of the broadcast shape.

    Raises:
        ValueError: there is no argument.

    Example:
        >>> F.add(np.ones(2), np.ones(2), 0.5).array
        array([2.5, 2.5])
    """
    if not xs:
        raise ValueError("add: xs must hold at least one array, but is empty")
    if len(xs) == 1:
        return as_variable(xs[0])
    total: Any = xs[0]
    for x in xs[1:]:
        if _is_number(x):
            total = as_variable(total) + x
        elif _is_number(total):
            total = as_variable(x) + total
        else:
            total = _add(total, x)
    return total


@elementwise(lambda g: g, any_dtype=True)
def _identity(x):
    return x


def identity(*inputs: Input) -> Variable | Any:
    """Returns its inputs unchanged, as new variables in the graph.

    Args:
        inputs: Variables or arrays.

    Returns:
        Variable for one input, else a tuple of Variables.

    Example:
        >>> F.identity(np.ones(2)).array
        array([1., 1.])
    """
    outputs = tuple(_identity(x) for x in inputs)
    return outputs[0] if len(outputs) == 1 else outputs


@elementwise(lambda g, x, y: g * (x - y), lambda g, p: g * p, lambda g, p: g * (1 - p))
def _linear_interpolate(p, x, y):
    return p * (x - y) + y


def linear_interpolate(p: Input, x: Input, y: Input) -> Variable:
    """Linear interpolation: p x + (1 - p) y, elementwise.

    Args:
        p, x, y: Variables or arrays of the same shape, floating point.

    Returns:
        Variable of this shape.

    Raises:
        InvalidType: the shapes differ.

    Example:
        >>> F.linear_interpolate(np.array([0.25]), np.array([4.0]), np.array([8.0])).array
        array([7.])
    """
    rule = "p, x and y must have the same shape"
    check(p.shape == x.shape == y.shape, "linear_interpolate", rule, p=p, x=x, y=y)
    return _linear_interpolate(p, x, y)


def aligned(name: str, x: Input, y: Input, axis: int) -> Variable:
    """Reshapes ``y`` to match the axes of ``x`` that start at ``axis``, and to broadcast along the
    others.

    Args:
        name: name of the function in error messages.
        x: Variable or array.
        y: Variable or array whose shape is the sizes of these axes of ``x``.
        axis: the axis of ``x`` that matches the first axis of ``y``.

    Returns:
        Variable that broadcasts to ``x``.

    Raises:
        InvalidType: ``axis`` is not an axis of ``x``, or the shape of ``y`` differs from the sizes
            of these axes.

    Example:
        >>> aligned("scale", np.zeros((2, 3, 4)), np.zeros(3), 1).shape
        (1, 3, 1)
    """
    fits = 0 <= axis <= x.ndim and x.shape[axis : axis + y.ndim] == y.shape
    rule = "the second argument must have the shape of x from axis {axis} on"
    check(fits, name, rule, x=x, second=y, axis=axis)
    return reshape(y, (1,) * axis + y.shape + (1,) * (x.ndim - axis - y.ndim))


def _along_axis(name, function, x, y, axis):
    def call(x, y):
        return function(x, aligned(name, x, y, axis))

    if is_floating(x.dtype, y.dtype) and differ(x, y):
        return mixed(name, call, {"x": x}, {"y": y})
    return call(x, y)


def scale(x: Input, y: Input, axis: int = 1) -> Variable:
    """Multiplies an array by a smaller array that broadcasts along the other axes, such as a scale
    per channel.

    Args:
        x: Variable or array.
        y: Variable or array of the shape of consecutive axes of ``x``, from ``axis`` on.
        axis: the axis of ``x`` that matches the first of ``y``.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: the shape of ``y`` does not match, or ``x`` has a wider floating-point dtype
            than ``y``.

    Example:
        >>> F.scale(np.ones((2, 3)), np.array([1.0, 2.0, 3.0])).array
        array([[1., 2., 3.],
               [1., 2., 3.]])
    """
    return _along_axis("scale", _multiply, x, y, axis)


def bias(x: Input, y: Input, axis: int = 1) -> Variable:
    """Adds a smaller array that broadcasts along the other axes, such as a bias per channel.

    Args:
        x: Variable or array.
        y: Variable or array of the shape of consecutive axes of ``x``, from ``axis`` on.
        axis: the axis of ``x`` that matches the first of ``y``.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: the shape of ``y`` does not match, or ``x`` has a wider floating-point dtype
            than ``y``.

    Example:
        >>> F.bias(np.ones((2, 3)), np.array([1.0, 2.0, 3.0])).array
        array([[2., 3., 4.],
               [2., 3., 4.]])
    """
    return _along_axis("bias", _add, x, y, axis)


def _is_number(x):
    is_scalar = isinstance(x, np.generic)  # Python's Number does not include bfloat16 scalars
    return isinstance(x, numbers.Number) or (is_scalar and is_floating(x.dtype))


def _operator(function, with_constant):
    """Returns the method of an operator. It calls ``function`` if the other operand is a Variable
    or array, and ``with_constant`` if it is a number or symbol."""

    def method(self, other):
        if isinstance(other, Variable):
            return function(self, other)
        if other.__class__ is float or other.__class__ is int:
            return with_constant(self, other)
        if isinstance(other, np.ndarray) or is_gpu_array(other):
            # As in Chainer, a plain array does not change a Variable to a wider dtype.
            is_float = is_floating(self.dtype)
            return function(self, other.astype(self.dtype, copy=False) if is_float else other)
        if _is_number(other) or isinstance(other, Symbol):
            # A number, even a NumPy scalar, is converted to the dtype of the array.
            return with_constant(self, other.item() if isinstance(other, np.generic) else other)
        return NotImplemented

    return method


def _reflected(function):
    return lambda x, other: function(other, x)


def _floor_divide(x0, x1):
    # Floor division is constant almost everywhere, so the result has no gradient.
    return as_variable(as_array(getattr(x0, "array", x0) // getattr(x1, "array", x1)))


OPERATORS = {
    "__add__": _operator(_add, _add_constant),
    "__radd__": _operator(_add, _add_constant),
    "__sub__": _operator(_subtract, lambda x, c: _add_constant(x, -c)),
    "__rsub__": _operator(_reflected(_subtract), _subtract_from_constant),
    "__mul__": _operator(_multiply, _multiply_by_constant),
    "__rmul__": _operator(_multiply, _multiply_by_constant),
    "__truediv__": _operator(_divide, _divide_by_constant),
    "__rtruediv__": _operator(_reflected(_divide), _divide_constant),
    "__floordiv__": _operator(_floor_divide, _floor_divide),
    "__rfloordiv__": _operator(_reflected(_floor_divide), _reflected(_floor_divide)),
    "__pow__": _operator(_power, _power_of_number),
    "__rpow__": _operator(_reflected(_power), _power_of_constant_base),
    "__neg__": _negative,
    "__pos__": lambda x: x,
    "__abs__": absolute,
}
"""The arithmetic operators of Variable, by the names of their methods."""
