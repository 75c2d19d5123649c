"""Arrays (N, C, *size) that are stored as (N, *size, C), so that the channels of a pixel are
adjacent in memory.

oneDNN's convolutions read and write this layout without rearranging arrays, so their results have
the layout. In NumPy such an array has the same shape with other strides: elementwise functions keep
the layout, all other functions compute the same values, and ``np.ascontiguousarray`` returns an
array in the order N, C, *size, which is called plain. Kernels that read memory in order call
:func:`is_last` to learn the layout.
"""

import math
from typing import TypeGuard

import numpy as np

from mpchain.kernels.cpu.transposing import Transposition
from mpchain.typing import Array, DTypeLike

TO_LAST = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
"""For each number of axes, the axes in the order of memory."""

_FROM_LAST = {3: (0, 2, 1), 4: (0, 3, 1, 2)}
_transpose = Transposition()
# NumPy's new arrays copy the axis order of a given array, even if sizes differ.
_LIKE = {n: np.empty(range(2, 2 + n)).transpose(axes) for n, axes in _FROM_LAST.items()}


def is_last(x: Array) -> bool:
    """Returns whether the channels of each pixel of ``x`` are adjacent in memory, without gaps.

    The result is True also for plain arrays with one channel or one pixel.

    Example:
        >>> x = np.zeros((2, 3, 4, 5))
        >>> is_last(x), is_last(np.zeros((2, 4, 5, 3)).transpose(0, 3, 1, 2))
        (False, True)
    """
    return x.ndim in TO_LAST and x.transpose(TO_LAST[x.ndim]).flags.c_contiguous


def is_only_last(x: Array) -> bool:
    """Returns whether :func:`is_last` is True and the array is not plain.

    Example:
        >>> is_only_last(np.zeros((2, 1, 4, 5)))
        False
    """
    return not x.flags.c_contiguous and is_last(x)


def empty_last(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Returns a new array of three or four axes, whose channels are adjacent in memory.

    Example:
        >>> x = empty_last((2, 3, 4, 5), np.float32)
        >>> x.shape, is_last(x)
        ((2, 3, 4, 5), True)
    """
    return np.empty_like(_LIKE[len(shape)], dtype, shape=shape)


def empty(shape: tuple[int, ...], dtype: DTypeLike, *, out: np.ndarray | None = None) -> np.ndarray:
    """Returns memory for the result of a kernel: ``out`` if it has the shape and dtype of the
    result, else a new array.

    Args:
        shape, dtype: the shape and dtype of the result.
        out: the memory that a captured step planned for the result, if any.

    Example:
        >>> empty((2, 3), np.float32).shape
        (2, 3)
    """
    return out if _fits(out, shape, dtype) and out.flags.c_contiguous else np.empty(shape, dtype)


def _fits(out, shape, dtype) -> TypeGuard[np.ndarray]:
    return out is not None and out.shape == shape and out.dtype == dtype


def result(
    shape: tuple[int, ...], dtype: DTypeLike, like: np.ndarray, *, out: np.ndarray | None = None
) -> np.ndarray:
    """Returns memory for the result of a kernel, in the layout of another array; see :func:`empty`.

    Args:
        like: if :func:`is_only_last` is True for this array, the result has channels last; else the
            result is plain.

    Example:
        >>> is_last(result((2, 3, 8), np.float32, like=empty_last((2, 3, 4), np.float32)))
        True
    """
    return (result_last if is_only_last(like) else empty)(shape, dtype, out=out)


def result_last(
    shape: tuple[int, ...], dtype: DTypeLike, *, out: np.ndarray | None = None
) -> np.ndarray:
    """Returns memory for a kernel's result with channels last; see :func:`empty`.

    Example:
        >>> is_last(result_last((2, 3, 4), np.float32))
        True
    """
    return out if _fits(out, shape, dtype) and is_last(out) else empty_last(shape, dtype)


def rows(x: np.ndarray) -> np.ndarray:
    """Returns ``x`` as a matrix (pixels, channels): a view if :func:`is_last` is True, else a copy.

    Example:
        >>> rows(np.zeros((2, 3, 4, 5))).shape
        (40, 3)
    """
    return x.transpose(TO_LAST[x.ndim]).reshape(-1, x.shape[1])


def as_last(x: np.ndarray) -> np.ndarray:
    """Returns ``x`` if it has channels last, else a copy with channels last.

    Example:
        >>> is_last(as_last(np.zeros((2, 3, 4, 5))))
        True
    """
    if is_last(x):
        return x
    y = empty_last(x.shape, x.dtype)
    if x.flags.c_contiguous:
        n, c, size = *x.shape[:2], math.prod(x.shape[2:])
        _transpose(x.reshape(n, c, size), y.transpose(TO_LAST[x.ndim]).reshape(n, size, c))
    else:
        y[...] = x
    return y


def as_plain(x: np.ndarray) -> np.ndarray:
    """Returns ``x`` if it is C-contiguous, else a copy that is.

    Example:
        >>> as_plain(empty_last((2, 3, 4, 5), np.float32)).flags.c_contiguous
        True
    """
    if not is_only_last(x):
        return np.ascontiguousarray(x)
    y = np.empty(x.shape, x.dtype)
    n, c, size = *x.shape[:2], math.prod(x.shape[2:])
    _transpose(x.transpose(TO_LAST[x.ndim]).reshape(n, size, c), y.reshape(n, c, size))
    return y


def reordered(x: np.ndarray) -> np.ndarray:
    """Returns a view of a copy, which has channels last, by NumPy calls that recorders see.

    Example:
        >>> is_last(reordered(np.zeros((2, 3, 4, 5))))
        True
    """
    return x.transpose(TO_LAST[x.ndim]).copy().transpose(_FROM_LAST[x.ndim])


def in_memory(x: np.ndarray) -> np.ndarray:
    """Returns a 1-D view of an array without gaps; the elements are in memory order.

    Example:
        >>> in_memory(as_last(np.array([[[1, 2], [3, 4]]])))
        array([1, 3, 2, 4])
    """
    return x.reshape(-1) if x.flags.c_contiguous else x.transpose(TO_LAST[x.ndim]).reshape(-1)
