"""Kernels of Intel's oneDNN: convolutions and matrix products in single precision, and matrix
products in bfloat16.

With several threads, oneDNN also computes large products and convolutions for which it is not
faster; see :mod:`mpchain.kernels.cpu.onednn_library`.
"""

import ctypes
import functools
import math
from collections.abc import Callable

import numpy as np

from mpchain.backends.host_memory import address
from mpchain.configuration import config
from mpchain.kernels import reference, thresholds
from mpchain.kernels.cpu import onednn_convolution
from mpchain.kernels.cpu.onednn_library import load, why_absent
from mpchain.kernels.cpu.onednn_matmul import matmul, packed_matmul, prepared_matmul
from mpchain.kernels.operation import SINGLE, SINGLE_OR_BFLOAT16
from mpchain.kernels.window import Window
from mpchain.typing import Array

_BYTES_OF_BFLOAT16 = 2
_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)
NOT_WORTH_IT, GAPS = "not worth it: NumPy is as fast", "an array that has gaps"


def _miscounts_slices(window):
    """Returns whether oneDNN's gradient of a 3-D filter is wrong for the padding and stride of the
    depth axis.

    oneDNN counts the slices that each window shares with the input. For the first window after the
    front padding, the count is right if the window ends inside the input, or if the padding is at
    most one stride. Otherwise oneDNN reads and writes past the ends of its arrays.
    """
    k, stride, pad, size = (values[0] for values in (*window[:3], window.in_size))
    return 1 < stride < pad and size < k + -pad % stride


def refusal(operation: str, first: Array, second: Array, window: Window) -> str | None:
    """Returns the reason to refuse a convolution; None if oneDNN computes the convolution.

    oneDNN computes the convolutions for which it was measured to be faster than a matrix product of
    all windows: depthwise convolutions, and convolutions with windows of several elements and
    enough channels for the library's blocks, but not so many channels that the filters are larger
    than the windows. With several threads, oneDNN computes other large convolutions too, because
    the matrix product would use NumPy's BLAS, which has threads of its own. If
    ``config.kernels`` names onednn, oneDNN computes every convolution that it supports; with
    ``config.autotune``, measurements decide.

    Example:
        >>> refusal("output", np.ones((0, 1, 3)), np.ones((1, 1, 3)), Window((3,), *[(1,)] * 6))
        'an array without elements'
    """
    if len(window.ksize) > 3:
        return "more than three spatial axes"
    if not first.size or not second.size:
        return "an array without elements"
    if operation == "filter" and len(window.ksize) == 3 and _miscounts_slices(window):
        return "a geometry for which oneDNN 3.2 computes a wrong gradient"
    if config.autotune or "onednn" in (config.kernels or ()):
        return why_absent()
    in_channels = second.shape[1] if operation != "filter" else first.shape[1] // window.groups
    is_depthwise = in_channels == 1 and window.groups > 1
    least = thresholds.channels[operation]
    if window.groups > 1:
        least = 1 if is_depthwise else max(least, thresholds.channels_of_groups)
    n_pixels = first.shape[0] * math.prod(window.out_size)
    channels = in_channels + second.shape[1 if operation == "filter" else 0]
    has_few_pixels = n_pixels * thresholds.worth_filters[operation] < channels
    is_slower = (
        window.n_elements == 1
        or in_channels < least
        or (in_channels >= thresholds.many_channels and has_few_pixels)
    )
    weights = second.size if operation != "filter" else second.shape[1] * in_channels
    weights *= window.n_elements if operation == "filter" else 1
    is_small = n_pixels * weights <= thresholds.shared
    reason = why_absent()
    if is_slower and (reason or is_small or load().threads == 1):
        return NOT_WORTH_IT
    return reason


for _operation, _compute in (
    ("output", onednn_convolution.output),
    ("input", onednn_convolution.input),
    ("filter", onednn_convolution.filter),
):
    _convolution = getattr(reference, f"convolution_{_operation}")
    _convolution.kernel("onednn", functools.partial(refusal, _operation), SINGLE)(_compute)


def _refuse_with_bias(x, W, b, window):
    return refusal("output", x, W, window)


@reference.convolution_with_bias.kernel("onednn", _refuse_with_bias, SINGLE)
def _output_with_bias(x, W, b, window, out=None):
    """Returns y = x * W + b."""
    return onednn_convolution.output(x, W, window, b, out=out)


def _lines(shape, strides, n=4):
    """Returns b"N" if the rows of a matrix are contiguous, or b"T" if its columns are, and the
    distance between these, in elements of ``n`` bytes; None for other matrices."""
    down, right = strides
    if right == n and down >= n * shape[1]:
        return (b"N", down // n) if down % n == 0 else None
    is_transposed = down == n and right >= n * shape[0] and right % n == 0
    return (b"T", right // n) if is_transposed else None


def _rows(x):
    return _lines(x.shape, x.strides, x.itemsize)


def _refuse_product(a, b, out=None):
    """Accepts products for which oneDNN was measured to be faster than NumPy's BLAS, or for which
    BLAS would use its threads."""
    if a.itemsize == _BYTES_OF_BFLOAT16:
        return _refuse_bfloat16(a, b, out)
    work = a.size * b.shape[-1]
    if work <= thresholds.shared:
        return NOT_WORTH_IT
    onednn = load()
    if isinstance(onednn, str):
        return onednn
    if a.ndim > 2 or b.ndim > 2:
        return _refuse_stacks(a, b, out, onednn.threads)
    if onednn.threads == 1 and any(_conflicts(a, b)):
        return "lines that displace each other from the cache"
    is_thin = (
        min(a.shape[0], b.shape[1]) in thresholds.thin_rows
        and max(a.size, b.size) >= thresholds.thin_weights
    )
    least = thresholds.product_by_rows if _is_for_primitive(a, b) else thresholds.product
    if onednn.threads == 1 and not is_thin:
        if work < least or _suits_blas(a, b, work, onednn):
            return NOT_WORTH_IT
    if _rows(a) is None or _rows(b) is None or (out is not None and not _is_writable(out)):
        return GAPS
    return None


def _suits_blas(a, b, work, onednn):
    """Returns whether NumPy's BLAS, which copies both matrices, is faster than oneDNN without
    AVX-512: for a transposed first matrix, as in gradients of weights, if the sums are long and the
    result stays in the cache; for a transposed second matrix, as in layers, if the product is
    small."""
    if onednn.has_avx512:
        return False
    if a.strides[0] < a.strides[1]:
        is_long = len(b) >= thresholds.long_sums
        return is_long and a.shape[0] * b.shape[1] <= thresholds.cached_result
    return b.strides[0] < b.strides[1] and work < thresholds.product_of_avx2


def _is_writable(y, dtype=np.float32):
    return y.dtype == dtype and (_rows(y) or "?")[0] == b"N"


def _refuse_bfloat16(a, b, out=None):
    if a.ndim > 2 or b.ndim > 2:
        return "stacks of matrices"
    if a.size * b.shape[-1] <= thresholds.shared:
        return NOT_WORTH_IT
    if reason := why_absent():
        return reason
    if not load().multiplies_bfloat16:
        return "the processor multiplies no bfloat16"
    if _rows(a) is None or _rows(b) is None or not (out is None or _is_writable(out, a.dtype)):
        return GAPS
    return None


def _refuse_stacks(a, b, out, threads):
    """Accepts stacks for which threads save time, because NumPy multiplies one matrix after the
    other."""
    if threads == 1:
        return NOT_WORTH_IT
    if a.shape[:-2] != b.shape[:-2]:
        return "stacks that repeat a matrix"
    if min(a.shape[-2:] + b.shape[-1:]) < thresholds.stacked:
        return "thin matrices"
    has_gaps = not (_has_lines(a) and _has_lines(b))
    return GAPS if has_gaps or (out is not None and not out.flags.c_contiguous) else None


def _has_lines(x):
    """Returns whether the elements of rows or of columns are adjacent, and no two elements share
    memory."""
    *_, down, right = x.strides
    lines = (down >= 4 * x.shape[-1]) if right == 4 else (down == 4 and right >= 4 * x.shape[-2])
    return lines and all(step > 0 and step % 4 == 0 for step in x.strides)


@reference.product.kernel("onednn", _refuse_product, SINGLE_OR_BFLOAT16)
def _product(a, b, out=None):
    """Returns the product of two matrices or two stacks. A product of bfloat16 arrays is rounded
    once."""
    y = np.empty((*a.shape[:-1], b.shape[-1]), a.dtype) if out is None else out
    is_for_sgemm = y.ndim == 2 and a.itemsize != _BYTES_OF_BFLOAT16
    (multiply if is_for_sgemm else matmul)(a, b, y)
    return y


def multiply(a: Array, b: Array, y: Array, is_sum: bool = False) -> None:
    """Writes the product of two single-precision matrices to ``y``, or adds the product to ``y``.

    Args:
        a, b, y: float32 arrays (n, k), (k, m) and (n, m), whose rows have no gaps; ``a`` and ``b``
            may be transposed.
        is_sum: whether to add the product to ``y``.

    Example:
        >>> y = np.empty((2, 4), np.float32)
        >>> if why_absent() is None:
        ...     multiply(np.ones((2, 3), np.float32), np.ones((3, 4), np.float32), y)
    """
    if _is_for_primitive(a, b):
        return matmul(a, b, y, is_sum=is_sum)
    onednn = load()
    if a.size * b.shape[1] < thresholds.large_product:
        (of_a, of_b), least = _conflicts(a, b), thresholds.copied
        a, b = (
            _with_gaps(a) if of_a and b.shape[1] >= least else a,
            _with_gaps(b) if of_b and len(a) >= least else b,
        )
    head, a_step, b_step, y_step = _described(a.shape, a.strides, b.shape, b.strides, y.strides)
    factor = _ONE if is_sum else _ZERO
    status = onednn.sgemm(*head, address(a), a_step, address(b), b_step, factor, address(y), y_step)
    onednn.check("dnnl_sgemm", status)


def _conflicts(a, b):
    """Returns for each of two matrices whether its lines lie at distances for which they displace
    each other from the cache.

    Without AVX-512, oneDNN reads the matrices of most products in their places, where NumPy's BLAS
    copies them. If the elements of a column are read from as many lines, at distances of half a
    page or its multiples, oneDNN takes two or three times as long.
    """
    if load().has_avx512 or len(b) < thresholds.conflicting_lines:
        return False, False
    distances = thresholds.conflicting_distance
    return a.strides[1] % distances == 0, b.strides[0] % distances == 0


def _with_gaps(x):
    """Returns a copy of a matrix with the same lines, between which there are 64 bytes."""
    lines = x if x.strides[1] == x.itemsize else x.T
    copy = np.empty((len(lines), lines.shape[1] + 16), x.dtype)[:, :-16]
    copy[...] = lines
    return copy if lines is x else copy.T


def _is_for_primitive(a, b):
    """Returns whether the product is x W^T with many rows of x, which oneDNN's matmul primitive
    computes faster."""
    (n_rows, n), (down, right) = a.shape, b.strides
    return (
        down < right
        and n_rows > thresholds.sgemm_rows
        and n > 1
        and b.shape[1] >= thresholds.primitive_columns
        and a.strides[0] > a.strides[1]
    )


@functools.lru_cache(maxsize=4096)
def _described(a_shape, a_strides, b_shape, b_strides, y_strides):
    """Returns the arguments of a product, except addresses, in C's types."""
    (of_a, a_step), (of_b, b_step) = _lines(a_shape, a_strides), _lines(b_shape, b_strides)
    _, y_step = _lines((a_shape[0], b_shape[1]), y_strides)
    sizes = map(ctypes.c_int64, (a_shape[0], b_shape[1], a_shape[1]))
    head = (ctypes.c_char(of_a), ctypes.c_char(of_b), *sizes, _ONE)
    return head, *map(ctypes.c_int64, (a_step, b_step, y_step))


@reference.linear.kernel("onednn", lambda x, W, b: _refuse_product(x, W.T), SINGLE_OR_BFLOAT16)
def _linear(x, W, b):
    """Returns y = x W^T + b."""
    y, weights = np.empty((len(x), len(W)), x.dtype), W.T
    if x.itemsize == _BYTES_OF_BFLOAT16:
        matmul(x, weights, y, b if b is None else b.astype(np.float32))
        return y
    if _is_for_primitive(x, weights):
        matmul(x, weights, y, b)
        return y
    multiply(x, weights, y)
    if b is not None:
        y += b
    return y


def repeated_product(b: Array, n: int) -> Callable[[Array, Array], object]:
    """Returns a function that writes the products of many arrays (n, k) and ``b`` to arrays (n, m).

    If it saves time, ``b`` is rearranged now instead of in each product.

    Args:
        b: array (k, m), which does not change.
        n: the number of rows of the arrays that are multiplied by ``b``. These arrays and the
            results are contiguous and have the dtype of ``b``.

    Example:
        >>> y = np.empty((1, 2))
        >>> repeated_product(np.ones((3, 2)), 1)(np.ones((1, 3)), y)
        array([[3., 3.]])
    """
    fits = b.__class__ is np.ndarray and b.dtype == np.float32 and not config.autotune
    fits = fits and "onednn" in (config.kernels or ("onednn",)) and _rows(b) is not None
    if not fits or n * b.size <= thresholds.shared or why_absent():
        return functools.partial(_multiply_by, b)
    return packed_matmul(b, n)


def _multiply_by(b, a, y):
    return reference.product(a, b, y)


def has_threads_beside(work: int) -> bool:
    """Returns whether NumPy's BLAS would use threads for a product while oneDNN also has threads.

    Args:
        work: the number of multiplications.

    Example:
        >>> has_threads_beside(10)
        False
    """
    return work > thresholds.shared and why_absent() is None and load().threads > 1


class _Address(ctypes.c_void_p):
    """The address of an array. The object keeps the array alive."""

    def __init__(self, array):
        super().__init__(array.ctypes.data)
        self.array = array


def prepared_product(a: Array, b: Array, y: Array) -> tuple[Callable, tuple] | None:
    """Returns a function and its arguments that write the product of two matrices to ``y``.

    The function is meant for repeated calls on the same memory; it pays for arrays of any size. The
    result is None if the library is absent, or does not support the arrays, or if NumPy's BLAS is
    faster.

    Example:
        >>> prepared_product(np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 4)))  # double precision
    """
    arrays = a, b, y
    if any(x.ndim != 2 or x.dtype != np.float32 or not x.size for x in arrays):
        return None
    if why_absent() is not None:
        return None
    if _rows(a) is None or _rows(b) is None or not _is_writable(y):
        return None
    if any(_conflicts(a, b)):
        return reference.product, (a, b, y)
    onednn, work = load(), a.size * b.shape[1]
    if onednn.threads == 1 and work >= thresholds.product and _suits_blas(a, b, work, onednn):
        return None
    if _is_for_primitive(a, b):
        return prepared_matmul(a, b, y), ()
    head, a_step, b_step, y_step = _described(a.shape, a.strides, b.shape, b.strides, y.strides)
    operands = _Address(a), a_step, _Address(b), b_step
    return onednn.sgemm, (*head, *operands, _ZERO, _Address(y), y_step)
