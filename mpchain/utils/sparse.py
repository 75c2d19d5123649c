"""Sparse matrices as lists of values, rows and columns of their elements (the COO format)."""

from collections.abc import Sequence

import numpy as np

from mpchain.backends.cuda import get_array_module, is_gpu_array, scatter_add
from mpchain.typing import Array
from mpchain.variable import Variable, as_array


class CooMatrix:
    """A sparse matrix, or a batch of sparse matrices. Elements with equal positions are added.

    Args:
        data: array (n,) of the elements, or (B, n).
        row, col: arrays of integers, of the shape of ``data``: the positions of the elements. If a
            matrix of a batch has fewer than n elements, the row and column of the missing elements
            are -1.
        shape: the numbers of rows and columns of a matrix.
        order: 'C' if the elements are sorted by row and then column, 'F' if by column and
            then row, else 'other'; None determines it from the positions.
        requires_grad: whether the elements get a gradient, if ``data`` is not a Variable.

    Attributes:
        data (Variable), row, col, shape, order: the arguments.

    Raises:
        ValueError: the arrays do not match each other, or a position is outside the matrix.

    Example:
        >>> data, row, col = np.array([2.0, 5.0]), np.array([0, 1]), np.array([1, 0])
        >>> mpchain.utils.CooMatrix(data, row, col, (2, 2)).to_dense()
        array([[0., 2.],
               [5., 0.]])
    """

    def __init__(
        self,
        data: Variable | Array,
        row: Array,
        col: Array,
        shape: Sequence[int],
        order: str | None = None,
        requires_grad: bool = False,
    ):
        shapes = {tuple(x.shape) for x in (data, row, col)}
        if len(shapes) != 1 or data.ndim not in (1, 2):
            raise ValueError(
                "CooMatrix: data, row and col must have the same shape, with 1 or 2 axes, but "
                f"have {data.shape}, {row.shape} and {col.shape}"
            )
        if len(shape) != 2:
            raise ValueError(f"CooMatrix: shape must have 2 elements, but is {shape}")
        for name, places, size in (("row", row, shape[0]), ("col", col, shape[1])):
            if places.size and not -1 <= int(places.min()) <= int(places.max()) < size:
                raise ValueError(
                    f"CooMatrix: {name} must be at least -1 and below {size}, but its values are "
                    f"from {places.min()} to {places.max()}"
                )
        if order not in ("C", "F", "other", None):
            raise ValueError(
                f"CooMatrix: order must be 'C', 'F', 'other' or None, but is {order!r}"
            )
        is_variable = isinstance(data, Variable)
        self.data = data if is_variable else Variable(data, requires_grad=requires_grad)
        self.row, self.col = row, col
        self.shape = tuple(shape)
        self.order = get_order(row, col) if order is None else order

    def to_dense(self) -> Array:
        """Returns an array (rows, columns), or (B, rows, columns)."""
        data = as_array(self.data)
        y = get_array_module(data).zeros((*data.shape[:-1], *self.shape), data.dtype)
        for matrix in range(len(data)) if data.ndim == 2 else [...]:
            filled = self.row[matrix] >= 0
            places = self.row[matrix][filled], self.col[matrix][filled]
            _add_at(y[matrix], places, data[matrix][filled])
        return y


def _add_at(array, places, values):
    if is_gpu_array(array):
        scatter_add(array, places, values)
    else:
        np.add.at(array, places, values)


def to_coo(x: Array, ldnz: int | None = None, requires_grad: bool = False) -> CooMatrix:
    """Converts a dense matrix, or a batch of dense matrices, to a CooMatrix.

    Args:
        x: array (rows, columns), or (B, rows, columns).
        ldnz: minimum number of stored elements; missing elements are padding.
        requires_grad: whether the elements get a gradient.

    Returns:
        a CooMatrix, whose elements are sorted by row.

    Raises:
        ValueError: ``x`` does not have 2 or 3 axes.

    Example:
        >>> x = mpchain.utils.to_coo(np.array([[0.0, 2.0], [5.0, 0.0]]))
        >>> x.data.array, x.row, x.col
        (array([2., 5.]), array([0, 1], dtype=int32), array([1, 0], dtype=int32))
    """
    if x.ndim not in (2, 3):
        raise ValueError(f"to_coo: x must have 2 or 3 axes, but has shape {x.shape}")
    xp = get_array_module(x)
    matrices = x[None] if x.ndim == 2 else x
    places = [xp.nonzero(matrix) for matrix in matrices]
    shape = len(matrices), max([ldnz or 0, *(len(rows) for rows, _ in places)])
    data = xp.zeros(shape, x.dtype)
    row, col = xp.full(shape, -1, np.int32), xp.full(shape, -1, np.int32)
    for i, (rows, columns) in enumerate(places):
        n = len(rows)
        data[i, :n], row[i, :n], col[i, :n] = matrices[i][rows, columns], rows, columns
    if x.ndim == 2:
        data, row, col = data[0], row[0], col[0]
    return CooMatrix(data, row, col, x.shape[-2:], "C", requires_grad)


def get_order(row: Array, col: Array) -> str:
    """Returns the order in which a list of positions is sorted.

    Args:
        row, col: arrays of integers of the same shape. The last axis lists the positions; the end
            of the list may be padded with -1.

    Returns:
        str: 'C' if by row and then column, 'F' if by column and then row, else 'other'.

    Example:
        >>> mpchain.utils.get_order(np.array([0, 0, 1]), np.array([0, 2, 1]))
        'C'
    """
    if _is_sorted(row, col):
        return "C"
    return "F" if _is_sorted(col, row) else "other"


def _is_sorted(major, minor):
    step = major[..., 1:] - major[..., :-1]
    follows = (step > 0) | (step == 0) & (minor[..., 1:] >= minor[..., :-1])
    return bool((follows | (major[..., 1:] < 0)).all())
