"""Resampling of axes by matrices, for interpolation, means of bins, and padding."""

import functools
import math

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.functions.declaring.declaration import differentiable
from mpchain.typing import Array, Input, Output
from mpchain.variable import Variable


@differentiable(lambda g, matrix, axis: map_axis.on(g, matrix.T, axis))
def map_axis(x: Input, matrix: Array, axis: int) -> Output:
    """Applies a matrix along an axis: y[..., i, ...] = sum over j of matrix[i, j] x[..., j, ...].

    Args:
        x: Variable or array, floating point.
        matrix: NumPy array (m, x.shape[axis]), a constant.
        axis: the axis, counted from the first.

    Returns:
        Variable of the shape of ``x``, except for ``m`` elements along the axis.

    Example:
        >>> map_axis(np.ones((2, 3)), np.ones((4, 3)), 1).shape
        (2, 4)
    """
    assert not isinstance(x, Variable)  # the body of a declared function always receives arrays
    shape = x.shape
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    wide = np.promote_types(x.dtype, np.float32)
    wide_x, matrix = x.astype(wide, copy=False), get_array_module(x).asarray(matrix, wide)
    if after == 1:
        y = wide_x.reshape(before, shape[axis]) @ matrix.T
    else:
        y = matrix @ wide_x.reshape(before, shape[axis], after)
    y = y.reshape(*shape[:axis], len(matrix), *shape[axis + 1 :])
    return y.astype(x.dtype, copy=False)


def _matrix(size, indexes, weights):
    """Returns a matrix (n, size) of zeros to which weights[i, t] is added in row i and column
    indexes[i, t]."""
    matrix = np.zeros((len(indexes), size))
    np.add.at(matrix, (np.arange(len(indexes))[:, None], indexes), weights)
    return matrix


def _positions(size, out_size, scale, align_corners):
    """Returns the positions of the output elements on the input axis."""
    if align_corners:
        return np.linspace(0, size - 1, out_size)
    return (np.arange(out_size) + 0.5) / scale - 0.5


@functools.lru_cache(maxsize=256)
def linear_matrix(size: int, out_size: int, scale: float, align_corners: bool) -> Array:
    """Returns the matrix of linear interpolation; positions are clipped to the axis.

    Args:
        size, out_size: number of elements of the input axis and of the output axis.
        scale: the factor on the number of elements; not used if ``align_corners`` is True.
        align_corners: whether to align the centers of the first and last elements of both axes; if
            False, the outer borders of these elements are aligned.

    Example:
        >>> linear_matrix(2, 3, 1.5, True)
        array([[1. , 0. ],
               [0.5, 0.5],
               [0. , 1. ]])
    """
    positions = _positions(size, out_size, scale, align_corners).clip(0, size - 1)
    first = np.floor(positions).astype(np.intp)
    rest = positions - first
    indexes = np.stack([first, np.minimum(first + 1, size - 1)], 1)
    return _matrix(size, indexes, np.stack([1 - rest, rest], 1))


@functools.lru_cache(maxsize=256)
def cubic_matrix(size: int, out_size: int, scale: float, align_corners: bool) -> Array:
    """Returns the matrix of cubic convolution (a = -0.75); see :func:`linear_matrix`.

    Example:
        >>> cubic_matrix(4, 8, 2.0, False).shape
        (8, 4)
    """
    positions = _positions(size, out_size, scale, align_corners)
    first = np.floor(positions)
    taps = first[:, None] + np.arange(-1, 3)
    distance = abs(positions[:, None] - taps)
    a = -0.75
    inner = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    outer = ((distance - 5) * distance + 8) * distance * a - 4 * a
    weights = np.where(distance <= 1, inner, np.where(distance < 2, outer, 0))
    return _matrix(size, taps.clip(0, size - 1).astype(np.intp), weights)


@functools.lru_cache(maxsize=256)
def bins_matrix(size: int, out_size: int) -> Array:
    """Returns the matrix of means over the bins of adaptive pooling.

    Example:
        >>> bins_matrix(4, 2)
        array([[0.5, 0.5, 0. , 0. ],
               [0. , 0. , 0.5, 0.5]])
    """
    matrix = np.zeros((out_size, size))
    for row, (begin, end) in zip(matrix, bins(size, out_size)):
        row[begin:end] = 1 / (end - begin)
    return matrix


def bins(size: int, out_size: int) -> list[tuple[int, int]]:
    """Returns a list of pairs (begin, end), the bins of adaptive pooling. Neighboring bins may
    overlap by one element.

    Example:
        >>> bins(5, 2)
        [(0, 3), (2, 5)]
    """
    return [(i * size // out_size, -((-i - 1) * size // out_size)) for i in range(out_size)]


@functools.lru_cache(maxsize=256)
def index_matrix(size: int, indexes: tuple[int, ...]) -> Array:
    """Returns the matrix that selects the elements ``indexes`` of an axis of ``size`` elements.

    Example:
        >>> index_matrix(3, (2, 0))
        array([[0., 0., 1.],
               [1., 0., 0.]])
    """
    return np.eye(size)[list(indexes)]
