"""Replays that multiply one weight many times: it is transposed once, in each replay."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain.captured import transposes
from mpchain.kernels import onednn

pytestmark = pytest.mark.skipif(onednn.why_absent() is not None, reason="needs oneDNN")
N_USES, REPLAYS_FROM = 14, 3


@pytest.fixture
def copies(monkeypatch):
    """The weights that were transposed."""
    copies, transpose = [], transposes._transpose
    monkeypatch.setattr(transposes, "_transpose", lambda x, y: copies.append(x) or transpose(x, y))
    return copies


def make(changes_weight=False, updates_between=False, n_uses=N_USES):
    """A captured training step, the same step, and the weights of both."""
    steps, weights = [], []
    for _ in range(2):
        W = mpchain.Parameter(np.random.RandomState(0).randn(150, 150).astype("f") / 20)
        link = mpchain.Link()
        with link.init_scope():
            link.W = W
        optimizer = mpchain.optimizers.SGD(1e-3).setup(link)

        def step(x, link=link, optimizer=optimizer):
            h = x
            for i in range(n_uses):
                h = F.tanh(F.linear(h, link.W))
                if changes_weight and i == 6:
                    link.W.array *= 0.9
                if updates_between and i == 6:
                    link.cleargrads()
                    F.sum(h).backward()
                    optimizer.update()
            link.cleargrads()
            F.sum(h * h).backward()
            optimizer.update()
            return h

        steps.append(step)
        weights.append(W)
    return mpchain.capture(steps[0]), steps[1], weights


@pytest.mark.parametrize(
    ("options", "n_copies"),
    [({}, 1), ({"changes_weight": True}, 0), ({"updates_between": True}, 2)],
    ids=["as it is", "the weight changes", "an update between"],
)
def test_the_same_values(options, n_copies, copies):
    captured, step, weights = make(**options)
    for i in range(6):
        x = np.random.RandomState(i).randn(20, 150).astype("f")
        copies.clear()
        np.testing.assert_allclose(captured(x).array, step(x).array, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(*[W.array for W in weights], rtol=1e-3, atol=1e-5)
        if i > REPLAYS_FROM:
            assert len(copies) == n_copies
    assert captured.reason is None


def test_few_uses_are_not_worth_a_copy(copies):
    captured, *_ = make(n_uses=3)
    for i in range(5):
        captured(np.full((20, 150), i, np.float32))
    assert captured.reason is None
    assert not copies


def test_products_of_vectors_and_stacks():
    random = np.random.RandomState(0)
    vector, matrix, stack = random.rand(150), random.rand(150, 150), random.rand(3, 150, 20)

    def step(x):
        pairs = (x, vector), (x, matrix.T), (x, stack), (x[0], matrix), (x[0], x[1])
        return [F.matmul(a, b) for a, b in pairs]

    captured = mpchain.capture(step)
    for i in range(5):
        x = random.rand(20, 150) + i
        for y, expected in zip(captured(x), step(x), strict=True):
            np.testing.assert_allclose(y.array, expected.array, rtol=1e-10)
    assert captured.reason is None
