"""Tests captured steps of several ranks, of which some compare a step while others replay it."""

import warnings

import numpy as np

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import observers, optimizers
from mpchain.captured.step import VARIES
from mpchain.distributed import create_multi_node_optimizer

WEIGHTS = np.array([0.2, 1.0, 5.0], "f")


def batch_of(i, rank, n=4):
    random = np.random.RandomState(10 * i + rank)
    return random.randn(n, 5).astype("f"), random.randint(0, 3, n).astype("i")


def perceptron():
    np.random.seed(0)
    return mpchain.Sequential(L.Linear(5, 7), F.relu, L.BatchNormalization(7), L.Linear(7, 3))


class Total:
    """Sums arrays over the ranks, and records the results."""

    # Captured steps do not look into functions of mpchain.distributed; replays call them again.
    __module__ = "mpchain.distributed"

    def __init__(self, comm):
        self.comm, self.seen = comm, []

    def __call__(self, array):
        self.seen.append(array.copy())
        return self.comm.allreduce(array)


def trained(comm, captured, batches, n_steps=10, exchange=None, own_loss=None):
    """Trains a model; returns its parameters and a running mean, the messages, and the reason after
    each step."""
    model, total = perceptron(), Total(comm)
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.02), comm).setup(model)

    def loss_of(x, t):
        if own_loss is not None:
            return own_loss(model(x), t)
        loss = F.softmax_cross_entropy(model(x), t, class_weight=WEIGHTS)
        if exchange:
            loss *= (
                1 / observers.exchanged(total, np.sum((t > 0).astype("f"), keepdims=True) + 1).sum()
            )
        return loss

    def step(x, t):
        optimizer.update(lambda: loss_of(x, t))

    step = mpchain.capture(step) if captured else step
    reasons = []
    for i in range(n_steps):
        step(*batches(i))
        reasons.append(getattr(step, "reason", None))
    values = [p.array.copy() for _, p in sorted(model.namedparams())]
    return [*values, model[2].avg_mean.copy()], total.seen, reasons


def assert_equal(comm, expected, found):
    for x, y in zip(expected[0], found[0], strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(expected[1], found[1])
    values = [x.tolist() for x in found[0][:-1]]  # running statistics differ between ranks
    assert comm.allgather_obj(values) == [values] * comm.size


def test_one_rank_has_equal_arguments_at_first(comm):
    def batches(i):
        is_last = comm.rank == comm.size - 1
        return batch_of(max(i - 4, 0) if is_last else i, comm.rank)

    expected = trained(comm, False, batches)
    found = trained(comm, True, batches)
    assert_equal(comm, expected, found)
    own = found[2][3:]
    assert own == ([None, None, VARIES] if comm.rank == comm.size - 1 else [None] * 3) + [None] * 4


def test_arguments_vary_on_each_rank_at_another_time(comm):
    def batches(i):
        return batch_of(max(i - 3 - comm.rank, 0), comm.rank)

    expected = trained(comm, False, batches, exchange=True)
    found = trained(comm, True, batches, exchange=True)
    assert len(found[1]) == 10  # there is one sum in each call
    assert_equal(comm, expected, found)
    assert [i for i, reason in enumerate(found[2]) if reason == VARIES] == [4 + comm.rank]


def test_one_rank_refuses_when_an_argument_varies(comm):
    def own_loss(y, t):
        weights = WEIGHTS[np.asarray(t) + 0]  # the conversion is not recorded
        return F.mean(F.softmax_cross_entropy(y, t, reduce="no") * weights)

    def batches(i):
        x, t = batch_of(i, comm.rank)
        if comm.rank < comm.size - 1:
            return x, np.array([0, 1, 2, 1], "i")  # labels never vary
        return x, t if i > 4 else np.array([0, 1, 2, 1], "i")

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="capture")
        expected = trained(comm, False, batches, own_loss=own_loss)
        found = trained(comm, True, batches, own_loss=own_loss)
    assert_equal(comm, expected, found)
    assert (found[2][-1] is None) == (comm.rank < comm.size - 1)


def test_one_rank_records_anew(comm):
    scale = [1.0]

    def own_loss(y, t):
        return F.softmax_cross_entropy(y, t) * scale[0]

    def batches(i):
        scale[0] = 2.0 if i > 5 and comm.rank == 0 else 1.0
        return batch_of(i, comm.rank)

    expected = trained(comm, False, batches, 12, own_loss=own_loss)
    found = trained(comm, True, batches, 12, own_loss=own_loss)
    assert_equal(comm, expected, found)
    assert [i for i, r in enumerate(found[2]) if r is not None][3:] == (
        [6, 7] if comm.rank == 0 else []
    )
