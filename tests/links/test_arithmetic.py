"""Tests Bias, Scale and Parameter."""

import numpy as np
import pytest

from mpchain import links as L
from mpchain.configuration import config
from tests.links.table import checks_of, row

TABLE = [
    row(
        "Bias",
        lambda: L.Bias(1, (3,)),
        (2, 3, 4),
        params={"b": (3,)},
        reference=lambda w, x: x + w["b"][:, None],
    ),
    row(
        "Bias without parameter",
        lambda: L.Bias(0),
        (2, 3),
        (2,),
        reference=lambda w, x, b: x + b[:, None],
    ),
    row(
        "Scale",
        lambda: L.Scale(1, (3, 4)),
        (2, 3, 4),
        params={"W": (3, 4)},
        reference=lambda w, x: x * w["W"],
    ),
    row(
        "Scale with bias",
        lambda: L.Scale(1, (3,), bias_term=True),
        (2, 3, 4),
        params={"W": (3,), "bias/b": (3,)},
        reference=lambda w, x: x * w["W"][:, None] + w["bias/b"][:, None],
    ),
    row(
        "Scale by an argument with bias",
        lambda: L.Scale(1, bias_term=True, bias_shape=(3, 4)),
        (2, 3, 4),
        (3,),
        params={"bias/b": (3, 4)},
        reference=lambda w, x, W: x * W[:, None] + w["bias/b"],
    ),
    row(
        "Parameter",
        lambda: L.Parameter(np.ones((2, 3), config.dtype)),
        params={"W": (2, 3)},
        reference=lambda w: w["W"] + 0,
    ),
]
globals().update(checks_of(TABLE))


def test_initial_values():
    link = L.Scale(1, (3,), True)
    assert link.W.array.tolist() == [1, 1, 1] and link.bias.b.array.tolist() == [0, 0, 0]
    array = np.arange(3.0)
    assert L.Parameter(array).W.array is array


def test_repr():
    assert repr(L.Bias(2, (3,))) == "Bias(axis=2, shape=(3,))"
    assert repr(L.Bias()) == "Bias(axis=1, shape=None)"
    assert repr(L.Parameter(np.ones(3))) == "Parameter(shape=(3,), dtype='float64')"
    assert "(bias): Bias(axis=1, shape=(3,))" in repr(L.Scale(1, (3,), True))


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    "error, message, call",
    [
        (TypeError, "Bias: call it with x alone, not 2 arguments", lambda: L.Bias(1, (3,))(X, X)),
        (TypeError, "Bias: call it with x and b, not 1 arguments", lambda: L.Bias()(X)),
        (TypeError, "Scale: call it with x and W, not 3 arguments", lambda: L.Scale()(X, X, X)),
        (
            ValueError,
            "Scale: with bias_term, W_shape or bias_shape must be given",
            lambda: L.Scale(bias_term=True),
        ),
        (Exception, "bias: the second argument must", lambda: L.Bias(1, (4,))(X)),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call()
