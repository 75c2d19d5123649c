"""Tests losses with parameters against plain formulas: trees, samplers, and wrong input."""

import itertools

import numpy as np
import pytest

import mpchain
from mpchain import links as L
from mpchain.utils.type_check import InvalidType
from tests.links.table import checks_of, row
from tests.reference import torch

TREE = ((3, 1), (2, (0, 6)))
# For each label, its path: rows of W, and turns, 1 to the left and -1 to the right.
WAYS = {
    3: [(0, 1), (1, 1)],
    1: [(0, 1), (1, -1)],
    2: [(0, -1), (2, 1)],
    0: [(0, -1), (2, -1), (3, 1)],
    6: [(0, -1), (2, -1), (3, -1)],
}
LABELS = np.array([0, 1, 2, 3, 6, 2])
COUNTS = [5, 3, 2, 1]
T = np.array([0, 3, 1])
SAMPLES = np.array([[1, 2], [3, 0], [0, 0]])


def hierarchical(w, x, t):
    loss = 0
    for row_, label in zip(x, t.tolist()):
        for node, turn in WAYS[label]:
            loss = loss - torch.log(torch.sigmoid(turn * (w["W"][node] @ row_)))
    return loss


def negative_sampling(w, x, t):
    loss = 0
    for row_, label, others in zip(x, t, SAMPLES):
        loss = loss - torch.log(torch.sigmoid(w["W"][label] @ row_))
        for k in others:
            loss = loss - torch.log(torch.sigmoid(-w["W"][k] @ row_))
    return loss


def black_out(w, x, t):
    loss = 0
    for row_, label, others in zip(x, t, SAMPLES):
        p = torch.softmax(w["W"][[int(label), *others]] @ row_, 0)
        loss = loss - torch.log(p[0]) - torch.log(1 - p[1:]).sum()
    return loss / len(t)


class Given:
    """A sampler that always returns the same labels."""

    def sample(self, shape):
        return np.concatenate([np.zeros((3, 1), int), SAMPLES], 1)

    def to_device(self, device):
        return self


def with_given_samples():
    link = L.NegativeSampling(4, COUNTS, 2)
    link.sampler = Given()
    return link


def call_with_samples(link, x, t):
    link.sample_data = link.device.send(SAMPLES)
    return link(x, t)


def crf(lengths):
    """Returns a reference: the mean negative log-likelihood by a sum over all label sequences, for
    time-major sequences."""

    def reference(w, *arrays):
        cost, losses = w["cost"], []
        for i, n in enumerate(lengths):
            scores = [x[i] for x in arrays[:n]]

            def score(labels, scores=scores):
                moves = sum(cost[a, b] for a, b in itertools.pairwise(labels))
                return moves + sum(s[a] for s, a in zip(scores, labels))

            every = torch.stack([score(v) for v in itertools.product(range(3), repeat=n)])
            losses.append(torch.logsumexp(every, 0) - score([int(y[i]) for y in YS[:n]]))
        return torch.stack(losses).mean()

    return reference


YS = [np.array([0, 1, 2]), np.array([1, 2]), np.array([1])]

TABLE = [
    row(
        "BinaryHierarchicalSoftmax",
        lambda: L.BinaryHierarchicalSoftmax(4, TREE),
        (6, 4),
        LABELS,
        params={"W": (4, 4)},
        reference=hierarchical,
        loss=lambda y: y,
    ),
    row(
        "NegativeSampling",
        with_given_samples,
        (3, 4),
        T,
        params={"W": (4, 4)},
        reference=negative_sampling,
        loss=lambda y: y,
    ),
    row(
        "BlackOut",
        lambda: L.BlackOut(4, COUNTS, 2),
        (3, 4),
        T,
        params={"W": (4, 4)},
        call=call_with_samples,
        reference=black_out,
        loss=lambda y: y,
    ),
    row(
        "CRF1d",
        lambda: L.CRF1d(3),
        (3, 3),
        (2, 3),
        (1, 3),
        params={"cost": (3, 3)},
        call=lambda link, *xs: link(xs, [link.device.send(y) for y in YS]),
        reference=crf((3, 2, 1)),
        loss=lambda y: y,
    ),
]
globals().update(checks_of(TABLE))


def f(*shape):
    return np.random.randn(*shape).astype(np.float32)


def depths(tree, depth=0):
    """Returns the depth of each label."""
    if not isinstance(tree, tuple):
        return {tree: depth}
    return {k: v for child in tree for k, v in depths(child, depth + 1).items()}


@pytest.mark.parametrize("n", [1, 2, 3, 10, 50])
def test_huffman_trees_have_the_least_mean_depth(n):
    counts = dict(zip(np.random.permutation(100)[:n].tolist(), np.random.randint(1, 30, n)))
    tree = L.BinaryHierarchicalSoftmax.create_huffman_tree(counts)
    found = depths(tree)
    assert found.keys() == counts.keys()
    assert sum(counts[k] * found[k] for k in counts) == _least_cost(list(counts.values()))


def _least_cost(counts):
    counts, cost = sorted(counts), 0
    while len(counts) > 1:
        a, b, *rest = counts
        cost += a + b
        counts = sorted([a + b, *rest])
    return cost


def test_ties_are_broken_by_the_order_of_the_labels():
    create = L.BinaryHierarchicalSoftmax.create_huffman_tree
    assert create({0: 8, 1: 5, 2: 6, 3: 4}) == ((3, 1), (2, 0))
    assert create({5: 1, 4: 1, 3: 1, 2: 1, 1: 1, 0: 1}) == ((1, 0), ((5, 4), (3, 2)))
    assert create({0: 1, 1: 2, 2: 1}) == ((0, 2), 1)


def test_probabilities_of_all_leaves_sum_to_one():
    tree = L.BinaryHierarchicalSoftmax.create_huffman_tree({k: k + 1 for k in range(9)})
    link, x = L.BinaryHierarchicalSoftmax(4, tree), f(1, 4) * 3
    total = sum(np.exp(-link(x, np.array([k])).array) for k in range(9))
    np.testing.assert_allclose(total, 1, 1e-5)


def test_a_tree_of_one_label():
    link = L.BinaryHierarchicalSoftmax(4, 0)
    assert link.W.shape == (0, 4) and link(f(2, 4), np.array([0, 0])).item() == 0


@pytest.mark.slow
def test_deep_trees():
    tree = 0
    for label in range(1, 3000):
        tree = (label, tree)
    link = L.BinaryHierarchicalSoftmax(2, tree)
    link.W.array[...] = 0
    loss = link(np.zeros((2, 2), np.float32), np.array([0, 2999]))
    np.testing.assert_allclose(loss.array, 3000 * np.log(2), 1e-5)


def test_initial_values():
    W = L.BinaryHierarchicalSoftmax(100, ((0, 1), (2, 3))).W.array
    assert -1 <= W.min() < -0.9 and 0.9 < W.max() <= 1
    assert L.BinaryHierarchicalSoftmax(3, TREE, dtype=np.float64).W.dtype == np.float64
    assert L.NegativeSampling(3, COUNTS, 2, dtype=np.float64).W.dtype == np.float64
    assert not L.NegativeSampling(3, COUNTS, 2).W.array.any()
    assert not L.BlackOut(3, COUNTS, 2).W.array.any()
    assert L.CRF1d(2, initial_cost=np.array([[1, 2], [3, 4]])).cost.array.tolist() == [
        [1, 2],
        [3, 4],
    ]


@pytest.mark.parametrize(
    "link, weights",
    [
        (L.NegativeSampling(3, COUNTS, 2), np.array(COUNTS) ** 0.75),
        (L.NegativeSampling(3, COUNTS, 2, power=-1), 1 / np.array(COUNTS)),
        (L.BlackOut(3, COUNTS, 2), np.array(COUNTS)),
    ],
)
def test_labels_are_drawn_in_proportion(link, weights):
    n = 20000
    frequencies = np.bincount(link.sampler.sample((n,)), minlength=4) / n
    np.testing.assert_allclose(frequencies, weights / weights.sum(), atol=4 * 0.5 / np.sqrt(n))


def test_black_out_draws_where_no_samples_are_given():
    link, x = L.BlackOut(4, COUNTS, 3), f(2, 4)
    link.W.array[...] = f(4, 4)
    losses = {link(x, T[:2]).item() for _ in range(10)}
    assert len(losses) > 1
    link.sample_data = SAMPLES[:2]
    assert link(x, T[:2]).item() == link(x, T[:2]).item()


def test_negative_sampling_returns_samples():
    link = with_given_samples()
    loss, samples = link(f(3, 4), T, "no", return_samples=True)
    assert loss.shape == (3,)
    assert samples.tolist() == np.concatenate([T[:, None], SAMPLES], 1).tolist()


def test_to_device(device):
    for link in (L.NegativeSampling(4, COUNTS, 2), L.BlackOut(4, COUNTS, 2)):
        link.to_device(device)
        assert isinstance(link.sampler.sample((2, 3)), link.xp.ndarray)
        link(link.device.send(f(3, 4)), link.device.send(T))
    link = L.BinaryHierarchicalSoftmax(4, TREE)
    expected = link(x := f(6, 4), LABELS).array
    link.to_device(device)
    loss = link(link.device.send(x), link.device.send(LABELS))
    np.testing.assert_allclose(mpchain.cuda.to_cpu(loss.array), expected, 1e-5)


def test_crf_of_sequences():
    link = L.CRF1d(3, initial_cost=f(3, 3))
    xs = [f(n, 3) for n in (2, 1, 3)]
    ys = [np.array([0, 1]), np.array([1]), np.array([1, 2, 0])]
    single = [link([x], [y], transpose=True).item() for x, y in zip(xs, ys)]
    losses = link(xs, ys, reduce="no", transpose=True)
    np.testing.assert_allclose(losses.array, [single[k] for k in (2, 0, 1)], 1e-5)
    np.testing.assert_allclose(link(xs, ys, transpose=True).item(), np.mean(single), 1e-5)


def test_argmax_of_sequences():
    link = L.CRF1d(3, initial_cost=f(3, 3))
    xs = [f(n, 3) for n in (2, 1, 3, 2)]
    scores, paths = link.argmax(xs, transpose=True)
    cost = link.cost.array

    def score(x, labels):
        return sum(x[range(len(x)), labels]) + sum(
            cost[a, b] for a, b in itertools.pairwise(labels)
        )

    for k, (x, path) in enumerate(zip(xs, paths)):
        every = itertools.product(range(3), repeat=len(x))
        best = max(every, key=lambda labels: score(x, labels))
        assert path.tolist() == list(best)
        np.testing.assert_allclose(scores.array[[1, 3, 0, 2][k]], score(x, best), 1e-5)
    by_time = link.argmax([np.stack([xs[0][t], xs[3][t]]) for t in range(2)])[1]
    assert [y.tolist() for y in by_time] == [list(v) for v in zip(paths[0], paths[3])]


def bad_tree(tree):
    return lambda: L.BinaryHierarchicalSoftmax(4, tree)


def softmax_of(x, t):
    return lambda: L.BinaryHierarchicalSoftmax(4, TREE)(x, np.array(t))


@pytest.mark.parametrize(
    "error, message, call",
    [
        (ValueError, "must be a pair, but a node has 3 children", bad_tree((0, (1, 2, 3)))),
        (ValueError, "label 0 occurs twice in tree", bad_tree((0, (0, 1)))),
        (TypeError, "must be labels, integers from 0 on, but one is -1", bad_tree((0, -1))),
        (TypeError, "but one is 'a'", bad_tree((0, "a"))),
        (
            ValueError,
            "create_huffman_tree: word_counts must not be empty",
            lambda: L.BinaryHierarchicalSoftmax.create_huffman_tree({}),
        ),
        (ValueError, "t holds 4, which is not in the tree", softmax_of(f(2, 4), [0, 4])),
        (ValueError, "t holds 7, which is not in the tree", softmax_of(f(2, 4), [7, 0])),
        (ValueError, "t holds -1, which is not in the tree", softmax_of(f(2, 4), [-1, 0])),
        (InvalidType, "t must hold an integer per sample", softmax_of(f(2, 4), [0])),
        (InvalidType, "t must hold an integer per sample", softmax_of(f(2, 4), [0.0, 1.0])),
        (InvalidType, r"x must be floating point \(N, in_size\)", softmax_of(f(2, 3), [0, 1])),
        (
            InvalidType,
            "negative_sampling: x",
            lambda: L.NegativeSampling(4, COUNTS, 2)(f(3, 5), T),
        ),
        (ValueError, "black_out: .* t", lambda: L.BlackOut(4, COUNTS, 2)(f(1, 4), np.array([9]))),
        (ValueError, "WalkerAlias: probs", lambda: L.NegativeSampling(4, [0, 0], 2)),
        (InvalidType, "crf1d: every x must be", lambda: L.CRF1d(3)([f(2, 4)], [YS[1]])),
        (ValueError, "crf1d: xs must hold at least one", lambda: L.CRF1d(3)([], [])),
        (ValueError, "CRF1d: xs must hold at least one", lambda: L.CRF1d(3)([], [], "no", True)),
        (
            ValueError,
            "CRF1d: ys must have as many elements as xs, 1, but has 2",
            lambda: L.CRF1d(3)([f(2, 3)], YS[1:], transpose=True),
        ),
    ],
)
def test_wrong_input(error, message, call):
    with pytest.raises(error, match=message):
        call()
