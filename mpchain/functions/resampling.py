"""Axes resampled by matrices: interpolation, averaging of bins and padding, all linear maps."""

import functools
import math

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.functions.declaration import differentiable


@differentiable(lambda g, matrix, axis: map_axis.on(g, matrix.T, axis))
def map_axis(x, matrix, axis):
    """Applies a matrix along an axis: y[..., i, ...] = sum of matrix[i, j] x[..., j, ...] over j.

    Args:
        x: Variable or array, floating point.
        matrix: NumPy array (m, x.shape[axis]), a constant.
        axis (int): the axis, counted from the first.

    Returns:
        Variable of the shape of ``x`` but for ``m`` elements along the axis.
    """
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
    """A matrix that has, in row i, weights[i, t] in columns indexes[i, t]."""
    matrix = np.zeros((len(indexes), size))
    np.add.at(matrix, (np.arange(len(indexes))[:, None], indexes), weights)
    return matrix


def _positions(size, out_size, scale, align_corners):
    """Where on the axis each element of the output lies."""
    if align_corners:
        return np.linspace(0, size - 1, out_size)
    return (np.arange(out_size) + 0.5) / scale - 0.5


@functools.lru_cache(maxsize=256)
def linear_matrix(size, out_size, scale, align_corners):
    """The matrix of linear interpolation between neighbors; beyond the ends, these are taken.

    Args:
        size, out_size (int): elements before and after.
        scale (float): how much finer the new elements lie.
        align_corners (bool): the first and last elements stay where they are; otherwise elements
            are cells, and the borders of the axis stay.
    """
    positions = _positions(size, out_size, scale, align_corners).clip(0, size - 1)
    first = np.floor(positions).astype(np.intp)
    rest = positions - first
    indexes = np.stack([first, np.minimum(first + 1, size - 1)], 1)
    return _matrix(size, indexes, np.stack([1 - rest, rest], 1))


@functools.lru_cache(maxsize=256)
def cubic_matrix(size, out_size, scale, align_corners):
    """The matrix of cubic convolution (a = -0.75); arguments as of :func:`linear_matrix`."""
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
def bins_matrix(size, out_size):
    """The matrix of means over the bins of adaptive pooling."""
    matrix = np.zeros((out_size, size))
    for row, (begin, end) in zip(matrix, bins(size, out_size)):
        row[begin:end] = 1 / (end - begin)
    return matrix


def bins(size, out_size):
    """Where the bins of adaptive pooling begin and end; they may overlap by one element."""
    return [(i * size // out_size, -((-i - 1) * size // out_size)) for i in range(out_size)]


@functools.lru_cache(maxsize=256)
def index_matrix(size, indexes):
    """The matrix that picks elements; ``indexes`` is a tuple of integers."""
    return np.eye(size)[list(indexes)]
