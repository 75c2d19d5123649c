"""Runs this folder again on several ranks."""

import pathlib

import pytest

from tests.distributed import ranks


# One rank is what plain pytest has run.
@pytest.mark.timeout(700)
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_folder_on_ranks(n_ranks, needs_mpirun, monkeypatch, tmp_path):
    # With temporary folders beside those of other runs, the ranks would race to delete old ones.
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))
    folder = str(pathlib.Path(__file__).parent)
    # Under mpi4py's runner a rank that fails ends the others, which would wait for it.
    command = ["-m", "mpi4py", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", folder]
    status, outputs, own_output = ranks.run(n_ranks, command, timeout=600)
    assert status == 0, ranks.report(status, outputs, own_output)
    for rank, output in enumerate(outputs):
        assert " passed" in output, f"rank {rank} ran no tests:\n{output}"
