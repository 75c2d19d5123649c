"""Tests products with sparse matrices, and sparse matrices."""

import functools

import numpy as np
import pytest

import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.sparse import CooMatrix, get_order, to_coo
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

# One position occurs twice, and positions are unsorted.
_ROW, _COL = np.array([0, 2, 1, 0, 2]), np.array([3, 0, 1, 3, 2])
_ROWS, _COLS = np.array([[0, 2, 1], [1, -1, -1]]), np.array([[3, 0, 1], [2, -1, -1]])


def _dense(data):
    """Returns the matrices of 3 rows and 4 columns, as PyTorch makes them."""

    def matrix(values, row, col):
        places = torch.as_tensor(row[row >= 0]), torch.as_tensor(col[row >= 0])
        zeros = torch.zeros(3, 4, dtype=values.dtype)
        return zeros.index_put(places, values[row >= 0], accumulate=True)

    if data.ndim == 1:
        return matrix(data, _ROW, _COL)
    return torch.stack([matrix(*one) for one in zip(data, _ROWS, _COLS)])


def _sparse(data):
    row, col = (_ROW, _COL) if data.ndim == 1 else (_ROWS, _COLS)
    return CooMatrix(data, data.xp.asarray(row), data.xp.asarray(col), (3, 4))


def _row(name, data, x, **transposed):
    ta, tb = transposed.get("transa"), transposed.get("transb")

    def on_left(data, x):
        return F.sparse_matmul(_sparse(data), x, **transposed)

    def reference(data, x):
        a = _dense(data)
        return (a.mT if ta else a) @ (x.mT if tb else x)

    return row(name, on_left, reference, data, x, orders=3)


def _row_on_right(name, data, x, **transposed):
    ta, tb = transposed.get("transa"), transposed.get("transb")

    def reference(data, x):
        b = _dense(data)
        return (x.mT if ta else x) @ (b.mT if tb else b)

    function = functools.partial(F.sparse_matmul, **transposed)
    return row(name, lambda data, x: function(x, _sparse(data)), reference, data, x)


TABLE = [
    _row("sparse dense", (5,), (4, 2)),
    _row("sparse T dense", (5,), (3, 2), transa=True),
    _row("sparse dense T", (5,), (2, 4), transb=True),
    _row("batch", (2, 3), (2, 4, 2)),
    _row("batch T", (2, 3), (2, 2, 3), transa=True, transb=True),
    _row_on_right("dense sparse", (5,), (2, 3)),
    _row_on_right("dense T sparse T", (5,), (4, 2), transa=True, transb=True),
    _row_on_right("dense batch", (2, 3), (2, 2, 3)),
]

test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    # products_of_rows is the derivative of the product by the elements of the matrix.
    assert uncovered(TABLE, "sparse") == {"products_of_rows"}


def test_to_coo_and_back():
    x = np.array([[0, 2, 0], [3, 0, 1]], np.float32)
    matrix = to_coo(x)
    assert matrix.data.array.tolist() == [2, 3, 1] and not matrix.data.requires_grad
    assert matrix.row.tolist() == [0, 1, 1] and matrix.col.tolist() == [1, 0, 2]
    assert matrix.row.dtype == np.int32 and matrix.shape == (2, 3) and matrix.order == "C"
    np.testing.assert_array_equal(matrix.to_dense(), x)
    padded = to_coo(x, 5, requires_grad=True)
    assert padded.data.array.tolist() == [2, 3, 1, 0, 0] and padded.row.tolist()[3:] == [-1, -1]
    assert padded.data.requires_grad
    np.testing.assert_array_equal(padded.to_dense(), x)


def test_a_batch_to_coo_and_back():
    x = np.array([[[0, 2, 0], [3, 0, 1]], [[0, 0, 0], [0, 0, 1]]], np.float32)
    matrix = to_coo(x)
    assert matrix.data.array.tolist() == [[2, 3, 1], [1, 0, 0]]
    assert matrix.row.tolist() == [[0, 1, 1], [1, -1, -1]]
    np.testing.assert_array_equal(matrix.to_dense(), x)


def test_elements_named_twice_add_up():
    matrix = CooMatrix(np.array([1.0, 2.0]), np.array([0, 0]), np.array([1, 1]), (2, 2))
    assert matrix.to_dense().tolist() == [[0, 3], [0, 0]]


@pytest.mark.parametrize(
    "row, col, order",
    [
        ([0, 0, 1], [1, 2, 0], "C"),
        ([1, 0, 1], [0, 2, 2], "F"),
        ([1, 0], [2, 1], "other"),
        ([0, 1], [0, 1], "C"),
        ([0, 0], [1, 1], "C"),
        ([0, 0], [2, 1], "other"),
        ([[0, 1, -1], [0, 0, 1]], [[1, 0, -1], [1, 2, 0]], "C"),
    ],
)
def test_get_order(row, col, order):
    assert get_order(np.array(row), np.array(col)) == order
    data = np.ones(np.shape(row))
    assert CooMatrix(data, np.array(row), np.array(col), (3, 3)).order == order
    assert CooMatrix(data, np.array(row), np.array(col), (3, 3), "F").order == "F"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((np.ones(3), np.zeros(2, int), np.zeros(3, int), (2, 2)), r"same shape.*\(3,\), \(2,\)"),
        ((np.array(1.0), np.array(0), np.array(0), (2, 2)), r"1 or 2 axes.*\(\)"),
        ((np.ones(1), np.zeros(1, int), np.zeros(1, int), (2, 2, 2)), r"shape must .*\(2, 2, 2\)"),
        ((np.ones(1), np.full(1, 2), np.zeros(1, int), (2, 2)), "row must be .* below 2.*2 to 2"),
        ((np.ones(1), np.zeros(1, int), np.full(1, -2), (2, 2)), "col must be at least -1.*-2"),
        ((np.ones(1), np.zeros(1, int), np.zeros(1, int), (2, 2), "X"), "order must .* 'X'"),
    ],
)
def test_matrices_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match="CooMatrix: .*" + message):
        CooMatrix(*arguments)


def test_to_coo_needs_matrices():
    with pytest.raises(ValueError, match=r"to_coo: x must have 2 or 3 axes.*\(3,\)"):
        to_coo(np.ones(3))


def test_wrong_operands():
    a, b = to_coo(np.eye(3, 4)), np.ones((4, 2))
    with pytest.raises(ValueError, match="one of a and b must be a CooMatrix, but both are"):
        F.sparse_matmul(a, a)
    with pytest.raises(ValueError, match="one of a and b must be a CooMatrix, but neither is"):
        F.sparse_matmul(b, b)
    with pytest.raises(InvalidType, match=r"sparse_matmul: batches and the inner .*\(3, 2\)"):
        F.sparse_matmul(a, b[:3])
    with pytest.raises(InvalidType, match=r"sparse_matmul: b must have 2 or 3 axes.*\(4,\)"):
        F.sparse_matmul(a, b[:, 0])
    with pytest.raises(InvalidType, match=r"sparse_matmul: a must have 2 or 3 axes.*\(4,\)"):
        F.sparse_matmul(b[:, 0], a)
    with pytest.raises(InvalidType, match=r"sparse_matmul: .* both or neither must be a batch"):
        F.sparse_matmul(a, b[None])
    with pytest.raises(InvalidType, match=r"sparse_matmul: .* floating point.*int64"):
        F.sparse_matmul(a, b.astype(np.int64))


def test_empty_matrices():
    a = to_coo(np.zeros((3, 4)), requires_grad=True)
    y = F.sparse_matmul(a, Variable(np.ones((4, 2))))
    F.sum(y).backward()
    assert y.array.tolist() == [[0, 0]] * 3 and a.data.grad.shape == (0,)


def test_half_precision_sums_in_single():
    a = to_coo(np.ones((1, 4096), np.float16), requires_grad=True)
    x = Variable(np.ones((4096, 1), np.float16))
    y = F.sparse_matmul(a, x)
    assert y.dtype == np.float16 and y.array.tolist() == [[4096]]
    y.backward()
    assert a.data.grad.dtype == x.grad.dtype == np.float16
