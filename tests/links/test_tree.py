"""Tests recurrent cells over trees against plain formulas: absent children, and wrong input."""

import numpy as np
import pytest

from mpchain import links as L
from mpchain.utils.type_check import InvalidType
from tests.links.table import checks_of, row
from tests.reference import torch

X, S = (2, 3), (2, 4)
CHILD_SUM = {"W_x/W": (16, 3), "W_x/b": (16,), "W_h_aio/W": (12, 4), "W_h_f/W": (4, 4)}


def cell(cs, a, i, o, fs):
    c = torch.tanh(a) * torch.sigmoid(i) + sum(torch.sigmoid(f) * c for f, c in zip(fs, cs))
    return c, torch.sigmoid(o) * torch.tanh(c)


def child_sum(w, *cshsx):
    n = len(cshsx) // 2
    cs, hs, x = cshsx[:n], cshsx[n:-1], cshsx[-1]
    a, i, o, f = (x @ w["W_x/W"].T + w["W_x/b"]).chunk(4, 1)
    of_h = [v.T for v in w["W_h_aio/W"].chunk(3)]
    a, i, o = (v + sum(h @ W for h in hs) for v, W in zip((a, i, o), of_h))
    return cell(cs, a, i, o, [f + h @ w["W_h_f/W"].T for h in hs])


def n_ary(w, *cshsx):
    n = len(cshsx) // 2
    cs, hs, x = cshsx[:n], cshsx[n:-1], cshsx[-1]
    gates = x @ w["W_x/W"].T + w["W_x/b"]
    gates = gates + sum(h @ w[f"W_h{k}/W"].T for k, h in enumerate(hs, 1))
    a, i, o, *fs = gates.chunk(3 + n, 1)
    return cell(cs, a, i, o, fs)


def n_ary_params(n):
    rows = 4 * (3 + n)
    of_h = {f"W_h{k}/W": (rows, 4) for k in range(1, n + 1)}
    return {"W_x/W": (rows, 3), "W_x/b": (rows,), **of_h}


TABLE = [
    row(
        "ChildSumTreeLSTM of two",
        lambda: L.ChildSumTreeLSTM(3, 4),
        *[S] * 4,
        X,
        params=CHILD_SUM,
        lazy=lambda: L.ChildSumTreeLSTM(None, 4),
        reference=child_sum,
    ),
    row(
        "ChildSumTreeLSTM of one",
        lambda: L.ChildSumTreeLSTM(3, 4),
        S,
        S,
        X,
        params=CHILD_SUM,
        reference=child_sum,
    ),
    row(
        "ChildSumTreeLSTM of a leaf",
        lambda: L.ChildSumTreeLSTM(3, 4),
        X,
        params=CHILD_SUM,
        without_gradient=("W_h_aio/W", "W_h_f/W"),
        reference=child_sum,
    ),
    row(
        "NaryTreeLSTM of two",
        lambda: L.NaryTreeLSTM(3, 4),
        *[S] * 4,
        X,
        params=n_ary_params(2),
        lazy=lambda: L.NaryTreeLSTM(None, 4),
        reference=n_ary,
    ),
    row(
        "NaryTreeLSTM of three",
        lambda: L.NaryTreeLSTM(3, 4, n_ary=3),
        *[S] * 6,
        X,
        params=n_ary_params(3),
        reference=n_ary,
    ),
]
globals().update(checks_of(TABLE))


def f(*shape):
    return np.random.randn(*shape).astype(np.float32)


@pytest.mark.parametrize("link", [L.ChildSumTreeLSTM(3, 4), L.NaryTreeLSTM(3, 4)])
@pytest.mark.parametrize("absent", [(0,), (1, 3), (2,), (0, 1, 2, 3), (4,)])
def test_what_is_absent_is_zero(link, absent):
    link.W_x.b.array[...] = f(16 if isinstance(link, L.ChildSumTreeLSTM) else 20)
    full = [f(*S) for _ in range(4)] + [f(*X)]
    for k in absent:
        full[k] = np.zeros_like(full[k])
    given = [None if k in absent else v for k, v in enumerate(full)]
    for y, z in zip(link(*given), link(*full)):
        np.testing.assert_allclose(y.array, z.array, 1e-6, 1e-6)


@pytest.mark.parametrize(
    "link, inputs, error, message",
    [
        (
            L.ChildSumTreeLSTM(3, 4),
            [None] * 3,
            ValueError,
            "ChildSumTreeLSTM: at least one input must not be None",
        ),
        (
            L.NaryTreeLSTM(3, 4),
            [None] * 5,
            ValueError,
            "NaryTreeLSTM: at least one input must not be None",
        ),
        (
            L.ChildSumTreeLSTM(3, 4),
            [f(*S), f(*X)],
            InvalidType,
            "inputs must be memories, the same number of outputs, and x",
        ),
        (L.NaryTreeLSTM(3, 4), [f(*S), f(*S), f(*X)], InvalidType, "there must be 2 children"),
        (L.ChildSumTreeLSTM(3, 4), [f(2, 5), f(*S), f(*X)], InvalidType, "tree_lstm: .* c_1"),
    ],
)
def test_wrong_input(link, inputs, error, message):
    with pytest.raises(error, match=message):
        link(*inputs)


def test_a_tree_without_children():
    with pytest.raises(ValueError, match="NaryTreeLSTM: n_ary must be positive, but is 0"):
        L.NaryTreeLSTM(3, 4, n_ary=0)
