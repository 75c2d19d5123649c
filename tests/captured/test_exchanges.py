"""Tests messages to other ranks within captured steps, by a function that imitates the other
ranks."""

import warnings

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import observers, optimizers
from tests.captured.test_captured import assert_equal, perceptron


class OtherRanks:
    """Adds the contribution of imitated ranks, which is a different number in each call."""

    # Captured steps do not look into functions of this module, which replays call again.
    __module__ = "mpchain.distributed"

    def __init__(self):
        self.sent = []

    def __call__(self, array):
        self.sent.append(array.copy())
        return array + len(self.sent)


def batch_of(i, n=6):
    random = np.random.RandomState(i)
    return random.randn(n, 5).astype("f"), random.randint(-1, 3, n).astype("i")


def trained(captured, is_read=True, same=0, n_steps=9):
    """Trains with a mean over the labels that count on all ranks; returns the model, the losses,
    what was sent, and the reasons."""
    model, ranks = perceptron(), OtherRanks()
    optimizer = optimizers.SGD(0.1).setup(model)

    def step(x, t):
        count = observers.exchanged(ranks, np.sum((t >= 0).astype("f"), keepdims=True))
        losses = F.softmax_cross_entropy(model(x), t, reduce="no")
        loss = F.sum(losses) / (count.sum() if is_read else np.float32(3))
        model.cleargrads()
        loss.backward()
        optimizer.update()
        return loss

    step = mpchain.capture(step) if captured else step
    losses, reasons = [], []
    for i in range(n_steps):
        losses.append(step(*batch_of(max(i - same, 0))).array)
        reasons.append(getattr(step, "reason", None))
    return model, np.array(losses), ranks.sent, reasons


@pytest.mark.parametrize("is_read", [True, False])
# With 5, the first calls get equal arguments, so the comparison comes later.
@pytest.mark.parametrize("same", [0, 5])
def test_replays_exchange_once_in_each_call(is_read, same):
    model, losses, sent, _ = trained(False, is_read, same)
    other, other_losses, other_sent, reasons = trained(True, is_read, same)
    np.testing.assert_array_equal(sent, other_sent)
    np.testing.assert_allclose(other_losses, losses, rtol=1e-5)
    assert_equal(model, other)
    assert len(sent) == 9
    expected = [None] * 6
    if same:
        # The step runs eagerly, and is compared.
        expected[3] = "an argument has another value for the first time"
    assert reasons[3:] == expected


def test_a_replay_that_would_send_other_values_is_not_made():
    table, ranks = np.array([1.0, 2.0, 3.0]), OtherRanks()

    def step(x):
        hidden = np.asarray(x).astype(int)  # the conversion is not recorded
        return observers.exchanged(ranks, table[hidden]) * x

    step = mpchain.capture(step)
    for _ in range(5):
        np.testing.assert_array_equal(step(np.ones(2)), 2 + len(ranks.sent))
    assert step.reason is None
    with pytest.warns(UserWarning, match="not replayed"):
        found = step(np.zeros(2) + 2)
    assert len(ranks.sent) == 6
    np.testing.assert_array_equal(found, 2 * (3 + 6))


def test_an_exchange_that_gives_other_shapes_is_an_error():
    shapes = iter([2, 2, 2, 3])

    def exchange(array):
        return np.zeros(next(shapes))

    step = mpchain.capture(lambda x: observers.exchanged(exchange, x * 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(3):
            step(np.full(2, i))
        with pytest.raises(ValueError, match=r"exchanged: exchange returned float64 \(3,\), but"):
            step(np.full(2, 3))


def test_an_error_of_an_exchange_leaves_nothing_recorded():
    def exchange(array):
        if array[0] == 2:
            raise RuntimeError("rank 1 is gone")
        return array

    step = mpchain.capture(lambda x: observers.exchanged(exchange, x * 1))
    for i in (0, 1):
        step(np.full(2, i))
    with pytest.raises(RuntimeError, match="rank 1 is gone"):
        step(np.full(2, 2))
    assert observers.current.recorder is None
    for i in (3, 4, 5):
        np.testing.assert_array_equal(step(np.full(2, i)), i)
    assert step.reason is None


def test_one_link_after_another_exchanges_in_order():
    model, ranks = mpchain.Sequential(L.Linear(5, 5), L.Linear(5, 5)), OtherRanks()

    @mpchain.capture
    def step(x):
        for link in model:
            y = link(x).array
            x = y + observers.exchanged(ranks, y.sum(keepdims=True)) * 0
        return x

    for i in range(6):
        x, _ = batch_of(i)
        step(x)
        h = model[0](x).array
        np.testing.assert_allclose(ranks.sent[-2], h.sum(keepdims=True), rtol=1e-4)
        np.testing.assert_allclose(ranks.sent[-1], model[1](h).array.sum(keepdims=True), rtol=1e-4)
    assert step.reason is None and len(ranks.sent) == 12
