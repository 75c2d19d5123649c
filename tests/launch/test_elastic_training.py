"""A training that continues without a host."""

import numpy as np
import pytest

from launch import mpirun
from tests.distributed import elastic, elastic_models
from tests.launch.test_hosts import hosts, pytestmark, start_on_a  # noqa: F401


@pytest.mark.long
def test_training_continues_without_a_host_with_the_same_results(start_on_a, hosts, tmp_path):  # noqa: F811
    """Host c is cut off, with two of four ranks; each of these mirrors what the other alone has."""
    try:
        mpirun.find().elastic()
    except mpirun.NotElasticError as error:
        pytest.skip(f"needs Open MPI with ULFM: {error}")
    options = ["--elastic", "--host-timeout", 5, "--grace", 0.5]
    program = ["-m", "tests.distributed.elastic_models", "sharded", tmp_path, "wait:1:forward:6"]
    arguments = ["--hosts", "a:1,b:1,c:2", "-n", 4, *options, *program]
    launched = start_on_a(*arguments, folder=elastic.ranks.ROOT)
    assert launched.read_lines(1) == ["[1] waits"]
    hosts.cut("c")
    (tmp_path / "continue").touch()
    try:
        code, _, errors = launched.finish()
    finally:
        hosts.join("c")
    assert code == 0, errors
    with np.load(tmp_path / "outcome.npz") as file:
        outcome = dict(file)
    assert elastic.is_as_good("sharded", outcome, elastic_models.in_one_process("sharded"))
    assert "lost 2 of 4 ranks" in errors and "iterations repeated" in errors
