"""Tests captured steps of several ranks whose losses write into arrays, index constants or sort.

The first calls of a rank get equal data, and the number of these calls depends on the rank. So
ranks record, compare and replay in different calls.
"""

import warnings

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.distributed import create_multi_node_optimizer

N_CALLS = 10
CLASS_WEIGHT = np.array([0.2, 1.0, 5.0])
TABLE = np.random.RandomState(5).randn(3, 4)


def _policy_gradient(y, x, t):
    rewards = np.where(x.mean() > 0.5, 1.0, 0.0)  # the reward is zero in the first calls
    return -F.mean(F.select_item(F.log_softmax(y[:, :3]), t) * rewards)


def _embedding(y, x, t):
    return F.mean(F.embed_id(t - 1, y[:3], ignore_label=-1) ** 2)


def _sequences(y, x, t):
    return F.mean(F.pad_sequence([y[:1], y[1:3], y[2:]]) ** 2)


def _class_weights(y, x, t):
    return F.softmax_cross_entropy(y[:, :3], t, class_weight=CLASS_WEIGHT)


LOSSES = {
    "class weights": _class_weights,
    "slices": lambda y, x, t: F.mean(y[:, :2] * y[::-1, 2:]),
    "policy gradient": _policy_gradient,
    "sort": lambda y, x, t: F.mean(F.sort(y, axis=1)[0][:, 0] ** 2),
    "topk": lambda y, x, t: F.mean(F.topk(y, 2)[0] ** 2),
    "permutate": lambda y, x, t: F.mean(F.permutate(y, np.argsort(t), axis=0)[:2] ** 2),
    "diagonal": lambda y, x, t: F.mean(F.diagonal(y, 1) ** 2),
    "embedding": _embedding,
    "sequences": _sequences,
    "table of the user": lambda y, x, t: F.mean(y * TABLE[t]),
    "number of labels": lambda y, x, t: F.mean(y) * len(np.unique(t)),
    "boolean index": lambda y, x, t: F.sum(y[x[:, 0] > 0] ** 2),
    "polygamma": lambda y, x, t: F.mean(F.polygamma(1, y**2 + 1)),
}


# In these steps, values or shapes decide what is computed after the ranks have exchanged their
# numbers of samples.
REFUSED = ["embedding", "table of the user", "number of labels", "boolean index"]


def batch_of(i, rank):
    """Returns a batch: equal batches in the first calls of a rank, then different ones."""
    i = max(i - 3 - rank, 0)
    random = np.random.RandomState(100 * i + rank)
    x = random.randn(4, 5) + 0.3 * i
    return x, random.randint(0, 3, 4) if i else np.zeros(4, int)


def trained(comm, name, is_captured):
    """Trains a layer; returns W, its gradient, and b after each call, and the last reason."""
    with mpchain.using_config("dtype", np.float64):
        link = L.Linear(5, 4, initialW=np.random.RandomState(1).randn(4, 5))
    optimizer = create_multi_node_optimizer(optimizers.MomentumSGD(0.05), comm).setup(link)

    def step(x, t):
        optimizer.update(lambda: LOSSES[name](link(x), x, t))
        return link.W.array * 1

    step = mpchain.capture(step) if is_captured else step
    found = []
    for i in range(N_CALLS):
        found += [step(*batch_of(i, comm.rank)), link.W.grad.copy(), link.b.array.copy()]
    return found, getattr(step, "reason", None)


@pytest.mark.parametrize("name", LOSSES)
def test_captured_losses_are_those_that_run_as_always(comm, name):
    expected, _ = trained(comm, name, False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # steps that are not replayed give warnings
        found, reason = trained(comm, name, True)
    for i, (x, y) in enumerate(zip(expected, found, strict=True)):
        np.testing.assert_allclose(y, x, rtol=1e-9, atol=1e-11, err_msg=f"call {i // 3 + 1}")
    replayed = comm.allgather_obj(reason is None)
    assert all(replayed) or name in REFUSED, reason
