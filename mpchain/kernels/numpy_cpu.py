"""Our own kernels for NumPy arrays, where a special case is worth its lines."""

import math

import numpy as np

from mpchain.kernels import register


def _refuse_unless_pointwise(first, second, window):
    """Takes 1x1 filters that are applied everywhere: these need only a matrix product."""
    if not isinstance(first, np.ndarray):
        return "not a NumPy array"
    if (
        window.n_elements != 1
        or window.groups != 1
        or max(window.stride) > 1
        or max(window.pad) > 0
    ):
        return "not a pointwise convolution"
    if first.dtype == np.float16 or first.dtype != second.dtype:
        return "not two arrays of one dtype of 32 or 64 bits"
    return None


@register("numpy_cpu", _refuse_unless_pointwise)
def convolution_output(x, W, window):
    """y[n] = W x[n], without copying x."""
    y = W.reshape(W.shape[:2]) @ x.reshape(*x.shape[:2], math.prod(window.in_size))
    return y.reshape(x.shape[0], W.shape[0], *window.out_size)


@register("numpy_cpu", _refuse_unless_pointwise)
def convolution_input(y, W, window):
    """x[n] = W^T y[n], without copying y."""
    x = W.reshape(W.shape[:2]).T @ y.reshape(*y.shape[:2], math.prod(window.out_size))
    return x.reshape(y.shape[0], W.shape[1], *window.in_size)
