"""Trigonometric and hyperbolic functions, element by element."""

import numpy as np

from mpchain.functions.declaration import elementwise


@elementwise(lambda g, x: g * np.cos(x))
def sin(x):
    """Elementwise sine.

    Args:
        x: Variable or array of any shape, floating point: radians.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.sin(x)


@elementwise(lambda g, x: -g * np.sin(x))
def cos(x):
    """Elementwise cosine.

    Args:
        x: Variable or array of any shape, floating point: radians.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.cos(x)


@elementwise(lambda g, y: g * (np.square(y) + 1))
def tan(x):
    """Elementwise tangent.

    Args:
        x: Variable or array of any shape, floating point: radians.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.tan(x)


@elementwise(lambda g, x: g / np.sqrt(1 - np.square(x)))
def arcsin(x):
    """Elementwise inverse sine, in [-pi/2, pi/2].

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.arcsin(x)


@elementwise(lambda g, x: -g / np.sqrt(1 - np.square(x)))
def arccos(x):
    """Elementwise inverse cosine, in [0, pi].

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.arccos(x)


@elementwise(lambda g, x: g / (np.square(x) + 1))
def arctan(x):
    """Elementwise inverse tangent, in [-pi/2, pi/2].

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.arctan(x)


@elementwise(
    lambda g, x1, x2: g * (x2 / (np.square(x1) + np.square(x2))),
    lambda g, x1, x2: -g * (x1 / (np.square(x1) + np.square(x2))),
)
def arctan2(x1, x2):
    """Elementwise angle of the point (x2, x1) to the first axis, in [-pi, pi]; the two broadcast.

    Args:
        x1: Variable or array, floating point: the ordinate.
        x2: Variable or array, floating point: the abscissa.

    Returns:
        Variable of the broadcast shape.
    """
    return np.arctan2(x1, x2)


@elementwise(lambda g, x: g * np.cosh(x))
def sinh(x):
    """Elementwise hyperbolic sine.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.sinh(x)


@elementwise(lambda g, x: g * np.sinh(x))
def cosh(x):
    """Elementwise hyperbolic cosine.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.cosh(x)


@elementwise(lambda g, x: g / (1 - np.square(x)))
def arctanh(x):
    """Elementwise inverse hyperbolic tangent.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.arctanh(x)
