"""Tests that graphs of GPUs are compared before they are used, and that guards check their
conditions."""

import collections
import warnings

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.backends.dtypes import as_dtype
from mpchain.captured.cuda_graph import CudaGraph
from mpchain.captured.state import Carried
from tests.captured.test_captured import batch_of, perceptron
from tests.captured.test_cuda_graph import GPU, assert_same, classifier_step, run_both, send

pytestmark = pytest.mark.gpu


def on_gpu(model):
    model.to_device(GPU)
    return model


def refused(step, reason, n=6):
    step = mpchain.capture(step)
    with pytest.warns(UserWarning, match=reason):
        return [step(*send(batch_of(i))) for i in range(n)], step


@pytest.mark.parametrize("make_optimizer", [optimizers.SGD, optimizers.Adam])
def test_a_wrong_graph_changes_nothing(monkeypatch, make_optimizer):
    expected, _, _ = run_both(perceptron, make_optimizer, classifier_step, 2)
    store = CudaGraph._store

    def wrong(self, values):
        store(self, values * 3)

    monkeypatch.setattr(CudaGraph, "_store", wrong)
    reason = "a replay (updated parameters differently|computed other states)"
    with pytest.warns(UserWarning, match=reason):
        models, _, step = run_both(perceptron, make_optimizer, classifier_step, 2)
    assert_same(expected[0], models[1])  # the second step has run eagerly
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="capture")
        models, _, step = run_both(perceptron, make_optimizer, classifier_step, 6)
    assert_same(*models)
    assert step.reason is not None


def test_the_third_call_is_a_launch():
    models, losses, step = run_both(perceptron, optimizers.Adam, classifier_step, 3)
    assert step.reason is None
    assert_same(*models)
    assert [float(x.array) for x in losses[0]] == [float(x.array) for x in losses[1]]


def test_attributes_are_guards():
    model = on_gpu(L.Linear(5, 3))
    model.ratio = 1.0
    step = mpchain.capture(lambda x, t: F.sum(model(x)) * model.ratio)
    reasons = []
    for i in range(9):
        model.ratio = 2.0 if 3 < i < 7 else 1.0
        x, t = send(batch_of(i))
        expected = float(F.sum(model(x)).array) * model.ratio
        assert float(step(x, t).array) == pytest.approx(expected, rel=1e-5)
        reasons.append(step.reason)
    assert [i for i, reason in enumerate(reasons) if reason is not None] == [0, 1, 4, 7]


def test_attributes_that_a_step_sets_are_refused():
    model = on_gpu(L.Linear(5, 3))
    model.mean, model.n = model.xp.zeros(5, "f"), 0

    def averages(x, t):
        model.mean = 0.9 * model.mean + 0.1 * x.mean(axis=0)
        return model.mean * 1

    found, _ = refused(averages, "it sets mean of a Linear")
    mean = np.zeros(5, "f")
    for i, value in enumerate(found):
        mean = 0.9 * mean + 0.1 * batch_of(i)[0].mean(axis=0)
        np.testing.assert_allclose(value.get(), mean, rtol=1e-4, atol=1e-6)

    def counts(x, t):
        model.n += 1
        return x * model.n

    found, _ = refused(counts, "it sets n of a Linear")
    np.testing.assert_allclose(found[-1].get(), batch_of(5)[0] * 6, rtol=1e-6)


def test_arrays_of_the_program_are_written_by_launches():
    total = mpchain.cuda.cupy.zeros(5, "f")

    @mpchain.capture
    def step(x, t):
        total[...] += x.sum(axis=0)

    expected = np.zeros(5, "f")
    for i in range(6):
        step(*send(batch_of(i)))
        expected += batch_of(i)[0].sum(axis=0)
        np.testing.assert_allclose(total.get(), expected, rtol=1e-4, atol=1e-5)
    assert step.reason is None


class Opaque:
    def __init__(self, array):
        self.array = array


def test_what_is_returned():
    model, pair = on_gpu(L.Linear(5, 3)), collections.namedtuple("Pair", "y n")
    step = mpchain.capture(lambda x, t: pair(model(x), 3))
    for i in range(5):
        x, t = send(batch_of(i))
        found = step(x, t)
        np.testing.assert_allclose(found.y.array.get(), model(x).array.get(), rtol=1e-5)
    assert step.reason is None and found.n == 3
    refused(lambda x, t: Opaque(model(x)), "it returns a Opaque")


def test_numbers_that_change_are_refused():
    calls = []

    class Counter:
        def __call__(self):
            calls.append(None)
            return len(calls)

    counter = Counter()
    refused(lambda x, t: (x * 2, counter()), "it returns other numbers in each step")


DTYPES = ["f", "e", "d", "bfloat16", "i", "B", "?"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arguments_that_do_not_reach_the_graph_are_found_before_the_first_launch(
    monkeypatch, dtype
):
    """They are found in the call that captures, too, because the graph's memory does not hold its
    arguments."""
    monkeypatch.setattr(mpchain.cuda.cupy, "copyto", lambda to, array: None)
    model = on_gpu(L.Linear(5, 3))
    step = mpchain.capture(lambda x: F.sum(model(x.astype("f"))).array)
    x = (mpchain.cuda.cupy.arange(20).reshape(4, 5) % 7).astype(as_dtype(dtype))
    with pytest.warns(UserWarning, match="a replay computed other results"):
        found = [float(step(x)) for _ in range(4)]
    assert len(set(found)) == 1


def test_state_that_does_not_reach_the_graph_is_found_before_the_first_launch(monkeypatch):
    monkeypatch.setattr(Carried, "load", lambda self: None)
    model = on_gpu(L.LSTM(5, 3))
    step = mpchain.capture(lambda x: model(x).array)
    x, _ = send(batch_of(0))
    with pytest.warns(UserWarning, match="a replay computed other (results|state)"):
        for _ in range(3):
            step(x)


def test_arguments_that_a_step_writes_are_written_by_launches():
    model = on_gpu(L.Linear(5, 3))

    def step(x, t):
        x += model(x).array.sum()
        return x * 2

    captured = mpchain.capture(step)
    for i in range(6):
        mine, other = send(batch_of(i)), send(batch_of(i))
        np.testing.assert_allclose(captured(*mine).get(), step(*other).get(), rtol=1e-5)
        for x, y in zip(mine, other, strict=True):
            np.testing.assert_allclose(x.get(), y.get(), rtol=1e-5)
    assert captured.reason is None


def test_arguments_that_share_memory_which_a_step_writes_are_refused():
    def step(x, y):
        x += 1
        return y * 2

    captured = mpchain.capture(step)
    with pytest.warns(UserWarning, match="a replay computed other results"):
        for i in range(5):
            x, _ = send(batch_of(i))
            np.testing.assert_allclose(captured(x, x).get(), 2 * (batch_of(i)[0] + 1), rtol=1e-6)
