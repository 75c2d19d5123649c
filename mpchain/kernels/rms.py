"""Normalization by the root of the mean square, for NumPy and CuPy arrays alike."""

import numpy as np

from mpchain.kernels.operation import Operation
from mpchain.kernels.reference import scale_gradients
from mpchain.typing import Array


def inverse_rms(x: Array, axis: tuple[int, ...], eps: float) -> Array:
    """1 / sqrt(mean(x ** 2) + eps) over ``axis``, kept as axes of size one. Of Variables too.

    Example:
        >>> from mpchain.kernels.rms import inverse_rms
        >>> inverse_rms(np.array([1.0, 7.0]), (0,), 0.0)
        array([0.2])
    """
    average = np.mean if x.size else np.sum  # an empty batch has no mean, but its sum is zero
    return (average(x * x, axis=axis, keepdims=True) + eps) ** -0.5


@Operation
def rms_normalization(
    x: Array, gamma: Array, axis: tuple[int, ...], eps: float
) -> tuple[Array, Array]:
    """gamma x / sqrt(mean(x ** 2) + eps), by the mean over trailing axes.

    Gamma broadcasts to x. Also returns 1 / sqrt(mean(x ** 2) + eps), with axes of size one.

    Example:
        >>> rms_normalization(np.array([[1.0, 7.0]]), np.ones(2), (-1,), 0.0)[0]
        array([[0.2, 1.4]])
    """
    inverse = inverse_rms(x, axis, eps)
    y = x * inverse
    y *= gamma
    return y, inverse


@Operation
def rms_normalization_gradient(
    g: Array, x: Array, gamma: Array, inverse: Array, axis: tuple[int, ...]
) -> tuple[Array, Array]:
    """The gradients of x and gamma from that of y; see :func:`rms_normalization`.

    Example:
        >>> x, one = np.array([[1.0, 1.0]]), np.ones((1, 1))
        >>> rms_normalization_gradient(x, x, np.ones(2), one, (-1,))[1]
        array([1., 1.])
    """
    return scale_gradients(g, gamma, x * inverse, inverse, axis, False)
