"""Tests Dropout and SimplifiedDropconnect."""

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain.configuration import using_config
from tests.links.table import checks_of, row
from tests.reference import torch

MASK = np.array([[1, 0, 1], [0, 1, 1]], bool)
TABLE = [
    row("Dropout", L.Dropout, (4, 3)),
    row(
        "Dropout in evaluation",
        L.Dropout,
        (4, 3),
        config={"train": False},
        reference=lambda w, x: x + 0,
    ),
    row(
        "SimplifiedDropconnect",
        lambda: L.SimplifiedDropconnect(3, 2),
        (4, 3),
        params={"W": (2, 3), "b": (2,)},
        lazy=lambda: L.SimplifiedDropconnect(None, 2),
    ),
    row(
        "SimplifiedDropconnect with a mask",
        lambda: L.SimplifiedDropconnect(3, 2, 0.25, nobias=True),
        (4, 3),
        params={"W": (2, 3)},
        call=lambda link, x: link(x, mask=link.xp.asarray(MASK), use_batchwise_mask=False),
        reference=lambda w, x: x @ (w["W"] * torch.tensor(MASK) / 0.75).T,
    ),
    row(
        "SimplifiedDropconnect in evaluation",
        lambda: L.SimplifiedDropconnect(3, 2),
        (4, 3),
        params={"W": (2, 3), "b": (2,)},
        call=lambda link, x: link(x, train=False),
        reference=lambda w, x: torch.nn.functional.linear(x, w["W"], w["b"]),
    ),
]
globals().update(checks_of(TABLE))


@pytest.mark.parametrize(
    "link, function",
    [
        (L.Dropout(0.3), lambda link, x: F.dropout(x, 0.3)),
        (
            L.SimplifiedDropconnect(3, 2, 0.3),
            lambda link, x: F.simplified_dropconnect(x, link.W, link.b, 0.3),
        ),
    ],
)
def test_they_draw_what_the_function_draws(link, function):
    x = np.random.randn(5, 3).astype(np.float32)
    np.random.seed(1)
    expected = function(link, x).array
    np.random.seed(1)
    np.testing.assert_array_equal(link(x).array, expected)


def test_dropout_is_off_in_evaluation():
    x = np.ones((100, 3), np.float32)
    assert not L.Dropout(0.9)(x).array.all()
    with using_config("train", False):
        assert (L.Dropout(0.9)(x).array == 1).all()


def test_from_params():
    link = L.SimplifiedDropconnect.from_params(np.ones((2, 3), "f"), ratio=0.25)
    assert link.b is None
    expected = "SimplifiedDropconnect(in_size=3, out_size=2, nobias=True, ratio=0.25)"
    assert repr(link) == expected
    assert repr(L.Dropout(0.1)) == "Dropout(ratio=0.1)"


@pytest.mark.parametrize("make", [L.Dropout, lambda ratio: L.SimplifiedDropconnect(3, 2, ratio)])
@pytest.mark.parametrize("ratio", [-0.1, 1.0])
def test_ratios(make, ratio):
    with pytest.raises(ValueError, match=f"ratio must be at least 0 and below 1, but is {ratio}"):
        make(ratio)
