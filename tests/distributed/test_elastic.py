"""Tests that lost ranks do not change results, for some of the faults that
``tests.distributed.elastic`` draws."""

import functools
import importlib.util
import re
import shutil

import numpy as np
import pytest

from mpchain.backends.nccl_bindings import BINDINGS
from tests.distributed import elastic, elastic_models
from tests.distributed.test_gpus_under_mpirun import MODULES

LONG = [
    ("convnet", ["kill:3:normalization:7"]),
    ("lstm", ["kill:0:step:5", "kill:1:step:5"]),
    ("wgan", ["kill:0:backward:9", "kill:2:forward:20"]),
    ("sharded", ["kill:2:checkpoint:2", "kill:0:recovery:1"]),
    ("sharded", ["stop:1:step:5"]),  # the other ranks wait for its slice of the new parameters
    ("reproducible", ["stop:0:evaluator:1"]),
    ("loop", ["kill:0:ready:9", "kill:2:step:8"]),
    ("mlp", ["kill:1:setup:1"]),
    ("mlp", ["kill:1:setup:1", "kill:2:renewed:1"]),
    ("counted", ["kill:0:count:5", "kill:2:count:9"]),
]

SPARE = [
    ("sharded", 2, ["kill:2:checkpoint:2", "kill:0:recovery:1"]),
    ("reproducible", 1, ["kill:0:step:5", "kill:1:step:5", "kill:2:step:9"]),
    ("lstm", 2, ["kill:5:spare:1", "kill:1:control:5"]),
    ("loop", 1, ["stop:0:step:8"]),
    ("mlp", 1, ["kill:0:ready:9"]),
    ("mlp", 1, ["kill:1:setup:1"]),
    ("mlp", 1, ["kill:4:spare:1"]),
    ("counted", 1, ["kill:1:count:7"]),
    ("mlp", 1, []),
]


@pytest.fixture(scope="module")
def _reason():
    return elastic.why_not()


@functools.cache
def _undisturbed(model):
    """Trains in one process; any number of ranks has the same results."""
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


GPU_CASES = [
    # In this case, ranks are lost in a sum, and while NCCL shrinks.
    ("mlp", ["kill:1:begun:7", "kill:2:shrink:1"]),
    ("convnet", ["kill:0:connect:1"]),
    ("sharded", ["stop:0:step:2"]),
    ("lstm", ["kill:3:ready:20"]),
    ("wgan", ["kill:1:run:30"]),
    ("loop", ["kill:0:step:12"]),
]


@pytest.mark.skipif(shutil.which("g++") is None, reason="the doubles need g++")
@pytest.mark.parametrize(
    ("model", "faults", "binding"),
    [
        pytest.param("mlp", ["kill:0:run:10"], "pynccl", marks=pytest.mark.long),
        *(
            pytest.param(*case, binding, marks=pytest.mark.nightly)
            for case in GPU_CASES
            for binding in BINDINGS
        ),
    ],
)
def test_results_on_gpus_do_not_change(model, faults, binding, tmp_path, needs_mpirun, _reason):
    if _reason:
        pytest.skip(_reason)
    if importlib.util.find_spec(MODULES[binding]) is None:
        pytest.skip(f"{binding} is not installed")
    if binding == "cupy":  # the binding of CuPy cannot shrink
        faults = [fault.replace("shrink", "recovery") for fault in faults]
    outcome, output = elastic.train(model, tmp_path, faults, nccl=binding)
    assert elastic.is_as_good(model, outcome, _undisturbed(model)), output
    assert len(re.findall(r"rank \d \(", output)) == len(faults), output


@pytest.mark.long
@pytest.mark.parametrize(("model", "spares", "faults"), SPARE)
def test_spare_ranks_take_the_places_of_lost_ones(
    model, spares, faults, tmp_path, needs_mpirun, _reason
):
    """Several ranks may be lost, in a row or more than there are spares; spares may be lost, or not
    be needed."""
    if _reason:
        pytest.skip(_reason)
    outcome, output = elastic.train(model, tmp_path, faults, spares=spares)
    assert elastic.is_as_good(model, outcome, _undisturbed(model)), output
    n_taken = min(sum("spare" not in fault for fault in faults), spares)
    assert output.count("takes the place of rank") == n_taken, output
    assert output.count("starting again") <= spares, output


@pytest.mark.long
def test_spare_ranks_get_scattered_data_and_communicators(tmp_path, needs_mpirun, _reason):
    if _reason:
        pytest.skip(_reason)
    reference, _ = elastic.train("scattered", tmp_path / "undisturbed")
    outcome, output = elastic.train("scattered", tmp_path, ["kill:1:forward:9"], spares=1)
    assert elastic.difference(outcome, reference) == 0, output


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "spares"), [("sharded", 0), ("loop", 0), ("sharded", 1), ("lstm", 1)]
)
def test_ranks_that_another_process_kills_change_nothing(
    model, spares, tmp_path, needs_mpirun, _reason
):
    """The kills come most often within MPI, and two kills come within 0.6 s."""
    if _reason:
        pytest.skip(_reason)
    random = np.random.RandomState([spares, len(model)])
    first, second = random.permutation(elastic_models.N_RANKS)[:2]
    at = random.uniform(0, 0.2)
    faults = [f"kill:{first}:outside:{at}", f"kill:{second}:outside:{at + random.uniform(0, 0.6)}"]
    outcome, output = elastic.train(model, tmp_path, faults, spares=spares)
    assert elastic.is_as_good(model, outcome, _undisturbed(model)), output
    # The number of ranks that were lost before training ended.
    n_lost = len(list(tmp_path.glob("lost_*")))
    assert len(re.findall(r"rank \d \(process \d+ on", output)) >= (n_lost > 0), output


@pytest.mark.parametrize(
    ("kind", "events", "as_planned"),
    [
        ("one", ["lost_1.5_0"], False),
        ("two at once", ["lost_1.5_0", "lost_1.5_2", "noticed_1.7"], True),
        ("two in a row", ["lost_1.5_2", "noticed_1.7", "lost_1.8_0", "noticed_2.0"], True),
        ("two in a row", ["lost_1.5_0", "lost_1.6_2", "noticed_1.7"], False),
        ("two in a row", ["noticed_1.7", "lost_1.8_0"], False),
        ("two in a row", [], False),
    ],
)
def test_runs_count_only_if_all_ranks_were_lost_as_planned(kind, events, as_planned, tmp_path):
    for event in events:
        (tmp_path / event).touch()
    faults = ["kill:0:forward:5", "kill:2:step:5"]
    assert elastic.came_to_pass(kind, faults, tmp_path) == as_planned
