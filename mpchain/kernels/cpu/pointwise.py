"""Pointwise convolutions, whose filters have one element, as matrix products by oneDNN.

For arrays with channels last, a pointwise convolution is one matrix product. For plain arrays,
oneDNN's convolutions would rearrange inputs, filters and outputs at every call. A separate product
for the pixels of each sample rearranges nothing. One product for all samples rearranges inputs
and outputs, but not filters; it is faster if a sample has few pixels, and with several threads,
which then synchronize once.
"""

import functools
import math

import numpy as np

from mpchain.kernels import reference, thresholds
from mpchain.kernels.cpu import onednn
from mpchain.kernels.cpu.channels_last import empty, empty_last, is_only_last, result_last, rows
from mpchain.kernels.cpu.onednn_library import n_threads, why_absent
from mpchain.kernels.cpu.onednn_matmul import matmul
from mpchain.kernels.operation import SINGLE
from mpchain.kernels.window import Window
from mpchain.typing import Array


def refusal(operation: str, first: Array, second: Array, window: Window) -> str | None:
    """Returns the reason to refuse a convolution; None if this kernel computes it. See
    :func:`onednn.refusal`.

    Example:
        >>> window = mpchain.kernels.window.Window((2,), (1,), (0,), (1,), 1, (3,), (2,))
        >>> refusal("output", np.ones((1, 1, 3)), np.ones((1, 1, 2)), window)
        'not a pointwise convolution'
    """
    if window.n_elements != 1 or window.groups != 1 or any(window.pad):
        return "not a pointwise convolution"
    if _work(operation, first, second, window) < thresholds.pointwise:
        return onednn.NOT_WORTH_IT
    axes = zip(window.in_size, window.stride, window.out_size)
    if any((out - 1) * stride >= size for size, stride, out in axes):
        return "a window past the end"
    return why_absent()


def _work(operation, first, second, window):
    weights = second.size if operation != "filter" else first.shape[1] * second.shape[1]
    return first.shape[0] * math.prod(window.out_size) * weights


def _goes_by_samples(operation, first, second, window):
    """Returns whether a matrix product for each sample is faster than one product for all
    samples."""
    is_large = _work(operation, first, second, window) >= first.shape[0] * thresholds.pointwise
    return is_large and math.prod(window.out_size) >= thresholds.sample_pixels and n_threads() == 1


def _in_windows(x, window):
    """Returns a view (N, C, *out_size) of those elements of ``x`` (N, C, *in_size) that the windows
    read."""
    return x[(..., *(slice(None, None, stride) for stride in window.stride))]


def _matrices(x):
    """Returns ``x`` (N, C, *size) as a stack of matrices (N, C, n_pixels)."""
    return np.ascontiguousarray(x).reshape(*x.shape[:2], -1)


def _matrix(x):
    """Returns ``x`` (N, C, *size) as one matrix (C, N * size)."""
    return np.ascontiguousarray(x.swapaxes(0, 1)).reshape(x.shape[1], -1)


def _products(operation, W, x, window, out):
    """Returns the product of W and the channels of each pixel of ``x`` (N, C, *out_size)."""
    shape = (len(W), *x.shape[2:])
    if _goes_by_samples(operation, x, W, window):
        y = empty((len(x), *shape), np.float32, out=out)
        for rows, product in zip(_matrices(x), _matrices(y)):
            onednn.multiply(W, rows, product)
        return y
    y = np.empty((len(W), len(x), *x.shape[2:]), np.float32)
    onednn.multiply(W, _matrix(x), y.reshape(len(W), -1))
    return y.swapaxes(0, 1)


@reference.convolution_output.kernel("pointwise", functools.partial(refusal, "output"), SINGLE)
def _output(x, W, window, out=None):
    """Returns y = x * W."""
    if is_only_last(x):
        return _output_last(x, W, window, out=out)
    W = np.ascontiguousarray(W).reshape(W.shape[:2])
    return np.ascontiguousarray(_products("output", W, _in_windows(x, window), window, out))


def _output_last(x, W, window, b=None, *, out):
    y = result_last((len(x), len(W), *window.out_size), np.float32, out=out)
    matmul(rows(_in_windows(x, window)), W.reshape(W.shape[:2]).T, rows(y), b)
    return y


def _refuse_with_bias(x, W, b, window):
    return refusal("output", x, W, window)


@reference.convolution_with_bias.kernel("pointwise", _refuse_with_bias, SINGLE)
def _output_with_bias(x, W, b, window, out=None):
    """Returns y = x * W + b."""
    if is_only_last(x):
        return _output_last(x, W, window, b, out=out)
    y = _output(x, W, window, out)
    y += b.reshape(-1, *(1,) * len(window.ksize))
    return y


@reference.convolution_input.kernel("pointwise", functools.partial(refusal, "input"), SINGLE)
def _input(y, W, window, out=None):
    """Returns the adjoint of x -> x * W."""
    W = np.ascontiguousarray(W).reshape(W.shape[:2])
    if is_only_last(y):
        return _input_last(y, W, window, out)
    in_windows = _products("input", W.T, y, window, out)
    if window.in_size == window.out_size:
        return np.ascontiguousarray(in_windows)
    x = np.zeros((*in_windows.shape[:2], *window.in_size), np.float32)
    _in_windows(x, window)[...] = in_windows
    return x


def _input_last(y, W, window, out):
    shape = (len(y), W.shape[1])
    if window.in_size == window.out_size:
        x = result_last((*shape, *window.in_size), np.float32, out=out)
        onednn.multiply(rows(y), W, rows(x))
        return x
    in_windows = empty_last((*shape, *window.out_size), np.float32)
    onednn.multiply(rows(y), W, rows(in_windows))
    x = empty_last((*shape, *window.in_size), np.float32)
    x[...] = 0
    _in_windows(x, window)[...] = in_windows
    return x


@reference.convolution_filter.kernel("pointwise", functools.partial(refusal, "filter"), SINGLE)
def _filter(x, y, window, out=None):
    """Returns the adjoint of W -> x * W."""
    W = empty((y.shape[1], x.shape[1], *window.ksize), np.float32, out=out)
    matrix = W.reshape(W.shape[:2])
    if is_only_last(x) or is_only_last(y):
        onednn.multiply(rows(y).T, rows(_in_windows(x, window)), matrix)
        return W
    is_by_samples = _goes_by_samples("filter", x, y, window)
    x = _in_windows(x, window)
    if is_by_samples:
        for i, (of_y, of_x) in enumerate(zip(_matrices(y), _matrices(x))):
            onednn.multiply(of_y, of_x.T, matrix, is_sum=i > 0)
    else:
        onednn.multiply(_matrix(y), _matrix(x).T, matrix)
    return W
