"""Elementwise trigonometric and hyperbolic functions."""

import numpy as np

from mpchain.functions.declaring.declaration import elementwise
from mpchain.typing import Input, Output


@elementwise(lambda g, x: g * np.cos(x))
def sin(x: Input) -> Output:
    """Elementwise sine.

    Args:
        x: Variable or array of any shape, floating point: radians.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.sin(np.array([0.0, 0.5])).array.round(2)
        array([0.  , 0.48])
    """
    return np.sin(x)


@elementwise(lambda g, x: -g * np.sin(x))
def cos(x: Input) -> Output:
    """Elementwise cosine.

    Args:
        x: Variable or array of any shape, floating point: radians.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.cos(np.array([0.0, 0.5])).array.round(2)
        array([1.  , 0.88])
    """
    return np.cos(x)


@elementwise(lambda g, y: g * (np.square(y) + 1))
def tan(x: Input) -> Output:
    """Elementwise tangent.

    Args:
        x: Variable or array of any shape, floating point: radians.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.tan(np.array([0.0, 0.5])).array.round(2)
        array([0.  , 0.55])
    """
    return np.tan(x)


@elementwise(lambda g, x: g / np.sqrt(1 - np.square(x)))
def arcsin(x: Input) -> Output:
    """Elementwise inverse sine, in [-pi/2, pi/2].

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.arcsin(np.array([0.0, 0.5])).array.round(2)
        array([0.  , 0.52])
    """
    return np.arcsin(x)


@elementwise(lambda g, x: -g / np.sqrt(1 - np.square(x)))
def arccos(x: Input) -> Output:
    """Elementwise inverse cosine, in [0, pi].

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.arccos(np.array([0.0, 0.5])).array.round(2)
        array([1.57, 1.05])
    """
    return np.arccos(x)


# The derivatives of the two functions below are composed of the functions themselves, because
# fourth powers would overflow and give NaN for 0 times infinity.
@elementwise(lambda g, x, y: g * (x * y * y) * -2)
def _lorentzian(x):
    return 1 / (np.square(x) + 1)


def _by_ordinate(g, x1, x2):
    p, q = _inverse_part.on(x1, x2), _inverse_part.on(x2, x1)
    return g * (np.square(q) - np.square(p))


@elementwise(
    _by_ordinate, lambda g, x1, x2: g * (_inverse_part.on(x1, x2) * _inverse_part.on(x2, x1)) * -2
)
def _inverse_part(x1, x2):
    """Returns x1 / (x1^2 + x2^2), the real part of 1 / (x1 - i x2); 0 at the origin."""
    larger = np.maximum(np.absolute(x1), np.absolute(x2))
    larger = larger + np.equal(larger, 0)
    a, b = x1 / larger, x2 / larger
    squares = np.square(a) + np.square(b)
    return a / (squares + np.equal(squares, 0)) / larger


@elementwise(lambda g, x: g * _lorentzian.on(x))
def arctan(x: Input) -> Output:
    """Elementwise inverse tangent, in [-pi/2, pi/2].

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.arctan(np.array([0.0, 0.5])).array.round(2)
        array([0.  , 0.46])
    """
    return np.arctan(x)


@elementwise(
    lambda g, x1, x2: g * _inverse_part.on(x2, x1),
    lambda g, x1, x2: -g * _inverse_part.on(x1, x2),
)
def arctan2(x1: Input, x2: Input) -> Output:
    """Elementwise angle of the point (x2, x1), in [-pi, pi]; ``x1`` and ``x2`` broadcast.

    The derivatives at the origin are zero.

    Args:
        x1: Variable or array, floating point: the ordinate.
        x2: Variable or array, floating point: the abscissa.

    Returns:
        Variable of the broadcast shape.

    Example:
        >>> F.arctan2(np.array([1.0, -1.0]), np.array([0.0, -1.0])).array.round(2)
        array([ 1.57, -2.36])
    """
    return np.arctan2(x1, x2)


@elementwise(lambda g, x: g * np.cosh(x))
def sinh(x: Input) -> Output:
    """Elementwise hyperbolic sine.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.sinh(np.array([0.0, 0.5])).array.round(2)
        array([0.  , 0.52])
    """
    return np.sinh(x)


@elementwise(lambda g, x: g * np.sinh(x))
def cosh(x: Input) -> Output:
    """Elementwise hyperbolic cosine.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.cosh(np.array([0.0, 0.5])).array.round(2)
        array([1.  , 1.13])
    """
    return np.cosh(x)


@elementwise(lambda g, x: g / (1 - np.square(x)))
def arctanh(x: Input) -> Output:
    """Elementwise inverse hyperbolic tangent.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.arctanh(np.array([0.0, 0.5])).array.round(2)
        array([0.  , 0.55])
    """
    return np.arctanh(x)
