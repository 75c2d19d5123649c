"""Products with sparse matrices."""

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.functions.array import reshape, swapaxes
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.indexing import add_at, get_item
from mpchain.observers import one_call
from mpchain.typing import Input
from mpchain.utils.sparse import CooMatrix
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_variable

# A product is the gradient of the trilinear form that sums data[i] <y[row[i]], x[col[i]]>, with
# respect to y, data or x. By symmetry, the matrix and its transpose share a declaration.


@differentiable(
    lambda g, x, row, col: _products_of_rows.on(g, x, row, col),
    lambda g, data, row, col, x_shape: _sums_of_rows.on(data, g, col, row, x_shape[0]),
)
def _sums_of_rows(data, x, row, col, n):
    """Returns a matrix of ``n`` rows in which data[i] x[col[i]] is added to the row with the index
    row[i], for all i."""
    return one_call(_summed_rows, data, x, row, col, n)


def _summed_rows(data, x, row, col, n):
    wide = np.float32 if x.dtype == np.float16 else np.result_type(data, x)
    terms = x[col].astype(wide, copy=False) * data[:, None]
    y = get_array_module(x).zeros((n, x.shape[1]), wide)
    add_at(y, row, terms)
    return y.astype(np.result_type(data, x), copy=False)


@differentiable(
    lambda g, x, row, col, y_shape: _sums_of_rows.on(g, x, row, col, y_shape[0]),
    lambda g, y, row, col, x_shape: _sums_of_rows.on(g, y, col, row, x_shape[0]),
)
def _products_of_rows(y, x, row, col):
    """Returns the inner products of y[row[i]] and x[col[i]]."""
    wide = np.float32 if x.dtype == np.float16 else None
    terms = y[row] * x[col]
    return terms.sum(axis=1, dtype=wide).astype(terms.dtype, copy=False)


def _product(matrix, is_transposed, x, operands):
    data, row, col = matrix.data, matrix.row, matrix.col
    n_rows, n_columns = matrix.shape
    if is_transposed:
        n_rows, n_columns, row, col = n_columns, n_rows, col, row
    fits = x.ndim == data.ndim + 1 and is_floating(x.dtype, data.dtype)
    rule = "both operands must be floating point, and both or neither must be a batch"
    check(fits, "sparse_matmul", rule, dense=x, elements=data)
    fits = x.shape[:-2] == data.shape[:-1] and x.shape[-2] == n_columns
    rule = "batches and the inner sizes must be equal"
    check(fits, "sparse_matmul", rule, dense=x, elements=data, **operands)
    shape = (*x.shape[:-2], n_rows, x.shape[-1])
    filled = row >= 0
    if data.ndim == 2:
        # A batch is treated as one block-diagonal matrix.
        block = get_array_module(row).arange(len(row))[:, None]
        row, col = row + block * n_rows, col + block * n_columns
        n_rows *= len(x)
        x = reshape(x, (len(x) * n_columns, x.shape[-1]))
    data = get_item(data, filled)  # the vector holds the values without padding
    return reshape(_sums_of_rows(data, x, row[filled], col[filled], n_rows), shape)


def sparse_matmul(
    a: Input | CooMatrix, b: Input | CooMatrix, transa: bool = False, transb: bool = False
) -> Variable:
    """Product of a sparse and a dense matrix, in either order, or products of batches of such
    matrices.

    Args:
        a, b: one operand is a :class:`mpchain.utils.sparse.CooMatrix`; the other operand is a
            floating-point Variable or array (n, m) or (B, n, m).
        transa, transb: whether to transpose ``a`` or ``b`` first.

    Returns:
        Variable: the product, a dense matrix or a batch of dense matrices.

    Raises:
        InvalidType: sizes do not match, or an operand is not floating point.
        ValueError: both operands are sparse, or neither is.

    Example:
        >>> a = mpchain.utils.to_coo(np.array([[2.0, 0.0], [0.0, 3.0]]))
        >>> F.sparse_matmul(a, np.ones((2, 2))).array
        array([[2., 2.],
               [3., 3.]])
    """
    kinds = [isinstance(x, CooMatrix) for x in (a, b)]
    if kinds[0] == kinds[1]:
        count = "both are" if kinds[0] else "neither is"
        raise ValueError(f"sparse_matmul: one of a and b must be a CooMatrix, but {count}")
    shapes = {"a_shape": a.shape, "b_shape": b.shape, "transa": transa, "transb": transb}
    if kinds[0]:
        x = as_variable(b)
        check(x.ndim in (2, 3), "sparse_matmul", "b must have 2 or 3 axes", b=x)
        return _product(a, transa, swapaxes(x, -1, -2) if transb else x, shapes)
    x = as_variable(a)
    check(x.ndim in (2, 3), "sparse_matmul", "a must have 2 or 3 axes", a=x)
    y = _product(b, not transb, x if transa else swapaxes(x, -1, -2), shapes)
    return swapaxes(y, -1, -2)
