"""Our own kernels for NumPy arrays, for special cases in which they save much time."""

import math

import numpy as np

from mpchain.kernels import reference, thresholds
from mpchain.kernels.cpu.channels_last import is_only_last, result_last, rows
from mpchain.kernels.cpu.loops import in_one_pass
from mpchain.kernels.operation import SINGLE_OR_DOUBLE
from mpchain.typing import Array


def refuse_unless_few_rows(x: Array, W: Array, b: Array | None) -> str | None:
    """Returns None for products for which BLAS would spend most of its time on rearranging W; else
    the reason to refuse the product.

    Example:
        >>> refuse_unless_few_rows(np.ones((5, 2)), np.ones((3, 2)), None)
        'not few rows and many weights'
    """
    rows, least = thresholds.few_rows, thresholds.rearranged
    if W.size < least and W.shape[0] <= W.shape[1]:
        rows, least = thresholds.few_rows_of_flat, thresholds.rearranged_flat
    if len(x) not in rows or W.size < least:
        return "not few rows and many weights"
    return None


@reference.linear.kernel("numpy_cpu", refuse_unless_few_rows, SINGLE_OR_DOUBLE)
def _linear_of_few_rows(x, W, b):
    """Returns y = x W^T + b, where x W^T is computed as the transpose of W x^T."""
    # For a transposed x, BLAS takes longer than a copy of x.
    y = np.ascontiguousarray(reference.product(W, np.ascontiguousarray(x.T)).T)
    if b is not None:
        y += b
    return y


def _refuse_for_blas(a, b, out=None):
    """Accepts products that NumPy does not give to BLAS: columns times rows, and matrices of which
    one repeats its elements, such as the gradient of a sum."""
    if a.shape[-1] == 1:
        return None
    if a.ndim != 2 or b.ndim != 2 or a.size * b.shape[1] < thresholds.plain_loop:
        return "a sum of several products, or few of them"
    return None if _repeats(a) or _repeats(b) else "a sum of several products"


def _repeats(x):
    return any([step == 0 and n > 1 for step, n in zip(x.strides, x.shape)])


@reference.product.kernel("numpy_cpu", _refuse_for_blas, SINGLE_OR_DOUBLE)
def _product_without_blas(a, b, out=None):
    """Returns the product of columns and rows, where np.matmul would loop or call BLAS for each of
    a stack. Copies repeated elements for BLAS, whose sums have smaller errors than a loop."""
    if a.shape[-1] == 1:
        if out is not None or a.size * b.shape[-1] < thresholds.loop:
            return np.multiply(a, b, out=out)
        return in_one_pass(_times, a, b)
    return reference.product(*[np.ascontiguousarray(x) if _repeats(x) else x for x in (a, b)], out)


def _times(x, y):
    return x * y


def _refuse_unless_pointwise(first, second, window):
    """Accepts 1x1 filters with stride 1 and no padding, because such a convolution is a matrix
    product."""
    if (
        window.n_elements != 1
        or window.groups != 1
        or max(window.stride) > 1
        or max(window.pad) > 0
    ):
        return "not a pointwise convolution"
    if (
        second.size >= thresholds.pointwise_weights
        and math.prod(window.in_size) < thresholds.pointwise_pixels
    ):
        return "a small product for each sample; one product of all samples is faster"
    return None


@reference.convolution_output.kernel("numpy_cpu", _refuse_unless_pointwise, SINGLE_OR_DOUBLE)
def _pointwise_output(x, W, window, out=None):
    """Returns y with y[n] = W x[n], computed without a copy of x."""
    if is_only_last(x):
        y = result_last((len(x), len(W), *window.out_size), x.dtype, out=out)
        np.matmul(rows(x), W.reshape(W.shape[:2]).T, out=rows(y))
        return y
    y = W.reshape(W.shape[:2]) @ x.reshape(*x.shape[:2], math.prod(window.in_size))
    return y.reshape(x.shape[0], W.shape[0], *window.out_size)


@reference.convolution_input.kernel("numpy_cpu", _refuse_unless_pointwise, SINGLE_OR_DOUBLE)
def _pointwise_input(y, W, window, out=None):
    """Returns x with x[n] = W^T y[n], computed without a copy of y."""
    if is_only_last(y):
        x = result_last((len(y), W.shape[1], *window.in_size), y.dtype, out=out)
        np.matmul(rows(y), W.reshape(W.shape[:2]), out=rows(x))
        return x
    x = W.reshape(W.shape[:2]).T @ y.reshape(*y.shape[:2], math.prod(window.out_size))
    return x.reshape(y.shape[0], W.shape[1], *window.in_size)


def _refuse_rows(x):
    return None if x.flags.c_contiguous and x.shape[1] > 15 else "not long contiguous rows"


@reference.row_sums.kernel("numpy_cpu", _refuse_rows, SINGLE_OR_DOUBLE)
def _row_sums(x):
    """Computes the same as the reference with SIMD instructions, which np.sum does not use."""
    return np.einsum("ij->i", x)
