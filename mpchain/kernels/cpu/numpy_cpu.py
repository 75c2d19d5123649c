"""Our own kernels for NumPy arrays, where a special case is worth its lines."""

import math

import numpy as np

from mpchain.kernels import reference
from mpchain.kernels.cpu.channels_last import is_only_last, result_last, rows
from mpchain.kernels.operation import SINGLE_OR_DOUBLE
from mpchain.typing import Array

_MANY_WEIGHTS, _LEAST_PIXELS = 1 << 16, 32
# For few rows of x: elements of W, and where it has no more rows than columns.
_FEW_ROWS, _MUCH_TO_REARRANGE = range(4, 49), 1 << 18
_FEW_ROWS_OF_FLAT, _MUCH_TO_REARRANGE_OF_FLAT = range(16, 49), 1 << 14


def refuse_unless_few_rows(x: Array, W: Array, b: Array | None) -> str | None:
    """Takes those products that BLAS spends on rearranging W.

    Example:
        >>> refuse_unless_few_rows(np.ones((5, 2)), np.ones((3, 2)), None)
        'not few rows and many weights'
    """
    rows, least = _FEW_ROWS, _MUCH_TO_REARRANGE
    if W.size < least and W.shape[0] <= W.shape[1]:
        rows, least = _FEW_ROWS_OF_FLAT, _MUCH_TO_REARRANGE_OF_FLAT
    if len(x) not in rows or W.size < least:
        return "not few rows and many weights"
    return None


@reference.linear.kernel("numpy_cpu", refuse_unless_few_rows, SINGLE_OR_DOUBLE)
def _linear_of_few_rows(x, W, b):
    """y^T = W x^T + b."""
    # BLAS takes longer for a transposed x than copying it does.
    y = np.ascontiguousarray(reference.product(W, np.ascontiguousarray(x.T)).T)
    if b is not None:
        y += b
    return y


def _refuse_unless_pointwise(first, second, window):
    """Takes 1x1 filters that are applied everywhere: these need only a matrix product."""
    if (
        window.n_elements != 1
        or window.groups != 1
        or max(window.stride) > 1
        or max(window.pad) > 0
    ):
        return "not a pointwise convolution"
    if second.size >= _MANY_WEIGHTS and math.prod(window.in_size) < _LEAST_PIXELS:
        return "a small product for each sample: one of all is faster"
    return None


@reference.convolution_output.kernel("numpy_cpu", _refuse_unless_pointwise, SINGLE_OR_DOUBLE)
def _pointwise_output(x, W, window, out=None):
    """y[n] = W x[n], without copying x."""
    if is_only_last(x):
        y = result_last((len(x), len(W), *window.out_size), x.dtype, out=out)
        np.matmul(rows(x), W.reshape(W.shape[:2]).T, out=rows(y))
        return y
    y = W.reshape(W.shape[:2]) @ x.reshape(*x.shape[:2], math.prod(window.in_size))
    return y.reshape(x.shape[0], W.shape[0], *window.out_size)


@reference.convolution_input.kernel("numpy_cpu", _refuse_unless_pointwise, SINGLE_OR_DOUBLE)
def _pointwise_input(y, W, window, out=None):
    """x[n] = W^T y[n], without copying y."""
    if is_only_last(y):
        x = result_last((len(y), W.shape[1], *window.in_size), y.dtype, out=out)
        np.matmul(rows(y), W.reshape(W.shape[:2]), out=rows(x))
        return x
    x = W.reshape(W.shape[:2]).T @ y.reshape(*y.shape[:2], math.prod(window.out_size))
    return x.reshape(y.shape[0], W.shape[1], *window.in_size)


_BLOCK = 1 << 16
"""Elements that are worked through at a time: several arrays of them fit the cache."""


def refuse_unless_channels(x: Array, gamma: Array, axis: tuple[int, ...]) -> str | None:
    """Takes arrays (N, C, ...) that are normalized over all axes but the second.

    Example:
        >>> refuse_unless_channels(np.ones((2, 3)), np.ones(3), (0,))
        'not over all axes but the second'
    """
    if gamma.dtype != x.dtype:
        return "gamma of another dtype"
    if x.ndim < 3 or axis != (0, *range(2, x.ndim)):
        return "not over all axes but the second"
    if x.size == 0 or math.prod(x.shape[2:]) < 4:
        return "too few elements of a channel side by side"
    return None


def _blocks_of_channels(x):
    """Returns ``x`` as (N, C, rest), and slices of the channels that make up one block each."""
    x = x.reshape(*x.shape[:2], -1)
    n, channels, size = x.shape
    step = max(_BLOCK // (n * size), 1)
    return x, [slice(i, min(i + step, channels)) for i in range(0, channels, step)]


def _sum_of_channels(x):
    return (x @ np.ones(x.shape[2], x.dtype)).sum(axis=0)


@reference.batch_normalization.kernel(
    "numpy_cpu",
    lambda x, gamma, beta, axis, eps: refuse_unless_channels(x, gamma, axis),
    SINGLE_OR_DOUBLE,
)
def _batch_normalization(x, gamma, beta, axis, eps):
    """As the reference, block by block: what was just written is still in the cache."""
    y = np.empty(x.shape, x.dtype)
    x, blocks = _blocks_of_channels(x)
    y_blocks, _ = _blocks_of_channels(y)
    count = x.size // x.shape[1]
    mean = _sum_of_channels(x) / x.dtype.type(count)
    var = np.empty_like(mean)
    scale, shift = gamma.reshape(-1), beta.reshape(-1)
    for block in blocks:
        part = np.subtract(x[:, block], mean[block, None], out=y_blocks[:, block])
        var[block] = np.einsum("nci,nci->c", part, part) / count
        part *= ((var[block] + eps) ** -0.5 * scale[block])[:, None]
        part += shift[block, None]
    return y, *(v.reshape(gamma.shape) for v in (mean, (var + eps) ** -0.5, var))


@reference.batch_normalization_gradient.kernel(
    "numpy_cpu",
    lambda g, x, gamma, mean, inverse_std, axis: refuse_unless_channels(x, gamma, axis),
    SINGLE_OR_DOUBLE,
)
def _batch_normalization_gradient(g, x, gamma, mean, inverse_std, axis):
    """As the reference, block by block."""
    shape = gamma.shape
    gx = np.empty(x.shape, x.dtype)
    x, blocks = _blocks_of_channels(x)
    g, _ = _blocks_of_channels(g)
    gx_blocks, _ = _blocks_of_channels(gx)
    count = x.size // x.shape[1]
    mean, inverse_std, gamma = (v.reshape(-1) for v in (mean, inverse_std, gamma))
    g_beta = _sum_of_channels(g)
    g_gamma = np.empty_like(g_beta)
    scale = gamma * inverse_std
    shift = scale * g_beta / count
    work = np.empty_like(x[:, blocks[0]])
    for block in blocks:
        part = np.subtract(x[:, block], mean[block, None], out=gx_blocks[:, block])
        g_gamma[block] = np.einsum("nci,nci->c", g[:, block], part) * inverse_std[block]
        part *= (-scale[block] * inverse_std[block] * g_gamma[block] / count)[:, None]
        scaled = work[:, : block.stop - block.start]
        part += np.multiply(g[:, block], scale[block, None], out=scaled)
        part -= shift[block, None]
    return gx, g_gamma.reshape(shape), g_beta.reshape(shape)
