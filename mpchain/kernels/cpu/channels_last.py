"""Arrays (N, C, *size) in memory as (N, *size, C): the channels of a pixel lie side by side.

oneDNN's convolutions read and write this layout without rearranging anything, so they return it.
To NumPy such an array has the same shape with other strides: elementwise functions keep the layout,
all other functions compute the same values, and ``np.ascontiguousarray`` undoes the layout. Kernels
that work through memory ask :func:`is_last`. "Plain" is the order N, C, *size.
"""

from typing import TypeGuard

import numpy as np

from mpchain.typing import Array, DTypeLike

TO_LAST = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
"""The axes in the order of memory, keyed by the number of axes."""

_FROM_LAST = {3: (0, 2, 1), 4: (0, 3, 1, 2)}
# NumPy's new arrays copy the axis order of a given array, even if sizes differ.
_LIKE = {n: np.empty(range(2, 2 + n)).transpose(axes) for n, axes in _FROM_LAST.items()}


def is_last(x: Array) -> bool:
    """Returns whether memory holds the channels of ``x`` side by side, without gaps.

    True also for arrays with one channel or one pixel, which are plain at the same time.

    Example:
        >>> x = np.zeros((2, 3, 4, 5))
        >>> is_last(x), is_last(np.zeros((2, 4, 5, 3)).transpose(0, 3, 1, 2))
        (False, True)
    """
    return x.ndim in TO_LAST and x.transpose(TO_LAST[x.ndim]).flags.c_contiguous


def is_only_last(x: Array) -> bool:
    """Returns whether memory holds the channels side by side, and is not plain.

    Example:
        >>> is_only_last(np.zeros((2, 1, 4, 5)))
        False
    """
    return not x.flags.c_contiguous and is_last(x)


def empty_last(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Returns a new array of three or four axes whose channels lie side by side in memory.

    Example:
        >>> x = empty_last((2, 3, 4, 5), np.float32)
        >>> x.shape, is_last(x)
        ((2, 3, 4, 5), True)
    """
    return np.empty_like(_LIKE[len(shape)], dtype, shape=shape)


def empty(shape: tuple[int, ...], dtype: DTypeLike, *, out: np.ndarray | None = None) -> np.ndarray:
    """Returns memory for the result of a kernel: the planned memory if it fits, or a new array.

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
        like: if it :func:`is_only_last`, channels lie side by side; else the result is plain.

    Example:
        >>> is_last(result((2, 3, 8), np.float32, like=empty_last((2, 3, 4), np.float32)))
        True
    """
    return (result_last if is_only_last(like) else empty)(shape, dtype, out=out)


def result_last(
    shape: tuple[int, ...], dtype: DTypeLike, *, out: np.ndarray | None = None
) -> np.ndarray:
    """Returns memory for a kernel's result whose channels lie side by side; see :func:`empty`.

    Example:
        >>> is_last(result_last((2, 3, 4), np.float32))
        True
    """
    return out if _fits(out, shape, dtype) and is_last(out) else empty_last(shape, dtype)


def rows(x: np.ndarray) -> np.ndarray:
    """Returns ``x`` as a matrix (pixels, channels): a view if :func:`is_last`, or a copy.

    Example:
        >>> rows(np.zeros((2, 3, 4, 5))).shape
        (40, 3)
    """
    return x.transpose(TO_LAST[x.ndim]).reshape(-1, x.shape[1])


def as_last(x: np.ndarray) -> np.ndarray:
    """Returns ``x``, or a copy whose channels lie side by side.

    Example:
        >>> is_last(as_last(np.zeros((2, 3, 4, 5))))
        True
    """
    if is_last(x):
        return x
    y = empty_last(x.shape, x.dtype)
    y[...] = x
    return y


def reordered(x: np.ndarray) -> np.ndarray:
    """Returns a view of a copy whose channels lie side by side, using calls that recorders see.

    Example:
        >>> is_last(reordered(np.zeros((2, 3, 4, 5))))
        True
    """
    return x.transpose(TO_LAST[x.ndim]).copy().transpose(_FROM_LAST[x.ndim])


def in_memory(x: np.ndarray) -> np.ndarray:
    """Returns a 1-D view of an array without gaps, with its elements in memory order.

    Example:
        >>> in_memory(as_last(np.array([[[1, 2], [3, 4]]])))
        array([1, 3, 2, 4])
    """
    return x.reshape(-1) if x.flags.c_contiguous else x.transpose(TO_LAST[x.ndim]).reshape(-1)
