"""Tests losses on embeddings: values, gradients, options and edge cases."""

import functools

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType
from mpchain.utils.walker_alias import WalkerAlias
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

pytestmark = pytest.mark.slow

_NN = torch.nn.functional
_PAIRS = np.array([1, 0, 0, 1])
_T = np.array([0, 2, -1])
_DRAWN = np.array([[9, 0, 3], [9, 4, 4], [9, 1, 2]])
_SAMPLES = np.array([[1, 1, 3], [4, 0, 2], [3, 2, 0]])
_INSTANCES = np.array([[[1, 1, 2], [0, 3, 2]], [[3, 3, 0], [1, 3, 1]]])


def _torch_contrastive(a, b):
    d, y = (a - b).norm(dim=1), torch.as_tensor(_PAIRS)
    return (y * d**2 + (1 - y) * torch.relu(3 - d) ** 2) / 2


def _torch_triplet(a, p, n):
    return torch.relu(((a - p) ** 2).sum(1) - ((a - n) ** 2).sum(1) + 0.2)


def _torch_covariance(y, z):
    return (y - y.mean(0)).T @ (z - z.mean(0)) / len(y)


def _torch_decov(h):
    covariance = _torch_covariance(h, h)
    return covariance - torch.diag(torch.diagonal(covariance))


def _torch_negative_sampling(x, W):
    losses = []
    for i, t in enumerate(_T):
        loss = -_NN.logsigmoid(x[i] @ W[t])
        for k in _DRAWN[i, 1:]:
            loss = loss - _NN.logsigmoid(-x[i] @ W[k])
        losses.append(loss if t != -1 else loss * 0)
    return torch.stack(losses)


def _torch_black_out(x, W):
    losses = []
    for i, t in enumerate(abs(_T)):
        p = torch.softmax(W[[t, *_SAMPLES[i]]] @ x[i], 0)
        losses.append(-torch.log(p[0]) - torch.log(1 - p[1:]).sum())
    return torch.stack(losses)


def _torch_clustering(x, norm):
    """Computes the three terms by loops over images, instances and pixels."""
    variance = distance = size = 0
    for image, labels in zip(x, _INSTANCES):
        centers = [image[:, labels == k].mean(1) for k in (1, 2, 3) if (labels == k).any()]
        centers += [torch.zeros(3, dtype=x.dtype)] * (3 - len(centers))
        present = [k for k in (1, 2, 3) if (labels == k).any()]
        for k, center in zip(present, centers):
            pixels = image[:, labels == k].T
            away = [torch.relu((center - p).norm(norm) - 0.5) ** 2 for p in pixels]
            variance = variance + sum(away) / len(away) / 6
        for i, a in enumerate(centers):
            near = [torch.relu(3 - (a - b).norm(norm)) ** 2 for b in centers[:i] + centers[i + 1 :]]
            distance = distance + sum(near) / 12
            size = size + a.norm(norm) / 6
    return variance * 0.7, distance, size * 0.1


def _clustering(x, norm):
    return F.discriminative_margin_based_clustering_loss(
        x, x.device.send(_INSTANCES), 0.5, 1.5, 3, norm, alpha=0.7, gamma=0.1
    )


TABLE = [
    row(
        "contrastive",
        lambda a, b: F.contrastive(a, b, a.device.send(_PAIRS), 3),
        lambda a, b: _torch_contrastive(a, b).mean(),
        (4, 3),
        (4, 3),
    ),
    row(
        "contrastive per pair",
        lambda a, b: F.contrastive(a, b, a.device.send(_PAIRS), 3, reduce="no"),
        _torch_contrastive,
        (4, 3),
        (4, 3),
    ),
    row("triplet", F.triplet, lambda *xs: _torch_triplet(*xs).mean(), *[(5, 3)] * 3),
    row(
        "triplet per triplet",
        functools.partial(F.triplet, reduce="no"),
        _torch_triplet,
        *[(4, 3, 2)] * 3,
    ),
    row(
        "cross_covariance",
        F.cross_covariance,
        lambda y, z: (_torch_covariance(y, z) ** 2).sum() / 2,
        (4, 3),
        (4, 2),
    ),
    row(
        "cross_covariance matrix",
        functools.partial(F.cross_covariance, reduce="no"),
        _torch_covariance,
        (4, 3),
        (4, 2),
    ),
    row("decov", F.decov, lambda h: (_torch_decov(h) ** 2).sum() / 2, (4, 3)),
    row("decov matrix", functools.partial(F.decov, reduce="no"), _torch_decov, (4, 3)),
    row(
        "negative_sampling",
        lambda x, W: F.negative_sampling(x, x.device.send(_T), W, lambda s: _DRAWN.copy(), 2),
        lambda x, W: _torch_negative_sampling(x, W).sum(),
        (3, 4),
        (5, 4),
    ),
    row(
        "negative_sampling per sample",
        lambda x, W: F.negative_sampling(
            x, x.device.send(_T), W, lambda s: _DRAWN.copy(), 2, reduce="no"
        ),
        _torch_negative_sampling,
        (3, 4),
        (5, 4),
    ),
    row(
        "black_out",
        lambda x, W: F.black_out(x, x.device.send(abs(_T)), W, x.device.send(_SAMPLES)),
        lambda x, W: _torch_black_out(x, W).mean(),
        (3, 4),
        (5, 4),
    ),
    row(
        "black_out per sample",
        lambda x, W: F.black_out(x, x.device.send(abs(_T)), W, x.device.send(_SAMPLES), "no"),
        _torch_black_out,
        (3, 4),
        (5, 4),
    ),
    *[
        row(
            f"clustering norm {norm}",
            functools.partial(_clustering, norm=norm),
            functools.partial(_torch_clustering, norm=norm),
            (2, 3, 2, 3),
        )
        for norm in (1, 2)
    ],
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    assert uncovered(TABLE, "embedding_loss") == set()


# Options and errors.


def test_labels_of_negative_sampling_are_returned():
    shapes = []

    def sampler(shape):
        shapes.append(shape)
        return np.zeros(shape, np.int32)

    t = np.array([1, -1, 2])
    x, W = np.ones((3, 2)), np.ones((4, 2))
    loss, labels = F.negative_sampling(x, t, W, sampler, 5, return_samples=True)
    assert shapes == [(3, 6)] and labels.shape == (3, 6) and loss.shape == ()
    np.testing.assert_array_equal(labels[:, 0], t)
    assert not labels[:, 1:].any()


def test_negative_sampling_by_a_table_of_probabilities():
    x, W = np.random.randn(50, 3), np.random.randn(4, 3)
    sampler = WalkerAlias([1, 0, 1, 0]).sample
    _, labels = F.negative_sampling(x, np.full(50, 3), W, sampler, 9, return_samples=True)
    assert set(labels[:, 1:].ravel().tolist()) == {0, 2}


@pytest.mark.parametrize("name", ["contrastive", "triplet"])
def test_a_margin_that_is_not_positive(name):
    x, y = np.ones((2, 3)), np.zeros(2, int)
    arguments = (x, x, y) if name == "contrastive" else (x, x, x)
    with pytest.raises(ValueError, match=f"{name}: margin must be positive, but is 0"):
        getattr(F, name)(*arguments, margin=0)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("contrastive", (np.ones((2, 3)), np.ones((2, 3)), np.zeros(2, int))),
        ("triplet", (np.ones((2, 3)),) * 3),
        ("cross_covariance", (np.ones((2, 3)),) * 2),
        ("decov", (np.ones((2, 3)),)),
        ("negative_sampling", (np.ones((2, 3)), np.zeros(2, int), np.ones((4, 3)), None, 1)),
        (
            "black_out",
            (np.ones((2, 3)), np.zeros(2, int), np.ones((4, 3)), np.zeros((2, 1), int)),
        ),
    ],
)
def test_an_unknown_reduction(name, arguments):
    with pytest.raises(ValueError, match=f"^{name}: reduce must be one of .* not 'total'"):
        getattr(F, name)(*arguments, reduce="total")


def test_an_instance_out_of_range():
    x, labels = np.ones((1, 2, 1, 2)), np.array([[[1, 3]]])
    with pytest.raises(ValueError, match=r"_clustering_loss: every element of labels .* one is 3"):
        F.discriminative_margin_based_clustering_loss(x, labels, 0.5, 1.5, 2)
    with pytest.raises(InvalidType, match=r"\(N, max_embedding_dim, height, width\)"):
        F.discriminative_margin_based_clustering_loss(x, labels, 0.5, 1.5, 3)


# Edges.

_ROBUST = {
    "contrastive": lambda x: F.contrastive(x, -x, np.resize([0, 1], len(x)), 1),
    "contrastive of equals": lambda x: F.contrastive(x, x * 1, np.resize([0], len(x)), 1),
    "triplet": lambda x: F.triplet(x, -x, x * 0),
    "decov": F.decov,
    "cross_covariance": lambda x: F.cross_covariance(x, -x),
    "negative_sampling": lambda x: F.negative_sampling(
        x, np.resize([0, -1, 2], len(x)), np.eye(3, dtype=x.dtype), lambda s: np.ones(s, int), 2
    ),
    "black_out": lambda x: F.black_out(
        x, np.resize([0], len(x)), np.eye(3, dtype=x.dtype), np.resize([1, 2], (len(x), 2))
    ),
    "clustering": lambda x: sum(
        F.discriminative_margin_based_clustering_loss(
            F.reshape(x, (-1, 3, 1, 1)), np.resize([0, 1], (len(x), 1, 1)), 0.5, 1.5, 3, 2
        )
    ),
}
_EVERY = pytest.mark.parametrize("name", _ROBUST)


def _differentiated(name, array):
    x = Variable(array)
    y = _ROBUST[name](x)
    (g,) = mpchain.grad([F.sum(y)], [x], enable_double_backprop=True)
    (gg,) = mpchain.grad([F.sum(g * g)], [x])
    assert y.dtype == g.dtype == array.dtype
    return y.array, g.array, array * 0 if gg is None else gg.array


@_EVERY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_inputs(name, dtype):
    huge = [[1e4, -1e4, 0], [1e4, 1e4, 1e4], [-1e4, -1e4, -1e4], [1e-30, -1e-30, 1e4]]
    for array in _differentiated(name, np.array(huge, dtype)):
        assert np.isfinite(array).all()


@_EVERY
def test_an_empty_batch(name):
    y, g, _ = _differentiated(name, np.zeros((0, 3), np.float32))
    assert not y.any() and g.shape == (0, 3)


def test_black_out_is_exact_where_a_probability_is_nearly_one():
    x = Variable(np.array([[30.0, 0.0]]))
    W, t = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([0])
    loss = F.black_out(x, t, W, np.array([[1]]))
    # p[0] = 1 / (1 + exp(30)), and 1 - p[1] is the same number.
    np.testing.assert_allclose(loss.array, 2 * (30 + np.log1p(np.exp(-30))), 1e-14)
    loss.backward()
    np.testing.assert_allclose(x.grad, [[2, 0]], 1e-12)
