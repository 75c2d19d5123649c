"""Tests products that are summed over shared axes: einsum, tensordot and batches of matrices."""

import functools

import numpy as np
import pytest

import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.functions.test_table import TABLE as FIRST
from tests.reference import torch


def _einsum(subscripts, *shapes, **options):
    reference = functools.partial(torch.einsum, subscripts)
    return row(subscripts, functools.partial(F.einsum, subscripts), reference, *shapes, **options)


TABLE = [
    _einsum("ij,jk->ik", (3, 4), (4, 2)),
    _einsum("ij,jk", (3, 4), (4, 2)),
    _einsum("ba,cb", (3, 4), (2, 3)),
    _einsum("bij,bkj->bki", (2, 3, 4), (2, 5, 4)),
    _einsum("i,j->ij", (3,), (4,)),
    _einsum("i,i", (3,), (3,)),
    _einsum("i,i->i", (3,), (3,)),
    _einsum("ijk->kj", (2, 3, 4)),
    _einsum("ij->ji", (2, 3)),
    _einsum("ij->", (2, 3)),
    _einsum("ii->i", (3, 3)),
    _einsum("ii", (3, 3)),
    _einsum("iji->j", (3, 2, 3)),
    _einsum("ii,ij->j", (3, 3), (3, 2)),
    _einsum("ij,kl->i", (2, 3), (2, 2)),
    _einsum("i,->i", (3,), ()),
    _einsum("i,i,i->i", (3,), (3,), (3,)),
    _einsum("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    _einsum("bi,oij,bj->bo", (2, 3), (4, 3, 3), (2, 3)),
    _einsum("...ij,...jk->...ik", (2, 3, 4), (2, 4, 2)),
    _einsum("...ij,jk->...ik", (2, 2, 3, 4), (4, 2)),
    _einsum("...ij,...jk->ik...", (2, 1, 3, 4), (5, 4, 2)),
    _einsum("i...,i...->...", (3, 2), (3, 1)),
    row(
        "lists of labels",
        lambda a, b: F.einsum(a, [0, 1], b, [1, 2], [2, 0]),
        lambda a, b: (a @ b).T,
        (3, 4),
        (4, 2),
    ),
    row(
        "lists without output",
        lambda a, b: F.einsum(a, [0, 5], b, [5, 2]),
        lambda a, b: a @ b,
        (3, 4),
        (4, 2),
    ),
    row(
        "lists with ellipsis",
        lambda a, b: F.einsum(a, [..., 1], b, [1], [...]),
        lambda a, b: a @ b,
        (2, 3, 4),
        (4,),
    ),
    row("tensordot", F.tensordot, torch.tensordot, (2, 3, 4), (3, 4, 2)),
    row(
        "tensordot outer",
        lambda a, b: F.tensordot(a, b, 0),
        lambda a, b: torch.tensordot(a, b, 0),
        (2, 3),
        (4,),
    ),
    row(
        "tensordot axes",
        lambda a, b: F.tensordot(a, b, ([2, 0], [-1, 1])),
        lambda a, b: torch.tensordot(a, b, ([2, 0], [2, 1])),
        (2, 3, 4),
        (5, 2, 4),
    ),
    row(
        "tensordot axis",
        lambda a, b: F.tensordot(a, b, (1, 0)),
        lambda a, b: torch.tensordot(a, b, ([1], [0])),
        (2, 3),
        (3, 4),
    ),
    row("batch_matmul", F.batch_matmul, torch.matmul, (2, 3, 4), (2, 4, 2)),
    row(
        "batch_matmul transposed",
        lambda a, b: F.batch_matmul(a, b, True, True),
        lambda a, b: a.mT @ b.mT,
        (2, 4, 3),
        (2, 2, 4),
    ),
    row(
        "batch_matmul columns",
        functools.partial(F.batch_matmul, transa=True),
        lambda a, b: (a * b).sum(1)[:, None, None],
        (2, 3),
        (2, 3),
    ),
]

test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_a_table():
    assert uncovered([*TABLE, *FIRST], "contraction") == set()


def test_a_product_of_many_is_made_in_the_cheap_order():
    a, b, c = (Variable(np.ones(shape)) for shape in [(50, 2), (2, 50), (50, 2)])
    last = F.einsum("ij,jk,kl->il", a, b, c).creator
    shapes = {x.shape for x in last.inputs}
    assert shapes == {(50, 2), (2, 2)}


def test_one_node_keeps_the_operands_themselves():
    a, b = Variable(np.ones((2, 3, 4))), Variable(np.ones((2, 4, 5)))
    y = F.einsum("bij,bjk->bki", a, b)
    assert [x for x in y.creator.inputs] == [a.node, b.node]
    assert y.creator._kept[0] is a.array and y.creator._kept[1] is b.array


def test_spaces_are_ignored_and_single_operands_may_be_returned():
    x = Variable(np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(F.einsum(" i j , j k -> i k", x, x.T).array, x.array @ x.array.T)
    np.testing.assert_array_equal(F.einsum("ij->ij", x).array, x.array)
    assert F.einsum("...", x).shape == (2, 3) and F.einsum("", Variable(np.array(3.0))).array == 3


def test_empty_axes():
    a, b = Variable(np.ones((0, 3))), Variable(np.ones((3, 2)))
    y = F.einsum("ij,jk->ik", a, b)
    F.sum(y).backward()
    assert y.shape == (0, 2) and a.grad.shape == (0, 3) and b.grad.tolist() == [[0, 0]] * 3
    assert F.einsum("ij,ij->j", a, a).array.tolist() == [0, 0, 0]
    assert F.tensordot(a, a, ([0], [0])).array.tolist() == [[0] * 3] * 3


def test_dtypes():
    half, single = np.full((1, 4096), 1, np.float16), np.ones((4096, 1), np.float32)
    assert F.einsum("ij,kj", half, half).array.tolist() == [[4096]]
    y = F.einsum("ij,jk", Variable(half), Variable(single))
    assert y.dtype == np.float32
    assert F.tensordot(half, half.T, 1).dtype == np.float16


@pytest.mark.parametrize(
    "operands, message",
    [
        (["ij,jk->ik", (2, 3), (4, 2)], r"axes labeled 'j' must have the same size, 3.*\(4, 2\)"),
        (["ij,jk->ik", (2, 1), (4, 2)], r"axes labeled 'j' must have the same size, 1.*\(4, 2\)"),
        (["ii", (2, 3)], r"axes labeled 'i' must have the same size, 2.*\(2, 3\)"),
        (["ij", (2,)], r"must have the axes \['i', 'j'\].*\(2,\)"),
        (["...ij", (2,)], r"must have the axes .*\(2,\)"),
        (["......ij", (2, 3)], r"must have the axes .*\(2, 3\)"),
        (["...i,...i", (2, 4), (3, 4)], r"axes labeled .* must have the same size, 2.*\(3, 4\)"),
    ],
)
def test_einsum_of_wrong_shapes(operands, message):
    with pytest.raises(InvalidType, match="einsum: .*" + message):
        F.einsum(operands[0], *(np.ones(shape) for shape in operands[1:]))


@pytest.mark.parametrize(
    "operands, message",
    [
        (["ij,jk", (2, 3)], "1 operands and subscripts for 2"),
        (["i", (2,), (2,)], "2 operands and subscripts for 1"),
        (["i->ii", (2,)], "occur once, but 'i' is not"),
        (["i->j", (2,)], "once, but 'j' is not"),
        (["i->i->i", (2,)], "labels must be letters"),
        (["i1->i", (2, 2)], "labels must be letters"),
        (["...i->i", (2, 2)], "cannot be summed"),
    ],
)
def test_einsum_of_wrong_subscripts(operands, message):
    with pytest.raises(ValueError, match="einsum: .*" + message):
        F.einsum(operands[0], *(np.ones(shape) for shape in operands[1:]))


def test_einsum_of_nothing():
    with pytest.raises(ValueError, match=r"einsum: .* there are 0 operands"):
        F.einsum()


@pytest.mark.parametrize("axes", [[0], [[0], [0, 1]], [0, 1, 2]])
def test_tensordot_needs_pairs_of_axes(axes):
    with pytest.raises(ValueError, match=r"tensordot: axes must pair axes of a with axes of b"):
        F.tensordot(np.ones((2, 2)), np.ones((2, 2)), axes)


@pytest.mark.parametrize(
    "axes, message",
    [
        (3, "a and b must have at least this number of axes.*axes: 3"),
        (-1, "a and b must have at least this number of axes.*axes: -1"),
        ((2, 0), "axes must be different axes of a and of b"),
        (([0, -2], [0, 1]), "axes must be different axes of a and of b"),
        (1, r"the axes must have equal sizes.*\(2, 3\)"),
    ],
)
def test_tensordot_of_wrong_axes(axes, message):
    with pytest.raises(InvalidType, match="tensordot: " + message):
        F.tensordot(np.ones((2, 3)), np.ones((2, 3)), axes)


def test_batch_matmul_of_wrong_shapes():
    with pytest.raises(InvalidType, match=r"batch_matmul: a and b must have 2 or 3 axes.*\(3,\)"):
        F.batch_matmul(np.ones(3), np.ones((2, 3)))
    with pytest.raises(InvalidType, match=r"matmul: the stacks of matrices must broadcast"):
        F.batch_matmul(np.ones((2, 3, 4)), np.ones((3, 4, 2)))


def test_numpys_names_on_variables():
    a, b = Variable(np.ones((2, 3))), np.ones((3, 4))
    assert np.tensordot(a, b, axes=1).creator.label == "contract"
    assert np.einsum("ij,jk", a, b).array.tolist() == [[3] * 4] * 2
