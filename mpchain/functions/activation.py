"""Activation functions."""

import numpy as np

from mpchain import kernels
from mpchain.functions.declaration import differentiable, elementwise


@elementwise(lambda g, y: g * np.greater(y, 0))
def relu(x):
    """Rectified linear unit: max(x, 0), elementwise; the derivative at zero is zero.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.maximum(x, 0)


@elementwise(lambda g, x, slope: np.where(np.greater_equal(x, 0), g, g * slope))
def leaky_relu(x, slope=0.2):
    """Leaky rectified linear unit: max(x, slope * x) for slopes below one, elementwise.

    Args:
        x: Variable or array of any shape, floating point.
        slope (float): factor on negative elements.

    Returns:
        Variable of the shape and dtype of ``x``.

    See A. Maas et al., Rectifier nonlinearities improve neural network acoustic models, 2013.
    """
    return np.where(np.greater_equal(x, 0), x, x * slope)


@elementwise(lambda g, y: g * (y - y * y))
def sigmoid(x):
    """Logistic sigmoid: 1 / (1 + exp(-x)), elementwise.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    # The form with tanh neither overflows nor branches.
    return np.tanh(x * 0.5) * 0.5 + 0.5


@elementwise(lambda g, y: g - g * y * y)
def tanh(x):
    """Hyperbolic tangent, elementwise.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.tanh(x)


@elementwise(lambda g, x, beta: g * sigmoid.on(x * beta))
def softplus(x, beta=1.0):
    """Smooth rectifier: log(1 + exp(beta x)) / beta, elementwise.

    Args:
        x: Variable or array of any shape, floating point.
        beta (float): sharpness.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    bx = x * beta
    # log(1 + exp(z)) overflows for large z; this form does not.
    return (np.maximum(bx, 0) + np.log1p(np.exp(-np.absolute(bx)))) / beta


def _softmax_derivative(g, y, axis):
    gy = g * y
    return gy - y * np.sum(gy, axis=axis, keepdims=True)


@differentiable(_softmax_derivative)
def softmax(x, axis=1):
    """Softmax along an axis: exp(x) / sum(exp(x)).

    Args:
        x: Variable or array, floating point.
        axis (int): the axis over which the result sums to one.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return kernels.call("softmax", x, axis)


@differentiable(lambda g, y, axis: g - np.exp(y) * np.sum(g, axis=axis, keepdims=True))
def log_softmax(x, axis=1):
    """Logarithm of the softmax along an axis: x - log(sum(exp(x))), without overflow.

    Args:
        x: Variable or array, floating point.
        axis (int): the axis over which the exponentials sum to one.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return kernels.call("log_softmax", x, axis)
