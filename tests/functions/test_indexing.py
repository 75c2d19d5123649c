"""Tests functions that select elements by indices, and that put elements back."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

_ORDER = np.array([2, 0, 3, 1])
_INVERSE = np.argsort(_ORDER)
_T = np.array([1, 0, -1])


def _torch_scatter_add(indexes):
    def scatter_add(a, b):
        return torch.index_put(a, tuple(map(torch.as_tensor, indexes)), b, accumulate=True)

    return scatter_add


TABLE = [
    row("get_item", lambda x: x[1:, ::2], lambda x: x[1:, ::2], (3, 4)),
    row("get_item index", lambda x: x[:, 1], lambda x: x[:, 1], (3, 4)),
    row("get_item repeated", lambda x: x[[0, 2, 0]], lambda x: x[[0, 2, 0]], (3, 4)),
    row(
        "get_item mask",
        lambda x: x[np.array([True, False, True])],
        lambda x: x[torch.tensor([True, False, True])],
        (3, 4),
    ),
    row("permutate", lambda x: F.permutate(x, _ORDER), lambda x: x[_ORDER], (4, 2)),
    row("permutate axis", lambda x: F.permutate(x, _ORDER, -1), lambda x: x[:, _ORDER], (2, 4)),
    row(
        "permutate inv",
        lambda x: F.permutate(x, _ORDER, axis=1, inv=True),
        lambda x: x[:, _INVERSE],
        (2, 4),
    ),
    row(
        "select_item",
        lambda x: F.select_item(x, _T),
        lambda x: x[torch.arange(3), torch.as_tensor(_T)],
        (3, 2),
    ),
    row(
        "scatter_add",
        lambda a, b: F.scatter_add(a, [0, 2, 0], b),
        _torch_scatter_add([np.array([0, 2, 0])]),
        (3, 2),
        (3, 2),
    ),
    row(
        "scatter_add pairs",
        lambda a, b: F.scatter_add(a, ([0, 1, 1], [1, 0, 0]), b),
        _torch_scatter_add([np.array([0, 1, 1]), np.array([1, 0, 0])]),
        (2, 3),
        (3,),
    ),
    row(
        "scatter_add slices",
        lambda a, b: F.scatter_add(a, (slice(None), slice(1, None)), b),
        lambda a, b: a + torch.nn.functional.pad(b, (1, 0)),
        (2, 3),
        (2, 2),
    ),
    row(
        "scatter_add list with a slice",
        lambda a, b: F.scatter_add(a, [slice(None), 1], b),
        lambda a, b: a + torch.stack([0 * b, b, 0 * b], dim=1),
        (2, 3),
        (2,),
    ),
    row("diagonal", F.diagonal, lambda x: x.diagonal(), (3, 4)),
    row("diagonal above", lambda x: F.diagonal(x, 2), lambda x: x.diagonal(2), (3, 4)),
    row(
        "diagonal below",
        lambda x: F.diagonal(x, -1, -1, 0),
        lambda x: x.diagonal(-1, -1, 0),
        (3, 2, 4),
    ),
    row(
        "as_strided",
        lambda x: F.as_strided(x, (3, 2), (1, 2), 1),
        lambda x: x.contiguous().as_strided((3, 2), (1, 2), 1),
        (2, 4),
    ),
    row(
        "as_strided backwards",
        lambda x: F.as_strided(x, (2, 3), (0, -2), 5),
        lambda x: x.flatten()[[5, 3, 1]].expand(2, 3),
        (2, 3),
    ),
    row("as_strided scalar", lambda x: F.as_strided(x, (), ()), lambda x: x[0], (3,), orders=1),
    row("sort", lambda x: F.sort(x)[0], lambda x: x.sort()[0], (3, 4), smooth=False),
    row("sort axis", lambda x: F.sort(x, 0)[0], lambda x: x.sort(0)[0], (3, 4), smooth=False),
    row(
        "sort descending",
        lambda x: F.sort(x, 1, descending=True)[0],
        lambda x: x.sort(1, descending=True)[0],
        (2, 3, 2),
        smooth=False,
    ),
    row("topk", lambda x: F.topk(x, 2)[0], lambda x: x.topk(2)[0], (3, 4), smooth=False),
    row(
        "topk smallest",
        lambda x: F.topk(x, 2, 0, largest=False)[0],
        lambda x: x.topk(2, 0, largest=False)[0],
        (3, 4),
        smooth=False,
    ),
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    # Derivatives use these functions; the derivatives of sort and topk use take_along.
    inner = {"place", "scatter_item", "put_along", "take_along"}
    assert uncovered(TABLE, "indexing") <= inner


# Indices that are returned together with values.


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_says_where_elements_were_and_keeps_the_order_of_equal_ones(axis, descending, device):
    x = np.random.randint(0, 3, (5, 4, 6)).astype(np.float32)
    y, indices = F.sort(mpchain.get_device(device).send(x), axis, descending)
    expected, places = torch.sort(torch.as_tensor(x), dim=axis, descending=descending, stable=True)
    np.testing.assert_array_equal(mpchain.cuda.to_cpu(y.array), expected)
    np.testing.assert_array_equal(mpchain.cuda.to_cpu(indices), places)


def test_not_a_number_is_the_largest():
    x = np.array([2, np.nan, 1])
    np.testing.assert_array_equal(F.sort(x)[1], [2, 0, 1])
    np.testing.assert_array_equal(F.sort(x, descending=True)[1], [1, 0, 2])
    np.testing.assert_array_equal(F.topk(x, 1)[1], [1])


def test_topk_indices():
    y, indices = F.topk(np.array([[3.0, 5, 4], [9, 7, 8]]), 2)
    np.testing.assert_array_equal(y.array, [[5, 4], [9, 8]])
    np.testing.assert_array_equal(indices, [[1, 2], [0, 2]])
    assert F.topk(np.zeros((2, 3)), 0)[0].shape == (2, 0)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [0, 1, 5, 30])
def test_topk_of_many(k, largest, device):
    x = np.random.permutation(1200).reshape(4, 100, 3).astype(np.float32)
    y, indices = F.topk(mpchain.get_device(device).send(x), k, 1, largest)
    expected, places = torch.topk(torch.as_tensor(x), k, 1, largest)
    np.testing.assert_array_equal(mpchain.cuda.to_cpu(y.array), expected)
    np.testing.assert_array_equal(mpchain.cuda.to_cpu(indices), places)


def test_many_small_gradients_of_one_element_add_up_in_single_precision():
    x = Variable(np.zeros((2, 1), np.float16))
    F.sum(x[np.zeros(5000, int)] * np.float16(0.1)).backward()
    np.testing.assert_allclose(x.grad, [[500], [0]], 1e-3)


@pytest.mark.parametrize("index", [[0, 2, 0, -1, -3], [[1, 1], [-2, 0]], [], [[]]])
def test_gradient_of_rows(index):
    index = np.array(index, int)
    x = Variable(np.random.randn(3, 2, 4))
    y = x[index]
    y.grad = gy = np.random.randn(*y.shape)
    y.backward()
    expected = np.zeros(x.shape)
    for place in np.ndindex(index.shape):
        expected[index[place]] += gy[place]
    np.testing.assert_allclose(x.grad, expected, 1e-12)


_KINDS = {
    "columns": (slice(None), np.array([1, 3, 1, -1, 0])),
    "last axis": (slice(None), slice(None), np.array([4, 4, -5, 0])),
    "a vector of no indices": (slice(None), np.zeros(0, int)),
    "rows in a tuple": (np.array([1, 1, 0]),),
    "a part of columns": (slice(1), np.array([1, 3, 1])),
    "pairs": (np.array([1, 1, 1]), np.array([2, 2, -2])),
    "pairs of one axis of many": (slice(None), np.array([2, 2]), np.array([4, 4])),
    "a mask": np.arange(40).reshape(2, 4, 5) % 3 == 0,
    "a mask of rows": np.array([True, False]),
    "an empty mask": np.zeros(2, bool),
    "one element many times": (np.zeros(60, int), np.zeros(60, int), np.zeros(60, int)),
    "a matrix of indices": (slice(None), np.array([[0, 1], [1, -1]])),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", _KINDS)
def test_gradients_of_all_kinds_of_indices_add_up_in_order(kind, dtype):
    index = _KINDS[kind]
    x = Variable(np.random.randn(2, 4, 5).astype(dtype))
    y = x[index]
    np.testing.assert_array_equal(y.array, x.array[index])
    gy = np.random.randn(*y.shape).astype(dtype)
    gy.reshape(-1)[:1], gy.reshape(-1)[1:2] = np.nan, np.inf
    y.grad = gy
    y.backward()
    expected = np.zeros_like(x.array)
    np.add.at(expected, index, gy)
    np.testing.assert_array_equal(x.grad, expected)
    np.add.at(expected, index, gy)
    np.testing.assert_array_equal(F.scatter_add(x.grad, index, gy).array, expected)


def test_columns_out_of_range():
    for index in (4, -5):
        with pytest.raises(IndexError, match=str(index)):
            F.get_item(np.zeros((2, 4)), (slice(None), np.array([0, index])))


def test_nothing_to_choose_from():
    assert F.sort(np.zeros((0, 3)))[0].shape == (0, 3) == F.sort(np.zeros((0, 3)), 0)[0].shape
    assert F.select_item(np.zeros((0, 3)), np.zeros(0, np.int32)).shape == (0,)
    assert F.permutate(np.zeros((2, 0)), np.zeros(0, int), 1).shape == (2, 0)
    assert F.diagonal(np.zeros((2, 3)), 5).shape == F.diagonal(np.zeros((0, 3))).shape == (0,)
    assert F.as_strided(np.zeros(0), (0, 2), (1, 1)).shape == (0, 2)
    assert F.one_hot(np.zeros((0, 2), int), 3).shape == (0, 2, 3)


def test_as_strided_reads_rows_whatever_the_layout():
    x = np.arange(6.0).reshape(2, 3)
    for layout in (x, np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2]):
        np.testing.assert_array_equal(F.as_strided(layout, (6,), (1,)).array, np.arange(6))


def test_as_strided_gradient_counts_overlaps():
    x = Variable(np.arange(4.0))
    F.sum(F.as_strided(x, (3, 2), (1, 1))).backward()
    np.testing.assert_array_equal(x.grad, [1, 2, 2, 1])


def test_scatter_add_leaves_its_arguments():
    a, b = np.zeros(3), np.ones(2)
    np.testing.assert_array_equal(F.scatter_add(a, [1, 1], b).array, [0, 2, 0])
    np.testing.assert_array_equal(F.scatter_add(a, slice(1, None), b).array, [0, 1, 1])
    assert not a.any()


def test_labels_and_orders_may_be_variables():
    x = np.random.randn(3, 3)
    np.testing.assert_array_equal(F.select_item(x, Variable(_T)).array, x[range(3), _T])
    order = Variable(np.array([2, 0, 1]))
    np.testing.assert_array_equal(F.permutate(x, order).array, x[[2, 0, 1]])
    np.testing.assert_array_equal(F.one_hot(order, 3).array, np.eye(3)[[2, 0, 1]])


def test_one_hot():
    t = np.array([[0, 2], [1, 1]])
    y = F.one_hot(t, 3)
    assert y.dtype == mpchain.get_dtype() and not y.requires_grad
    np.testing.assert_array_equal(
        y.array, torch.nn.functional.one_hot(torch.as_tensor(t), 3).numpy()
    )
    assert F.one_hot(t, 4, np.float64).dtype == np.float64


# Each wrong input has the function, its arguments, and a part of the message.


def f(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def i(*values):
    return np.array(values, np.int32)


WRONG = [
    ("permutate", (f(2), i(1, 0), 1), "axis must be an axis of x", "axis: 1"),
    ("permutate", (f(2), i(1, 0, 2)), "one per element of the axis", "(3,)", "(2,)"),
    ("permutate", (f(2), f(2)), "indices must be integers", "float32"),
    ("permutate", (f(2), i(1, 1)), "each integer from 0 to 1 once", "[1 1]"),
    ("permutate", (f(2), i(1, 2)), "each integer from 0 to 1 once", "[1 2]"),
    ("select_item", (f(2), i(1, 0)), "x must have 2 axes", "(2,)"),
    ("select_item", (f(2, 3), i(1)), "an integer per row of x", "(1,)"),
    ("select_item", (f(2, 3), f(2)), "an integer per row of x", "float32"),
    ("select_item", (f(2, 3), i(0, 3)), "at least -3 and below 3, but one is 3"),
    ("scatter_add", (f(3), [0, 1], f(3)), "b must have the shape of a[slices]", "(3,)", "(2,)"),
    ("diagonal", (f(3),), "different axes of x", "(3,)"),
    ("diagonal", (f(3, 3), 0, 1, -1), "different axes of x", "axis2: -1"),
    ("as_strided", (f(3), (2,), (1, 1)), "equally many elements", "shape: (2,)"),
    ("as_strided", (f(3), (2,), (3,)), "must be elements of x", "strides: (3,)"),
    ("as_strided", (f(3), (2,), (-1,)), "must be elements of x", "strides: (-1,)"),
    ("as_strided", (f(3), (), (), 3), "must be elements of x", "storage_offset: 3"),
    ("sort", (f(),), "axis must be an axis of x", "()"),
    ("sort", (f(2), 1), "axis must be an axis of x", "axis: 1"),
    ("topk", (f(2), 1, 1), "axis must be an axis of x", "axis: 1"),
    ("topk", (f(2, 3), 4), "k must be from 0 to the axis size", "k: 4"),
    ("one_hot", (f(2), 3), "t must be integers", "float32"),
    ("one_hot", (i(0, 3), 3), "at least 0 and below 3, but one is 3"),
    ("one_hot", (i(0, -1), 3), "but one is -1"),
]


@pytest.mark.parametrize("name, arguments, shown", [(n, a, s) for n, a, *s in WRONG])
def test_wrong_input(name, arguments, shown):
    with pytest.raises((InvalidType, ValueError)) as caught:
        getattr(F, name)(*arguments)
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    for text in shown:
        assert text in message, message
