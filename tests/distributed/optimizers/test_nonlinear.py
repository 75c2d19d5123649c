"""Tests the warnings about losses that ranks cannot average."""

import re
import warnings

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import iterators, optimizers
from mpchain import links as L
from mpchain.distributed import (
    MultiNodeUpdater,
    create_multi_node_optimizer,
    create_sharded_iterator,
)
from mpchain.distributed import functions as DF
from mpchain.distributed.optimizers.nonlinear import why_not_averaged
from mpchain.distributed.optimizers.sample_graph import SampleGraph
from mpchain.distributed.optimizers.scales import Scales, difference, scales_of

N = 5
x = np.random.RandomState(0).uniform(0.5, 1, (N, 2)).astype("f")
t = np.random.RandomState(1).uniform(0.5, 1, (N, 3)).astype("f")
net = L.Linear(2, 3)
scale = mpchain.Parameter(np.array(1.5, "f"))
four = mpchain.Variable(np.array(4, "f"))


def nonlinear(loss, n=N):
    """Returns the label of the function that prevents ranks from averaging a loss, or None."""
    reason = why_not_averaged(SampleGraph(loss, n)) or ""
    return next(iter(re.findall(r"\((\w+)\)", reason)), None)


def error():
    return F.mean_squared_error(net(x), t)


def part(n):
    return F.mean(net(x) ** n)


def means():
    return F.mean(net(x), axis=0)


class Halved(mpchain.FunctionNode):
    """A function whose derivative tells nobody that it is linear."""

    def forward(self, inputs):
        return (inputs[0] / 2,)


NONLINEAR = {
    "sqrt": lambda: F.sqrt(error()),
    "sqrt behind linear functions": lambda: 3 * F.cast(F.sqrt(error() / 2 + 1), "d") - part(2),
    "power": lambda: error() ** 2,
    "cube": lambda: error() ** 3,
    "exp": lambda: F.exp(part(2)) * scale,
    "log": lambda: part(2) + F.log(part(2)),
    "product": lambda: part(2) * part(4),
    "quotient (Dice)": lambda: 1 - 2 * F.sum(net(x) * t) / (F.sum(net(x)) + np.sum(t)),
    "inverse": lambda: 1 / part(2),
    "hinge": lambda: F.relu(part(2) - 0.1),
    "maximum over samples": lambda: F.max(net(x)),
    "squared error of a mean": lambda: F.sum(F.squared_error(means(), t[0])),
    "Huber loss of a mean": lambda: F.sum(F.huber_loss(means()[None], t[:1], 0.1)),
    "arctangent": lambda: F.arctan(part(2)),
    "error function": lambda: F.erf(part(2)),
    "softmax of means": lambda: F.softmax(means()[None])[0, 0],
    "maximum of mixed rows": lambda: F.sum(F.max(net(x) - means(), axis=1)),
    "inverse matrix": lambda: F.sum(F.inv(F.matmul(net(x), net(x), transa=True))),
    "function of a user": lambda: Halved().apply((part(2),))[0],
}
COMPARED = {
    "softmax over samples": lambda: F.sum(F.softmax(net(x), axis=0) * t),
    "softmax over columns": lambda: F.sum(F.softmax(net(x).T, axis=1) * t.T),
    "sums of earlier samples": lambda: F.sum(F.cumsum(net(x), axis=0) * t),
    "columns of length 1": lambda: F.sum(F.normalize(net(x), axis=0) * t),
}
LINEAR = {
    "mean": lambda: part(2),
    "root of each sample": lambda: F.mean(F.sqrt(F.sum(net(x) ** 2, axis=1))),
    "a loop over samples": lambda: sum(F.sqrt(F.sum(net(x[i : i + 1]) ** 2)) for i in range(N)) / N,
    "sums of means": lambda: (
        2 * part(2) - part(4) / 3 + F.softmax_cross_entropy(net(x), np.ones(N, int))
    ),
    "learned weight": lambda: F.exp(-scale) * error() + scale**2,
    "norm of weights": lambda: error() + 0.1 * F.sqrt(F.sum(net.W**2)),
    "orthogonal weights": lambda: (
        error() + F.sqrt(F.sum((F.matmul(net.W, net.W, transb=True) - np.eye(3, dtype="f")) ** 2))
    ),
    "weighted mean": lambda: F.average(net(x) ** 2, weights=t),
    "root of a mean over all": lambda: F.sqrt(mpchain.batch_mean((net(x) - t) ** 2)),
    "constant scalars": lambda: error() * np.float32(2) / F.sum(t),
    "linear layer of means": lambda: F.sum(F.linear(means()[None], net.W.T)) - F.sum(means()),
    "chosen means": lambda: F.sum(F.where(t[0] > 0.7, means(), -means())) * np.float32(3),
    "softmax of each sample": lambda: F.mean(F.log_softmax(net(x))[:, 0]),
    "layer normalization": lambda: F.mean(F.layer_normalization(net(x), t[0], t[1])[:, 0]),
}


@pytest.mark.parametrize("name", NONLINEAR)
def test_nonlinear_functions_of_means_are_seen(name):
    assert nonlinear(NONLINEAR[name]()) is not None


@pytest.mark.parametrize("name", COMPARED)
def test_functions_along_the_axis_of_samples_are_seen(name):
    assert "compares the samples" in why_not_averaged(SampleGraph(COMPARED[name](), N))


@pytest.mark.parametrize("name", LINEAR)
def test_no_false_alarms(comm, name):
    assert warned(comm, LINEAR[name]) == []


def test_what_all_ranks_compute_is_known():
    (g,) = mpchain.grad([error()], [net.W], enable_double_backprop=True)
    comm = mpchain.create_communicator()
    assert nonlinear(error() + F.sqrt(F.sum(DF.allreduce(comm, g) ** 2)), N) is None
    assert nonlinear(error() + F.sqrt(F.sum(g**2)), N) == "power_of_constant_exponent"


def test_large_graphs_are_walked_without_recursion():
    y = net(x)
    for _ in range(5000):
        y = y + 0.001
    assert nonlinear(F.sqrt(F.mean(y)), N) == "sqrt"


def warned(comm, loss):
    vars(comm).pop("_control", None)  # other tests have made this control warn
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.0), comm).setup(net)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            optimizer.n_samples = N
            optimizer.update(loss)
    return [str(w.message) for w in caught if "parameters" not in str(w.message)]


def test_rank_0_warns_once(comm):
    found = warned(comm, NONLINEAR["sqrt"])
    assert len(found) == (comm.size > 1 and comm.rank == 0)
    message = (
        r"test_nonlinear.py:\d+ in <lambda>: the loss is a nonlinear function \(sqrt\) of a mean"
    )
    assert all(re.search(f"{message}.*mpchain.batch_mean", text) for text in found)


FACTORS = {
    "mean over a mask": (lambda: F.sum(net(x)) / t.sum(), [1 / t.sum()]),
    "two terms": (lambda: 2 * part(2) - F.mean(net(x)) / 3 + F.sum(net.W), [1 / 45, 2 / 15]),
    "cancelled": (lambda: F.sum(net(x)) / 7 * 7 + 1, [1]),
    "scalar Variables": (lambda: F.sum(net(x)) / four * 3, [0.75]),
    "linear layer of means": (lambda: F.sum(F.linear(means()[None], net.W.T)), [1 / 5]),
    "learned": (lambda: F.exp(scale) * error(), [1 / 15]),
    "a loop over samples": (lambda: sum(F.sum(net(x[i : i + 1])) / (i + 1) for i in range(N)), []),
    "by zero": (lambda: F.sum(net(x)) * np.float32(np.inf), []),
}


@pytest.mark.parametrize("name", FACTORS)
def test_factors_of_means(name):
    loss, expected = FACTORS[name]
    with np.errstate(invalid="ignore"):
        graph = SampleGraph(loss := loss(), N)
        assert sorted(scales_of(loss, graph).factors) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("reduced", [F.sum, F.mean])
def test_sums_behind_a_linear_layer_are_seen(reduced):
    loss = F.sum(F.linear(reduced(net(x), axis=0)[None], net.W.T))
    assert scales_of(loss, SampleGraph(loss, N)).is_plain_sum is (reduced is F.sum)


def test_factors_of_parts():
    def told(*parts):
        return difference([(weight, Scales(held)) for weight, held in parts], 1e-6)

    assert told((2, [1.0]), (3, [1.0])) is None
    assert told((2, [0.5]), (3, [1 / 3])) is None  # the factors are 1 / n
    assert "(0.5, 0.25)" in told((2, [0.5]), (2, [0.25]))
    assert told((2, [0.5]), (0, [0.25]), (2, [])) is None  # other ranks have other terms, or none
    assert told((2, [0.5]), (2, [0.5, 0.2])) is None
    assert told() is None


def test_means_over_what_numpy_counts_are_told(comm):
    mask = np.arange(N * 3).reshape(N, 3) % (2 + comm.rank) == 0

    def by_hand():
        return F.sum((net(x) - t) ** 2 * mask) / mask.sum()

    def exact():
        return F.sum((net(x) - t) ** 2 * mask) / mpchain.batch_count(mask.sum()) * comm.size

    found = warned(comm, by_hand)
    assert len(found) == (comm.size > 1 and comm.rank == 0)
    message = r"by_hand: the loss multiplies a sum or mean .* number \(0.125, .*mpchain.batch_mean"
    assert all(re.search(message, text) for text in found), found
    assert warned(comm, exact) == []


class _Deep(mpchain.Chain):
    """A user's model, in which the line to report is neither the first nor in the loss function."""

    def forward(self, x):
        return self.spread(net(x))

    def spread(self, y):
        mean = F.mean(y**2)
        return F.sqrt(mean)


def _trains(comm, model, t=None):
    """Returns the warnings of one update by an updater."""
    vars(comm).pop("_control", None)
    data = [(row,) if t is None else (row, t) for row in np.vstack([x, x])]
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.0), comm).setup(model)
    batches = create_sharded_iterator(iterators.SerialIterator(data, 2 * N), comm)
    updater = MultiNodeUpdater(batches, optimizer, comm)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        updater.update()
    return [str(w.message) for w in caught]


def test_the_line_of_the_loss_is_named(comm):
    line = _Deep.spread.__code__.co_firstlineno + 2
    expected = rf"test_nonlinear.py:{line} in spread: the loss is a nonlinear function \(sqrt\)"
    found = _trains(comm, _Deep())
    assert len(found) == (comm.size > 1 and comm.rank == 0)
    assert all(re.search(expected, text) for text in found), found


def test_a_loss_without_lines_of_the_program_is_told_as_such(comm):
    layers = mpchain.Sequential(L.Linear(2, 3), L.BatchNormalization(3))
    model = L.Classifier(layers, F.mean_squared_error)
    model.compute_accuracy = False
    found = _trains(comm, model, np.ones(3, "f"))
    found = [text for text in found if "statistics of the samples" in text]
    assert len(found) == (comm.size > 1 and comm.rank == 0)
    expected = "in _trains, whose loss is computed within mpchain: batch_normalization takes"
    assert all(expected in text for text in found), found
