"""Tests Classifier."""

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain.link import Sequential
from mpchain.optimizers import SGD
from mpchain.reporter import Reporter
from tests.links.table import checks_of, row
from tests.reference import torch

x = np.random.RandomState(0).randn(6, 3).astype(np.float32)
t = np.array([0, 1, 1, 0, 1, 0], np.int32)
TABLE = [
    row(
        "Classifier",
        lambda: L.Classifier(L.Linear(3, 2)),
        (6, 3),
        t,
        params={"predictor/W": (2, 3), "predictor/b": (2,)},
        lazy=lambda: L.Classifier(L.Linear(2)),
        loss=lambda loss: loss,
        reference=lambda w, x, t: torch.nn.functional.cross_entropy(
            x @ w["predictor/W"].T + w["predictor/b"], t
        ),
    ),
]
globals().update(checks_of(TABLE))


def test_loss_and_accuracy_are_returned_kept_and_reported():
    model = L.Classifier(L.Linear(3, 2))
    assert model.loss is None
    reporter = Reporter()
    reporter.add_observer("main", model)
    with reporter:
        loss = model(x, t)
    y = x @ model.predictor.W.array.T
    probabilities = np.exp(y) / np.exp(y).sum(1, keepdims=True)
    expected = -np.log(probabilities[range(6), t]).mean()
    assert loss is model.loss and loss.item() == pytest.approx(expected, rel=1e-5)
    assert model.accuracy.item() == pytest.approx((y.argmax(1) == t).mean())
    assert set(reporter.observation) == {"main/loss", "main/accuracy"}
    np.testing.assert_allclose(model.y.array, y, rtol=1e-5)
    assert [name for name, _ in model.namedparams()] == ["/predictor/W", "/predictor/b"]


def test_labels_by_position_and_name():
    expected = L.Classifier(L.Linear(3, 2, initialW=1))(x, t).item()
    assert L.Classifier(L.Linear(3, 2, initialW=1), label_key=0)(t, x).item() == expected
    assert L.Classifier(L.Linear(3, 2, initialW=1), label_key="t")(x, t=t).item() == expected


def test_without_accuracy():
    model = L.Classifier(L.Linear(3, 2))
    model.compute_accuracy = False
    model(x, t)
    assert model.accuracy is None


def test_own_functions():
    model = L.Classifier(L.Linear(3, 1), F.mean_squared_error, lambda y, t: F.mean(y))
    target = x[:, :1].copy()
    assert model(x, target).item() == pytest.approx(
        ((model.y.array - target) ** 2).mean(), rel=1e-5
    )
    assert model.accuracy.item() == pytest.approx(model.y.array.mean(), rel=1e-5)


def test_it_learns():
    model = L.Classifier(Sequential(L.Linear(8), F.tanh, L.Linear(2)))
    optimizer = SGD(1.0).setup(model)
    before = model(x, t).item()
    optimizer = optimizer.setup(model)
    for _ in range(50):
        optimizer.update(model, x, t)
    assert model(x, t).item() < 0.2 * before


@pytest.mark.parametrize(
    "error, message, call",
    [
        (ValueError, "no positional argument -1 .* there are 0", L.Classifier(F.relu)),
        (
            ValueError,
            "no positional argument 3 .* there are 2",
            lambda: L.Classifier(F.relu, label_key=3)(x, t),
        ),
        (
            ValueError,
            "there is no argument 't' to take the labels from",
            lambda: L.Classifier(F.relu, label_key="t")(x),
        ),
        (
            TypeError,
            "label_key must be an int or a str, not float",
            lambda: L.Classifier(F.relu, label_key=1.0),
        ),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call()
