"""Tests Linear and Bilinear: values against PyTorch, lazy sizes, and wrong input."""

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain.utils import type_check
from tests.links.table import checks_of, row
from tests.reference import torch

TF = torch.nn.functional

TABLE = [
    row(
        "Linear",
        lambda: L.Linear(6, 4),
        (5, 6),
        params={"W": (4, 6), "b": (4,)},
        lazy=lambda: L.Linear(4),
        reference=lambda w, x: TF.linear(x, w["W"], w["b"]),
    ),
    row(
        "Linear without bias",
        lambda: L.Linear(6, 4, nobias=True),
        (5, 2, 3),
        params={"W": (4, 6)},
        lazy=lambda: L.Linear(None, 4, nobias=True),
        reference=lambda w, x: TF.linear(x.reshape(5, 6), w["W"]),
    ),
    row(
        "Bilinear",
        lambda: L.Bilinear(3, 2, 4),
        (5, 3),
        (5, 2),
        params={"W": (3, 2, 4), "V1": (3, 4), "V2": (2, 4), "b": (4,)},
        reference=lambda w, x, y: (
            TF.bilinear(x, y, w["W"].permute(2, 0, 1), w["b"]) + x @ w["V1"] + y @ w["V2"]
        ),
    ),
    row(
        "Bilinear without bias",
        lambda: L.Bilinear(3, 2, 4, nobias=True),
        (5, 3),
        (5, 2),
        params={"W": (3, 2, 4)},
        reference=lambda w, x, y: TF.bilinear(x, y, w["W"].permute(2, 0, 1)),
    ),
]
globals().update(checks_of(TABLE))


@pytest.mark.parametrize("nobias", [False, True])
def test_from_params(nobias):
    link, x = L.Linear(6, 4, nobias=nobias), np.random.randn(5, 6).astype(np.float32)
    made = L.Linear.from_params(link.W, link.b)
    np.testing.assert_array_equal(made(x).array, link(x).array)
    assert made.W.array is not link.W.array
    assert repr(made) == repr(link)


def test_repr():
    assert repr(L.Linear(3, 2)) == "Linear(in_size=3, out_size=2, nobias=False)"
    assert repr(L.Linear(2)) == "Linear(in_size=None, out_size=2, nobias=False)"
    expected = "Bilinear(left_size=3, right_size=2, out_size=4, nobias=True)"
    assert repr(L.Bilinear(3, 2, 4, True)) == expected


def test_same_values_by_the_same_seed_lazy_or_not():
    np.random.seed(3)
    lazy = L.Linear(2)
    lazy(np.ones((2, 3), np.float32))
    np.random.seed(3)
    np.testing.assert_array_equal(lazy.W.array, L.Linear(3, 2).W.array)


def test_initial_values():
    W, b = np.arange(6.0).reshape(2, 3), np.arange(2.0)
    link = L.Linear(3, 2, initialW=W, initial_bias=b)
    np.testing.assert_array_equal(link.W.array, W)
    np.testing.assert_array_equal(link.b.array, b)
    assert link.W.dtype == link.b.dtype == np.float32
    link = L.Bilinear(1, 2, 3, initialW=0.5, initial_bias=(1, 2, np.arange(3.0)))
    assert (link.W.array == 0.5).all() and (link.V1.array == 1).all()
    assert (link.V2.array == 2).all() and link.b.array.tolist() == [0, 1, 2]


def test_linear_keeps_batch_axes():
    x = np.random.randn(2, 3, 4, 5).astype(np.float32)
    link = L.Linear(6)
    y = link(x, n_batch_axes=2)
    assert y.shape == (2, 3, 6) and link.W.shape == (6, 20)
    expected = x.reshape(2, 3, 20) @ link.W.array.T
    np.testing.assert_allclose(y.array, expected, rtol=1e-4, atol=1e-5)


def test_linear_within_a_sequential_keeps_batch_axes():
    x = np.random.randn(2, 3, 4).astype(np.float32)
    model = mpchain.Sequential(L.Linear(None, 5, n_batch_axes=2), F.relu)
    y = model(x)
    assert y.shape == (2, 3, 5) and model[0].W.shape == (5, 4)
    np.testing.assert_array_equal(y.array, F.relu(model[0](x, n_batch_axes=2)).array)
    assert model[0](x[:, 0], n_batch_axes=1).shape == (2, 5)
    assert "n_batch_axes=2" in repr(model)
    adapted = L.LoRA(model[0], rank=2)
    np.testing.assert_array_equal(adapted(x).array, model[0](x).array)


def test_sequential_refuses_named_arguments():
    model = mpchain.Sequential(L.Linear(4, 5), F.relu)
    message = r"belongs to one layer, but n_batch_axes was .*; .*L\.Linear\(8, 4, n_batch"
    with pytest.raises(TypeError, match=message):
        model(np.ones((2, 3, 4), "f"), n_batch_axes=2)


@pytest.mark.parametrize(
    "error, message, call",
    [
        (TypeError, "Linear: out_size must be an int, not None", lambda: L.Linear(None)),
        (TypeError, "Linear: out_size must be an int, not 2.5", lambda: L.Linear(3, 2.5)),
        (ValueError, "Linear: in_size must be positive, but is 0", lambda: L.Linear(0, 2)),
        (ValueError, "Linear: out_size must be positive, but is -2", lambda: L.Linear(3, -2)),
        (
            ValueError,
            r"Constant: fill_value of shape \(2, 2\) does not broadcast .*\(3, 2\)",
            lambda: L.Linear(2, 3, initialW=np.ones((2, 2))),
        ),
        (
            ValueError,
            r"Bilinear: initial_bias must be a tuple .* but is 3",
            lambda: L.Bilinear(2, 3, 4, initial_bias=3),
        ),
        (ValueError, "Bilinear: right_size must be positive", lambda: L.Bilinear(2, 0, 4)),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "message, call",
    [
        ("linear: W must have as many columns", lambda: L.Linear(3, 2)(np.ones((2, 4), "f"))),
        ("linear: x must have more axes", lambda: L.Linear(2)(np.ones(4, "f"))),
        (
            "bilinear: W must be",
            lambda: L.Bilinear(2, 3, 4)(np.ones((2, 3), "f"), np.ones((2, 3), "f")),
        ),
    ],
)
def test_inputs_that_do_not_fit(message, call):
    with pytest.raises(Exception, match=message):
        call()


def test_linear_names_the_axes_that_are_features():
    x, W = np.ones((7, 6, 8)), np.ones((16, 8))
    hint = r"\(n_batch_axes=2, of this call or of L.Linear, would fit\)"
    message = rf"but the first n_batch_axes=1 {hint}: x: float64 \(7, 6, 8\), W: float64 \(16, 8\)"
    with pytest.raises(type_check.InvalidType, match=message):
        F.linear(x, W)
