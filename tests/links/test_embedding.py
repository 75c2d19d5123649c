"""Tests EmbedID."""

import numpy as np
import pytest

from mpchain import links as L
from tests.links.table import checks_of, row
from tests.reference import torch

IDS = np.array([[0, 3, 3], [1, 0, 2]], np.int32)
TABLE = [
    row(
        "EmbedID",
        lambda: L.EmbedID(5, 4),
        IDS,
        params={"W": (5, 4)},
        reference=lambda w, x: torch.nn.functional.embedding(x, w["W"]),
    ),
    row(
        "EmbedID with a label to ignore",
        lambda: L.EmbedID(5, 4, ignore_label=-1),
        np.where(IDS == 3, -1, IDS),
        params={"W": (5, 4)},
        reference=lambda w, x: (
            torch.nn.functional.embedding(x.clip(0), w["W"]) * (x >= 0)[..., None]
        ),
    ),
]
globals().update(checks_of(TABLE))


def test_from_params():
    W = np.random.randn(5, 4).astype(np.float32)
    link = L.EmbedID.from_params(W, ignore_label=2)
    np.testing.assert_array_equal(link.W.array, W)
    assert repr(link) == "EmbedID(in_size=5, out_size=4, ignore_label=2)"
    assert not link(np.array([2])).array.any()


def test_initial_values():
    np.random.seed(0)
    W = L.EmbedID(100, 100).W.array
    assert W.dtype == np.float32
    # The bounds are at least four standard errors for 10,000 standard normal numbers.
    assert abs(W.mean()) < 0.04 and abs(W.std() - 1) < 0.03
    assert (L.EmbedID(2, 3, initialW=0.5).W.array == 0.5).all()


@pytest.mark.parametrize(
    "error, message, call",
    [
        (ValueError, "EmbedID: in_size must be positive, but is 0", lambda: L.EmbedID(0, 3)),
        (TypeError, "EmbedID: in_size must be an int, not None", lambda: L.EmbedID(None, 3)),
        (ValueError, "embed_id: every element of x must be", lambda: L.EmbedID(3, 2)(IDS)),
        (Exception, "embed_id: x must hold integers", lambda: L.EmbedID(3, 2)(IDS / 2)),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call()
