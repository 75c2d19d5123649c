"""Tests that captured rows of all tables of the suite compute what they compute eagerly, and give a
reason if they are not replayed.

``python -m tests.tools.captured_tables`` prints how many rows of each table are replayed.
"""

import random

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import optimizers
from tests.captured.programs import program
from tests.captured.tables import (
    MAKERS,
    REFUSED,
    WRONG,
    Case,
    cases_on,
    judge,
    tables_of_functions,
)

EQUAL = pytest.mark.parametrize("has_equal_data", [False, True], ids=["new data", "equal data"])

# Rows that read values of arrays, which decide what is computed, are refused, and so are rows that
# draw random numbers by sample. All other rows are replayed.
REFUSALS = {
    "roi": 24,  # the number of elements in a bin differs between boxes
    "noise": 6,
    "links: loss": 2,  # the paths of the tree have different lengths
    "distributions": 2,  # the entropy of Poisson is a sum whose number of terms depends on the mean
}

# For each table, the rows whose results or gradients were once stale, from an earlier call.
ONCE_STALE = {
    "attention": ["attention mask, labels vary"],
    "connection": ["shift, order 1", "deformable_convolution_2d_sampler, order 2"],
    "embedding": ["rotary_embedding positions, labels vary"],
    "embedding_loss": ["negative_sampling, labels vary", "black_out, order 1"],
    "image": ["spatial_transformer_sampler, order 1"],
    "indexing": [
        "get_item, order 1",
        "permutate, order 1",
        "select_item, order 2",
        "diagonal, order 1",
        "sort, order 1",
        "topk smallest, order 1",
    ],
    "loss": ["softmax_cross_entropy weighted, labels vary"],
    "padding": ["pad symmetric, order 1"],
    "rearrangement": ["pad_sequence, order 1"],
    "recurrent": ["lstm of sequences that end, order 2"],
    "reduction": ["prod, order 2", "cumprod, order 2"],
    "roi": ["roi_average_pooling_2d (), order 1", "roi_max_pooling_2d (), labels vary"],
    "special": ["polygamma, order 1"],
    "links: loss": ["NegativeSampling, order 1"],
    "distributions": ["Bernoulli.sample, order 1", "Poisson.sample, order 1"],
}


def assert_sound(cases, has_equal_data):
    """Checks that no case is wrong; returns the refused cases with their reasons."""
    outcomes = [(case.id, judge(case, has_equal_data)) for case in cases]
    wrong = [f"{name}: {outcome.detail}" for name, outcome in outcomes if outcome.kind == WRONG]
    assert not wrong, "\n".join(wrong)
    refused = [(name, outcome.detail) for name, outcome in outcomes if outcome.kind == REFUSED]
    assert all(reason for _, reason in refused)
    return refused


@pytest.mark.slow
@EQUAL
def test_rows_that_were_once_stale(has_equal_data):
    for table, names in ONCE_STALE.items():
        cases = [case for case in MAKERS[table]() if case.name in names]
        assert len(cases) == len(names)
        assert_sound(cases, has_equal_data)


@pytest.mark.long
@EQUAL
@pytest.mark.parametrize("table", MAKERS)
def test_table(table, has_equal_data):
    refused = assert_sound(MAKERS[table](), has_equal_data)
    assert len(refused) <= REFUSALS.get(table, 0), refused


@pytest.mark.nightly
@EQUAL
@pytest.mark.parametrize("seed", range(200))
def test_programs_composed_of_rows(seed, has_equal_data):
    assert_sound([program(seed)], has_equal_data)


# A policy gradient: the first rewards are zero, so the gradients are zero during recording.


def _log_probability(name, x, t):
    if name == "slices":
        return F.log_softmax(F.concat([x[:, :2], x[:, 2:]], 1))[:, :2]
    log_p = F.log_softmax(x)
    if name == "select_item":
        return F.select_item(log_p, t)
    if name == "sort":
        return F.sort(log_p, axis=1)[0][:, 0]
    if name == "diagonal":
        return F.diagonal(log_p)
    return F.permutate(log_p, np.array([2, 0, 1, 3]), axis=1)[:, 0]


@pytest.mark.parametrize("name", ["slices", "select_item", "sort", "diagonal", "permutate"])
def test_policy_gradient_whose_first_rewards_are_zero(name):
    def make():
        link = mpchain.links.Linear(3, 4, initialW=np.ones((4, 3)) / np.arange(3, 6))
        optimizer = optimizers.SGD(0.1).setup(link)

        def step(x, actions, rewards):
            log_p = _log_probability(name, link(x), actions)
            rewards = rewards.reshape(-1, *[1] * (log_p.ndim - 1))
            loss = -F.sum(log_p * np.broadcast_to(rewards, log_p.shape))
            link.cleargrads()
            loss.backward()
            optimizer.update()
            return loss

        return step, lambda: [link.W.array, link.b.array, link.W.grad]

    def draw(seed):
        random_state = np.random.RandomState(seed)
        x, actions = random_state.randn(4, 3).astype("f"), random_state.randint(0, 4, 4)
        return [x, actions, random_state.randn(4).astype("f") * (seed > 4)]

    assert_sound([Case("policy gradients", name, make, draw)], has_equal_data=False)


@pytest.mark.gpu
@pytest.mark.parametrize("table", ["table", "activation", "indexing", "loss"])
@EQUAL
def test_sample_of_rows_by_graphs_of_a_gpu(table, has_equal_data):
    rows = [row for row in tables_of_functions()[table] if row.orders]
    rows = random.Random(5).sample(rows, 3)
    refused = assert_sound(cases_on("@cupy:0", table, rows), has_equal_data)
    assert len(refused) <= 3, refused


@pytest.mark.slow
@EQUAL
def test_sample_of_rows(has_equal_data):
    cases = [case for table in ("table", "loss", "links: recurrent") for case in MAKERS[table]()]
    assert_sound(random.Random(5).sample(cases, 20), has_equal_data)
