"""Tests embeddings of integers and of positions."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable, kernels
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

_IDS = np.array([[1, 0, 1], [3, 1, 0]])


def _embed(ids, **options):
    return lambda W: F.embed_id(W.device.send(ids), W, **options)


def _torch_rotary(positions, base, interleaved):
    """Rotates complex numbers by multiplication."""

    def rotate(x):
        half = x.shape[-1] // 2
        pairs = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
        speed = base ** (torch.arange(half).double() * (-2 / x.shape[-1]))
        angle = torch.tensor(positions)[..., None].double() * speed
        z = torch.complex(*pairs) * torch.polar(torch.ones_like(angle), angle)
        parts = [z.real, z.imag]
        return torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)

    return rotate


_POSITIONS = np.array([[5, 0, 2], [7, 7, 1]])
TABLE = [
    row("embed_id", _embed(_IDS), lambda W: W[torch.tensor(_IDS)], (4, 3)),
    row("embed_id of bytes", _embed(_IDS.astype("u1")), lambda W: W[torch.tensor(_IDS)], (4, 3)),
    row("embed_id 0-d", _embed(np.array(2)), lambda W: W[2], (4, 3)),
    row(
        "embed_id ignore_label",
        _embed(_IDS, ignore_label=1),
        lambda W: W[torch.tensor(_IDS)] * torch.tensor(_IDS != 1)[..., None],
        (4, 3),
    ),
    row(
        "embed_id ignore_label outside",
        _embed(np.where(_IDS == 3, 9, _IDS), ignore_label=9),
        lambda W: W[torch.tensor(_IDS)] * torch.tensor(_IDS != 3)[..., None],
        (4, 3),
    ),
    row("rotary_embedding", F.rotary_embedding, _torch_rotary(range(3), 1e4, False), (2, 3, 4)),
    row(
        "rotary_embedding interleaved",
        lambda x: F.rotary_embedding(x, interleaved=True),
        _torch_rotary(range(3), 1e4, True),
        (2, 2, 3, 4),
    ),
    row(
        "rotary_embedding positions",
        lambda x: F.rotary_embedding(x, x.device.send(_POSITIONS), base=20.0),
        _torch_rotary(_POSITIONS, 20.0, False),
        (2, 3, 6),
    ),
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    assert uncovered(TABLE, "embedding") <= {"add_rows"}  # only derivatives use add_rows


def test_gradients_of_frequent_rows_keep_their_digits():
    W = Variable(np.zeros((2, 1), np.float16))
    y = F.embed_id(np.zeros(5000, int), W)
    y.grad = np.full(y.shape, 1, np.float16)
    y.backward()
    # A sum one by one in half precision would stop at 2048.
    assert W.grad.tolist() == [[5000], [0]]


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_no_index(shape):
    W = Variable(np.ones((3, 2), "f"))
    y = F.embed_id(np.zeros(shape, int), W)
    assert y.shape == (*shape, 2)
    F.sum(y).backward()
    np.testing.assert_array_equal(W.grad, np.zeros((3, 2)))


@pytest.mark.parametrize("label", [None, -2])
@pytest.mark.parametrize("wrong", [-1, 4])
def test_index_out_of_range(label, wrong):
    with pytest.raises(ValueError, match=f"embed_id: .* below 4.* one is {wrong}"):
        F.embed_id(np.array([0, wrong]), np.zeros((4, 2)), ignore_label=label)


def test_rotary_products_depend_on_distances():
    q, k = np.random.uniform(-1, 1, (2, 1, 8))

    def product(i, j):
        return np.vdot(*(F.rotary_embedding(x, np.array([p])).array for x, p in ((q, i), (k, j))))

    np.testing.assert_allclose(product(3, 1), product(1003, 1001), 1e-10)
    assert abs(product(3, 1) - product(3, 2)) > 1e-3


def test_rotary_angles_of_far_positions():
    x = np.ones((1, 2), np.float32)
    y = F.rotary_embedding(x, np.array([100_000_001])).array
    np.testing.assert_allclose(y[0, 0], np.cos(1e8 + 1) - np.sin(1e8 + 1), 1e-6)


def f(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


WRONG = [
    ("embed_id", (f(2), f(3, 2)), "x must hold integers", "float32"),
    ("embed_id", (f(2, dtype=int), f(3)), "W must be floating point with 2 axes", "(3,)"),
    ("embed_id", (f(2, dtype=int), f(3, 2, dtype=int)), "W must be floating", "int64"),
    ("rotary_embedding", (f(2, 3),), "with D even", "(2, 3)"),
    ("rotary_embedding", (f(4),), "x must be floating point, (..., L, D)", "(4,)"),
    ("rotary_embedding", (f(2, 4, dtype=int),), "x must be floating point", "int64"),
    ("rotary_embedding", (f(2, 4), f(3)), "positions must broadcast", "(3,)"),
    ("rotary_embedding", (f(2, 4), f(1, 2, 1)), "positions must broadcast", "(1, 2, 1)"),
]


@pytest.mark.parametrize(
    "name, arguments, shown",
    [(n, a, s) for n, a, *s in WRONG],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_wrong_input(name, arguments, shown):
    with pytest.raises(InvalidType) as caught:
        getattr(F, name)(*arguments)
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    for text in shown:
        assert text in message, message


def test_rotary_base_must_be_positive():
    with pytest.raises(ValueError, match="rotary_embedding: base must be positive, but is -1"):
        F.rotary_embedding(f(2, 4), base=-1)


def test_indexes_may_be_a_variable():
    W = mpchain.Variable(np.arange(6.0).reshape(3, 2))
    y = F.embed_id(Variable(np.array([2]), requires_grad=False), W)
    assert y.array.tolist() == [[4, 5]]


def test_ids_that_change_before_backward_do_not_change_gradients():
    ids, W = np.array([1, 1, 0]), Variable(np.ones((3, 2)))
    y = F.sum(F.embed_id(ids, W))
    ids[:] = 2
    y.backward()
    np.testing.assert_array_equal(W.grad, [[1, 1], [2, 2], [0, 0]])


@pytest.mark.parametrize("n", [5, 1 << 40])
@pytest.mark.parametrize("ids", [[], [3], [4, 1, 4, 0, 1, 4], list(range(5)) * 40])
@pytest.mark.parametrize("width", [1, 300])
def test_sums_of_distinct_rows(ids, n, width):
    ids = np.array(ids, np.intp)
    rows = np.random.RandomState(0).randn(len(ids), width)
    sums, present = kernels.sum_distinct_rows(rows, ids, n)
    assert present.tolist() == list(dict.fromkeys(ids.tolist()))
    for i, total in zip(present, sums, strict=True):
        np.testing.assert_allclose(total, rows[ids == i].sum(axis=0))


def test_an_id_beyond_the_table_is_an_error():
    with pytest.raises(IndexError):
        kernels.sum_distinct_rows(np.ones((100, 100)), np.arange(100), 99)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_ids_of_any_integers_with_and_without_a_label_to_ignore(dtype):
    W, ids = Variable(np.arange(6.0).reshape(3, 2)), np.array([[2, 0], [1, 2]], dtype)
    np.testing.assert_array_equal(F.embed_id(ids, W).array, W.array[ids])
    y = F.embed_id(ids, W, ignore_label=2)
    F.sum(y).backward()
    np.testing.assert_array_equal(y.array[[0, 1], [0, 1]], np.zeros((2, 2)))
    np.testing.assert_array_equal(W.grad, [[1, 1], [1, 1], [0, 0]])
