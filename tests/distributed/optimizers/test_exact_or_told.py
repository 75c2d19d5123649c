"""Tests that several ranks make the updates of one process, or that rank 0 warns."""

import warnings

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.distributed import create_multi_node_optimizer

N_SAMPLES, LENGTH, N_FEATURES, N_CLASSES = 14, 5, 6, 3

random = np.random.RandomState(0)
features = random.standard_normal((N_SAMPLES, LENGTH, N_FEATURES))
targets = random.standard_normal((N_SAMPLES, LENGTH))
lengths = np.array([1, 5, 2, 1, 2, 3, 5, 4, 3, 5, 5, 4, 1, 2])
masks = (np.arange(LENGTH) < lengths[:, None]).astype(np.float64)
labels = np.where(masks > 0, random.randint(0, N_CLASSES, masks.shape), -1)


class Net(mpchain.Chain):
    def __init__(self):
        super().__init__()
        weights = np.random.RandomState(1)
        with mpchain.using_config("dtype", np.dtype(np.float64)), self.init_scope():
            self.value = L.Linear(N_FEATURES, 1, initialW=weights.randn(1, N_FEATURES))
            self.classes = L.Linear(
                N_FEATURES, N_CLASSES, initialW=weights.randn(N_CLASSES, N_FEATURES)
            )
            self.normalize = L.BatchNormalization(N_FEATURES)


def values(net, x):
    return F.reshape(net.value(F.reshape(x, (-1, N_FEATURES))), x.shape[:2])


def scores(net, x):
    return F.reshape(net.classes(F.reshape(x, (-1, N_FEATURES))), (*x.shape[:2], N_CLASSES))


def errors(net, x, t):
    return (values(net, x) - t) ** 2


def embedded(net, x):
    return F.normalize(F.mean(scores(net, x), axis=1))


def known(net, x, c):
    is_known = c.reshape(-1) >= 0
    return F.reshape(scores(net, x), (-1, N_CLASSES))[is_known], c.reshape(-1)[is_known]


def per_position(net, x, t, m, c):
    return F.sum(F.sum(errors(net, x, t) * m, axis=0) / np.maximum(m.sum(axis=0), 1))


def class_weights(net, x, t, m, c):
    y, t = known(net, x, c)
    counts = np.bincount(t, minlength=N_CLASSES) + 1.0
    return F.softmax_cross_entropy(y, t, class_weight=counts.sum() / counts)


def focal(net, x, t, m, c):
    y, t = known(net, x, c)
    p = F.select_item(F.softmax(y), t)
    return -F.sum((1 - p) ** 2 * F.log(p)) / len(t)


def contrastive(net, x, t, m, c):
    z = embedded(net, x)
    return F.softmax_cross_entropy(3 * F.matmul(z, z, transb=True), np.arange(len(x)))


def hardest_pair(net, x, t, m, c):
    z = embedded(net, x)
    return F.mean(F.max(F.sum((z[:, None] - z[None]) ** 2, axis=2), axis=1))


def variance(net, x, t, m, c):
    y = values(net, x)[:, 0]
    return F.mean((y - F.broadcast_to(F.mean(y), y.shape)) ** 2)


def covariance(net, x, t, m, c):
    y = scores(net, x)[:, 0]
    y -= F.broadcast_to(F.mean(y, axis=0, keepdims=True), y.shape)
    return F.sum((F.matmul(y, y, transa=True) / len(x)) ** 2)


def advantages(net, x, t, m, c):
    advantage = (t[:, 0] - t[:, 0].mean()) / (t[:, 0].std() + 1e-8)
    log_p = F.log_softmax(scores(net, x)[:, 0])
    return -F.mean(F.select_item(log_p, np.maximum(c[:, 0], 0)) * advantage)


def each_sequence(net, x, t, m):
    """Yields the errors and the number of words of each sequence."""
    for y, u, n in zip(values(net, x), t, m.sum(axis=1).astype(int)):
        yield (y[:n] - u[:n]) ** 2, n


def standardized_inputs(net, x, t, m, c):
    x = (x - x.mean(axis=(0, 1))) / x.std(axis=(0, 1))
    return F.mean(errors(net, x, t))


def dice(net, x, t, m, c):
    p = F.sigmoid(values(net, x))
    return 1 - 2 * F.sum(p * m) / (F.sum(p) + m.sum())


INEXACT = {
    "mean over a mask": lambda net, x, t, m, c: F.sum(errors(net, x, t) * m) / m.sum(),
    "mean over a mask, as a number": lambda net, x, t, m, c: (
        F.sum(errors(net, x, t) * m) * float(1 / m.sum())
    ),
    "weights": lambda net, x, t, m, c: F.sum(errors(net, x, t) * (m / m.sum())),
    "weights by einsum": lambda net, x, t, m, c: F.einsum(
        "ij,ij->", errors(net, x, t), m / m.sum()
    ),
    "where": lambda net, x, t, m, c: (
        F.sum(F.where(m > 0, errors(net, x, t), np.zeros_like(t))) / np.count_nonzero(m)
    ),
    "boolean index": lambda net, x, t, m, c: F.mean(errors(net, x, t)[m > 0]),
    "index": lambda net, x, t, m, c: F.mean(
        F.get_item(F.reshape(errors(net, x, t), (-1,)), np.flatnonzero(m))
    ),
    "joined sequences": lambda net, x, t, m, c: F.mean(
        F.concat([e for e, _ in each_sequence(net, x, t, m)], axis=0)
    ),
    "a loop": lambda net, x, t, m, c: (
        sum(F.sum(e) for e, _ in each_sequence(net, x, t, m)) / int(m.sum())
    ),
    "per position": per_position,
    "class weights of the batch": class_weights,
    "focal": focal,
    "a sum": lambda net, x, t, m, c: F.sum(errors(net, x, t)),
    "a root": lambda net, x, t, m, c: F.sqrt(F.mean_squared_error(values(net, x), t)),
    "Dice": dice,
    "scaled by targets": lambda net, x, t, m, c: F.mean(errors(net, x, t)) / abs(t).mean(),
    "contrastive": contrastive,
    "hardest pair": hardest_pair,
    "variance": variance,
    "covariance": covariance,
    "advantages": advantages,
    "standardized inputs": standardized_inputs,
    "weights by errors": lambda net, x, t, m, c: F.sum(
        (e := errors(net, x, t)) * (e.array / e.array.sum())
    ),
    "batch normalization": lambda net, x, t, m, c: F.mean(
        net.normalize(F.reshape(x, (-1, N_FEATURES))) ** 4
    ),
}
EXACT = {
    "mean": lambda net, x, t, m, c: F.mean_squared_error(values(net, x), t),
    "labels that are ignored": lambda net, x, t, m, c: F.softmax_cross_entropy(
        F.reshape(scores(net, x), (-1, N_CLASSES)), c.reshape(-1)
    ),
    "labels that are left out": lambda net, x, t, m, c: F.softmax_cross_entropy(*known(net, x, c)),
    "sum by number": lambda net, x, t, m, c: F.sum(errors(net, x, t) * m) / len(x),
    "own means": lambda net, x, t, m, c: F.mean(
        F.sum(errors(net, x, t) * m, axis=1) / m.sum(axis=1)
    ),
    "own means in a loop": lambda net, x, t, m, c: (
        sum(F.mean(e) for e, _ in each_sequence(net, x, t, m)) / len(x)
    ),
    "weights of samples": lambda net, x, t, m, c: F.mean(errors(net, x, t) * abs(t)),
    "average": lambda net, x, t, m, c: F.average(errors(net, x, t), weights=m),
    "root of a mean of all": lambda net, x, t, m, c: F.sqrt(mpchain.batch_mean(errors(net, x, t))),
    "attention": lambda net, x, t, m, c: F.mean(
        F.matmul(F.softmax(F.matmul(x, scores(net, x), transa=True)), t[:, :3, None]) ** 2
    ),
    "product of each": lambda net, x, t, m, c: F.mean(F.prod(scores(net, x), axis=2)),
    "product over time": lambda net, x, t, m, c: F.mean(F.prod(scores(net, x), axis=1)),
    "norm of each": lambda net, x, t, m, c: F.mean(F.sqrt(F.sum(errors(net, x, t), axis=1))),
    "decay": lambda net, x, t, m, c: (
        F.mean(errors(net, x, t)) + 0.1 * F.sqrt(F.sum(net.classes.W**2))
    ),
}


def trained(loss, optimizer, mine):
    """Returns the parameters after two updates."""
    net = Net()
    optimizer.setup(net)
    for _ in range(2):
        optimizer.update(loss, net, *[x[mine] for x in (features, targets, masks, labels)])
    return np.concatenate([param.array.ravel() for param in net.params()])


def run(comm, loss):
    """Returns, on all ranks, whether the ranks compute the same as one process, and rank 0's
    warnings."""
    vars(comm).pop("_control", None)  # a control warns about a line only once, also across tests
    alone = trained(loss, optimizers.SGD(0.1), slice(None))
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), comm)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with comm.batch(N_SAMPLES) as mine:
            together = trained(loss, optimizer, mine)
    is_exact = np.allclose(alone, together, rtol=1e-11, atol=1e-11)
    return is_exact, comm.bcast_obj([str(w.message) for w in caught])


@pytest.mark.parametrize("name", INEXACT)
def test_inexact_losses_are_told(comm, name):
    is_exact, told = run(comm, INEXACT[name])
    assert is_exact == (comm.size == 1)
    assert len(told) == (comm.size > 1)
    assert all("test_exact_or_told.py:" in text for text in told)


@pytest.mark.parametrize("name", EXACT)
def test_exact_losses_are_not_told(comm, name):
    assert run(comm, EXACT[name]) == (True, [])
