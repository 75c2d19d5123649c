"""Ranks that are lost change nothing: a selection of what ``tests.distributed.elastic`` draws."""

import functools

import pytest

from tests.distributed import elastic, elastic_models

LONG = [
    ("convnet", ["kill:3:normalization:7"]),
    ("lstm", ["kill:0:step:5", "kill:1:step:5"]),
    ("wgan", ["kill:0:backward:9", "kill:2:forward:20"]),
    ("sharded", ["kill:2:checkpoint:2", "kill:0:recovery:1"]),
    ("reproducible", ["stop:0:evaluator:1"]),
    ("loop", ["kill:0:ready:9", "kill:2:step:8"]),
    ("mlp", ["kill:1:setup:1"]),
]


@pytest.fixture(scope="module")
def _reason():
    return elastic.why_not()


@functools.cache
def _undisturbed(model):
    """One process, which any number of ranks equals."""
    return elastic_models.in_one_process(model)


@pytest.mark.parametrize(
    ("model", "faults"),
    [
        ("mlp", ["kill:0:ready:9", "kill:2:recovery:1"]),
        *(pytest.param(*case, marks=pytest.mark.long) for case in LONG),
    ],
)
def test_results_do_not_change(model, faults, tmp_path, needs_mpirun, _reason):
    if _reason:
        pytest.skip(_reason)
    outcome, output = elastic.train(model, tmp_path, faults)
    assert elastic.is_as_good(model, outcome, _undisturbed(model)), output
    assert "mpchain: lost rank" in output
