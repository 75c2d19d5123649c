"""Repeats a few times what ``python -m tests.tools.resume_faults`` does many times."""

import errno
import random
import tempfile

import numpy as np
import pytest

from tests.distributed import ranks
from tests.tools import resume_faults

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def expected():
    """Returns the result of an undisturbed training."""
    if reason := ranks.why_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:
        return resume_faults.result_of(resume_faults.run(1, folder))


@pytest.mark.long
def test_killed_trainings_end_with_the_same_bits(expected):
    chain = resume_faults.Chain([1, 2, 3], random.Random(1), expected)
    chain.run(3)
    assert chain.n_kills > 0


@pytest.mark.long
@pytest.mark.parametrize(("number", "n_ranks"), [(errno.EMFILE, 2), (errno.ENOENT, 1)])
def test_files_that_cannot_be_read(number, n_ranks, expected):
    assert resume_faults.fail_to_read(number, n_ranks, random.Random(3), expected)


def run_in_turn(folder, sizes, plan):
    """Trains with each number of ranks for an equal part of the iterations; returns the result."""
    for i, n_ranks in enumerate(sizes):
        until = resume_faults.N_ITERATIONS * (i + 1) // len(sizes)
        outcome = resume_faults.run(n_ranks, folder, plan | {"until": until})
        result = resume_faults.result_of(outcome)
        if i > 0:
            assert f"/iteration_{resume_faults.N_ITERATIONS * i // len(sizes)}" in outcome[1]
    return result


@pytest.mark.long
@pytest.mark.parametrize(
    ("plan", "tolerance"),
    [
        pytest.param(
            {"normalization": "batch", "reproducible": False}, None, marks=pytest.mark.nightly
        ),
        ({"normalization": "multi-node", "reproducible": False}, 1e-12),
        ({"normalization": "batch", "reproducible": True}, 0),
    ],
)
def test_four_ranks_then_three_then_one(needs_mpirun, tmp_path, plan, tolerance):
    """The job stops in mid-epoch, after 10 and 20 batches of 12 from 50 samples."""
    result = run_in_turn(tmp_path / "a", [4, 3, 1], plan)
    assert np.isfinite(list(result["losses"].values())).all()
    if tolerance is None:
        return
    alone = run_in_turn(tmp_path / "b", [1], plan)
    if tolerance == 0:
        assert result["digest"] == alone["digest"]
    for iteration, loss in result["losses"].items():
        assert abs(loss / alone["losses"][iteration] - 1) <= tolerance
