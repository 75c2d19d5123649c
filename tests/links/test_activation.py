"""Tests Maxout, PReLU and Swish."""

import numpy as np
import pytest

from mpchain import links as L
from tests.links.table import checks_of, row
from tests.reference import torch


def _maxout(w, x):
    y = torch.nn.functional.linear(x.reshape(4, 6), w["linear/W"], w.get("linear/b"))
    return y.reshape(4, 3, 2).max(2).values


TABLE = [
    row(
        "Maxout",
        lambda: L.Maxout(6, 3, 2),
        (4, 6),
        params={"linear/W": (6, 6), "linear/b": (6,)},
        lazy=lambda: L.Maxout(None, 3, 2),
        reference=_maxout,
    ),
    row(
        "Maxout without bias",
        lambda: L.Maxout(6, 3, 2, initial_bias=None),
        (4, 2, 3),
        params={"linear/W": (6, 6)},
        reference=_maxout,
    ),
    row(
        "PReLU",
        L.PReLU,
        (4, 3),
        params={"W": ()},
        reference=lambda w, x: torch.nn.functional.prelu(x, w["W"].reshape(1)),
    ),
    row(
        "PReLU per channel",
        lambda: L.PReLU((3,)),
        (4, 3, 2),
        params={"W": (3,)},
        reference=lambda w, x: torch.nn.functional.prelu(x, w["W"]),
    ),
    row(
        "Swish",
        lambda: L.Swish((3, 2)),
        (4, 3, 2),
        params={"beta": (3, 2)},
        lazy=lambda: L.Swish(None),
        reference=lambda w, x: x * torch.sigmoid(w["beta"] * x),
    ),
    row(
        "Swish with one beta",
        lambda: L.Swish(()),
        (4, 3),
        params={"beta": ()},
        reference=lambda w, x: x * torch.sigmoid(w["beta"] * x),
    ),
]
globals().update(checks_of(TABLE))


def test_initial_values():
    W, b = np.arange(24.0).reshape(2, 4, 3), np.arange(8.0).reshape(2, 4)
    link = L.Maxout(3, 2, 4, W, b)
    assert link.linear.W.array.tolist() == W.reshape(8, 3).tolist()
    assert link.linear.b.array.tolist() == b.ravel().tolist()
    assert L.Maxout(3, 2, 4).linear.b.array.tolist() == [0] * 8
    assert L.PReLU((2,)).W.array.tolist() == [0.25, 0.25]
    assert L.PReLU((2,), np.arange(2.0)).W.array.tolist() == [0, 1]
    assert L.Swish((2,)).beta.array.tolist() == [1, 1]
    assert L.Swish((2,), 3).beta.array.tolist() == [3, 3]


def test_repr():
    assert repr(L.PReLU((2,))) == "PReLU(shape=(2,))"
    assert repr(L.Swish(None)) == "Swish(beta_shape=None)"


@pytest.mark.parametrize(
    "error, message, call",
    [
        (ValueError, "Maxout: pool_size must be positive, but is 0", lambda: L.Maxout(3, 2, 0)),
        (TypeError, "Maxout: out_size must be an int, not None", lambda: L.Maxout(3, None, 2)),
        (Exception, "prelu: ", lambda: L.PReLU((4,))(np.ones((2, 3), "f"))),
        (Exception, "swish: ", lambda: L.Swish((4,))(np.ones((2, 3), "f"))),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call()
