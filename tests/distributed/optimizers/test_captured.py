"""Captured steps of several ranks: replays average gradients as steps that run as always do."""

import contextlib
import warnings

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers, recording
from mpchain.distributed import MultiNodeUpdater, create_multi_node_optimizer
from mpchain.function_hooks import TimerHook
from mpchain.iterators import SerialIterator
from mpchain.training.updaters import StandardUpdater


def perceptron():
    np.random.seed(0)
    return mpchain.Sequential(L.Linear(5, 7), F.relu, L.Linear(7, 3))


def batch_of(i, rank, n=4):
    random = np.random.RandomState(10 * i + rank)
    return random.randn(n, 5).astype("f"), random.randint(0, 3, n).astype("i")


def trained(comm, captured, prepare=lambda optimizer, i: None, n_steps=7, ratio=None):
    """Trains a model; returns its parameters and gradients, and the reasons of each step."""
    model = perceptron()
    optimizer = create_multi_node_optimizer(optimizers.MomentumSGD(0.1), comm).setup(model)

    def step(x, t):
        def loss():
            y = model(x)
            return F.softmax_cross_entropy(y if ratio is None else F.dropout(y, ratio), t)

        optimizer.update(loss)

    step = mpchain.capture(step) if captured else step
    reasons = []
    for i in range(n_steps):
        prepare(optimizer, i)
        step(*batch_of(i, comm.rank))
        reasons.append(getattr(step, "reason", None))
    return [x for p in model.params() for x in (p.array.copy(), p.grad.copy())], reasons


def assert_equal(expected, found):
    for x, y in zip(expected, found, strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-7)


def test_replays_average_gradients(comm):
    expected, _ = trained(comm, False)
    found, reasons = trained(comm, True)
    assert reasons[3:] == [None] * 4
    assert_equal(expected, found)


def test_weights_of_ranks_may_change(comm):
    def prepare(optimizer, i):
        optimizer.n_samples = 4 + i * comm.rank

    expected, _ = trained(comm, False, prepare)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps whose weight is another one each time
        found, reasons = trained(comm, True, prepare)
    assert_equal(expected, found)
    assert comm.size > 1 or reasons[-1] is None


def test_weights_that_change_after_the_recording(comm):
    def prepare(optimizer, i):
        optimizer.n_samples = 4 + (comm.rank if i > 4 else 0)

    expected, _ = trained(comm, False, prepare)
    found, reasons = trained(comm, True, prepare)
    assert reasons[3:] == [None] * 4
    assert_equal(expected, found)


def test_one_rank_may_run_as_always(comm):
    with contextlib.ExitStack() as stack:

        def prepare(optimizer, i):
            if i == 5 and comm.rank == comm.size - 1:
                stack.enter_context(TimerHook())

        expected, _ = trained(comm, False)
        found, reasons = trained(comm, True, prepare)
    assert reasons[3:5] == [None] * 2
    assert (reasons[5] is None) == (comm.rank < comm.size - 1)
    assert_equal(expected, found)


def test_loss_scales(comm):
    def prepare(optimizer, i):
        optimizer.set_loss_scale(8.0)

    expected, _ = trained(comm, False)
    found, reasons = trained(comm, True, prepare)
    assert reasons[3:] == [None] * 4
    assert_equal(expected, found)


def test_draws_by_sample_are_not_replayed(comm):
    with pytest.warns(UserWarning, match="several ranks draw random numbers by sample"):
        _, reasons = trained(comm, True, ratio=0.5)
    assert None not in reasons


def test_accumulation_is_not_replayed(comm):
    model = perceptron()
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)

    @mpchain.capture
    def step(x, t):
        with optimizer.no_sync():
            optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
        optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))

    with pytest.warns(UserWarning, match="gradients are not exchanged in the step"):
        for i in range(3):
            step(*batch_of(i, comm.rank))
    assert recording.current.recorder is None


def updater_of(kind, comm, *args):
    model = L.Classifier(perceptron())
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)
    batches = SerialIterator([*zip(*batch_of(0, comm.rank))], 4, shuffle=False)
    return kind(batches, optimizer, *args, graph=True)


def test_standard_updaters_replay(comm):
    updater = updater_of(StandardUpdater, comm)
    for _ in range(4):
        updater.update()
    assert updater._captured.reason is None


def test_multi_node_updaters_run_as_always(comm):
    with pytest.warns(UserWarning, match="graph=True has no effect"):
        updater = updater_of(MultiNodeUpdater, comm, comm)
    updater.update()
