"""Tests synchronized batch normalization in first, second and third derivatives, on several
ranks."""

import pytest

from tests.distributed import ranks
from tests.tools import critics

ON_GPUS = True


@pytest.mark.parametrize("name", critics.PROGRAMS)
def test_n_ranks_are_one_process(comm, name):
    """There are six updates here; the program can run longer."""
    reference = critics.train(name, None, 6)
    outcome = critics.train(name, comm, 6)
    assert critics.difference(outcome, reference) <= critics.LIMIT
    assert len(reference["losses"]) >= 6


@pytest.mark.nightly
def test_derivatives_on_four_ranks(needs_mpirun):
    """test_under_mpirun.py runs this folder on fewer ranks."""
    names = ("communication", "point_to_point")
    files = [f"tests/distributed/functions/test_{name}.py" for name in names]
    files.append("tests/distributed/test_critics.py::test_n_ranks_are_one_process")
    options = ["-x", "-q", "-p", "no:cacheprovider", "-k", "not wgan_gp and not r1"]
    command = ["-m", "mpi4py", "-m", "pytest", *options, *files]
    status, outputs, own_output = ranks.run(4, command, timeout=240)
    assert status == 0, ranks.report(status, outputs, own_output)


def test_a_difference_is_noticed():
    reference = critics.train("classifier", None, 2)
    reference["losses"][1] *= 1 + 1e-11
    assert critics.difference(critics.train("classifier", None, 2), reference) > critics.LIMIT
