"""Losses that are means over counts: N ranks, and parts of a batch, compute what one process does.

The reference is an ordinary optimizer on the whole batch, which every rank has.
"""

import functools

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.distributed import create_multi_node_optimizer

N, D, C = 12, 5, 4
N_STEPS = 3
LIMIT = 1e-12  # rounding of sums in another order, in three steps


@pytest.fixture(autouse=True)
def float64():
    with mpchain.using_config("dtype", np.dtype("f8")):
        yield


class Data:
    """A batch: arrays whose first axis is the samples. Labels of -1 are many, and uneven."""

    def __init__(self, n=N):
        random = np.random.RandomState(3)
        self.x = random.normal(size=(n, D))
        self.t = random.randint(C, size=n).astype(np.int32)
        self.t[2 : n // 2] = -1
        self.seq = random.normal(size=(n, 3, D))
        self.labels = random.randint(C, size=(n, 3)).astype(np.int32)
        self.labels[np.arange(n) % 5 < 2, 1:] = -1
        self.labels[n // 2 :, 2] = -1
        self.bits = random.randint(-1, 2, size=(n, C)).astype(np.int32)
        self.bits[n // 3 : n // 2] = -1
        self.soft = random.dirichlet(np.ones(C), size=(n, 3)).swapaxes(1, 2).copy()
        self.weights = random.uniform(0, 2, size=n) * (np.arange(n) % 4 > 0)
        self.y = random.normal(size=(n, 1))
        self.sizes = 1 + np.arange(n) * 7 % 5  # atoms of each molecule
        self.atoms = [random.normal(size=(k, D)) for k in self.sizes]

    def part(self, mine):
        part = object.__new__(Data)
        vars(part).update({name: value[mine] for name, value in vars(self).items()})
        return part


class Model(mpchain.Chain):
    def __init__(self):
        super().__init__()
        random = np.random.RandomState(5)
        with self.init_scope():
            self.l1 = L.Linear(D, 6, initialW=random.normal(size=(6, D)) * 0.5)
            self.l2 = L.Linear(6, C, initialW=random.normal(size=(C, 6)) * 0.5)

    def forward(self, x):
        return self.l2(F.tanh(self.l1(x)))

    def steps(self, seq):
        """(N, C, T)"""
        y = self(seq.reshape(-1, D))
        return F.swapaxes(F.reshape(y, (len(seq), -1, C)), 1, 2)


class_weight = np.array([0.5, 1.0, 2.0, 4.0])


def share(data):
    """This rank's share of the samples; 1 in one process."""
    return len(data.x) / mpchain.batch_count(len(data.x))


def penalized(loss_of):
    """Adds the squared norm of the gradient of the whole loss by each sample."""

    def loss(model, data):
        x = mpchain.Variable(data.x)
        y = loss_of(model(x), data)
        (gx,) = mpchain.grad([y * share(data)], [x], enable_double_backprop=True)
        return y + 100 * F.sum(gx**2) / share(data)

    return loss


def unrolled(model, data):
    y = model.steps(data.seq)
    return sum((1 + k) * F.softmax_cross_entropy(y[:, :, k], data.labels[:, k]) for k in range(3))


def dice(model, data):
    p, t = F.sigmoid(model(data.x)[:, 0]), (data.t >= 0).astype(float)
    both = mpchain.batch_sum(p * t)
    return 1 - 2 * both / (mpchain.batch_sum(p) + mpchain.batch_sum(t))


def decov(model, data):
    h = F.tanh(model.l1(data.x))
    h = h - mpchain.batch_sum(h, axis=0) / mpchain.batch_count(len(data.x))
    covariance = mpchain.batch_sum(F.matmul(h, h, transa=True), axis=())
    return F.sum((covariance / mpchain.batch_count(len(data.x))) ** 2)


def by_atom(model, data):
    return F.concat([model(x)[:, 0] ** 2 for x in data.atoms], axis=0)


def sum_by_positives(model, data):
    y = model(data.x)
    n = mpchain.batch_count(int((data.t > 0).sum()))
    return F.sum(F.softmax_cross_entropy(y, data.t, reduce="no")) / (n * share(data))


def rows_of_words(model, data):
    keep = data.labels.reshape(-1) % 3 != 1
    y = model(data.seq.reshape(-1, D)[keep])
    return F.softmax_cross_entropy(y, data.labels.reshape(-1)[keep])


MEANS = {
    "softmax": lambda m, d: F.softmax_cross_entropy(m(d.x), d.t),
    "class weights": lambda m, d: F.softmax_cross_entropy(m(d.x), d.t, class_weight=class_weight),
    "smoothing": lambda m, d: F.softmax_cross_entropy(m(d.x), d.t, label_smoothing=0.1),
    "segmentation": lambda m, d: F.softmax_cross_entropy(m.steps(d.seq), d.labels),
    "soft targets": lambda m, d: F.softmax_cross_entropy(m.steps(d.seq), d.soft),
    "sigmoid": lambda m, d: F.sigmoid_cross_entropy(m(d.x), d.bits),
    "focal": lambda m, d: F.focal_loss(m(d.x), d.bits),
    "weights": lambda m, d: F.average(m(d.x)[:, 0] ** 2, weights=d.weights),
    "weights kept": lambda m, d: F.sum(
        F.average(m(d.x)[:, 0] ** 2, weights=d.weights, keepdims=True)
    ),
    "two": lambda m, d: F.softmax_cross_entropy(m(d.x), d.t) + F.focal_loss(m(d.x), d.bits),
    "unrolled": unrolled,
    "words": rows_of_words,
    "denominator": sum_by_positives,
    "penalty": penalized(lambda y, d: F.softmax_cross_entropy(y, d.t)),
    # Exact before.
    "normalize=False": lambda m, d: F.softmax_cross_entropy(m(d.x), d.t, normalize=False),
    "class weights alone": lambda m, d: F.softmax_cross_entropy(
        m(d.x), abs(d.t), class_weight=class_weight
    ),
    "hinge": lambda m, d: F.hinge(m(d.x), abs(d.t)),
    "huber": lambda m, d: F.mean(F.huber_loss(m(d.x)[:, :1], d.y, 1.0)),
    "soft targets of samples": lambda m, d: F.softmax_cross_entropy(m(d.x), d.soft[:, :, 0]),
}
WHOLE = {
    "masked mean": lambda m, d: mpchain.batch_mean(m(d.x)[:, 0] ** 2, weights=d.t >= 0.0),
    "atoms": lambda m, d: mpchain.batch_mean(by_atom(m, d)),
    "root": lambda m, d: F.sqrt(mpchain.batch_mean((m(d.x)[:, :1] - d.y) ** 2)),
    "dice": dice,
    "decov": decov,
    "learned weights": lambda m, d: mpchain.batch_mean(
        m(d.x)[:, 0] ** 2, weights=F.softplus(m(d.x)[:, 1])
    ),
    "learned weights of average": lambda m, d: F.average(
        m(d.x)[:, 0] ** 2, weights=F.softplus(m(d.x)[:, 1])
    ),
    "penalty of root": penalized(lambda y, d: F.sqrt(mpchain.batch_mean((y[:, :1] - d.y) ** 2))),
}


@functools.cache
def expected(name):
    loss, model, data = {**MEANS, **WHOLE}[name], Model(), Data()
    optimizer, losses = optimizers.SGD(0.3).setup(model), []

    def compute():
        losses.append(loss(model, data))
        return losses[-1]

    for _ in range(N_STEPS):
        optimizer.update(compute)
    return params_of(model), np.array([loss.item() for loss in losses])


def divisions(size, n=N):
    """Ends of the ranks' parts: as even as possible; the first rank has most; the last has none."""
    yield np.arange(size + 1) * n // size
    if size > 1:
        yield np.r_[0, n - 2 * (size - 1) + np.arange(size - 1) * 2, n]
        yield np.r_[np.arange(size) * n // (size - 1), n]
        yield np.r_[0, np.arange(size) * n // (size - 1)]


def close(found, wanted):
    return np.abs(found - wanted).max() <= LIMIT * np.abs(wanted).max()


def train(comm, loss, mine, steps=N_STEPS):
    """Returns the parameters after some steps on a part of the data, and the weighted losses."""
    data, model, losses = Data().part(mine), Model(), []
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)

    def compute():
        losses.append(loss(model, data))
        return losses[-1]

    for i in range(steps):
        with comm.batch(N if i == 1 else None, mine=mine):
            optimizer.update(compute)
    own = [x.item() * len(data.x) / N for x in losses] or [0.0] * steps
    return params_of(model), comm.allreduce(np.array(own))


def params_of(model):
    return np.concatenate([param.array.ravel() for param in model.params()])


@pytest.mark.parametrize("name", [*MEANS, *WHOLE])
def test_ranks_compute_the_means_of_one_process(comm, name):
    for ends in divisions(comm.size):
        mine = slice(*map(int, ends[comm.rank : comm.rank + 2]))
        params, losses = train(comm, {**MEANS, **WHOLE}[name], mine)
        assert close(params, expected(name)[0]), name
        assert close(losses, expected(name)[1]), name
