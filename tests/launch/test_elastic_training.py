"""Tests a training that continues after a host is lost."""

import numpy as np
import pytest

from launch import mpirun
from tests.distributed import elastic, elastic_models
from tests.launch.test_hosts import hosts, pytestmark, start_on_a  # noqa: F401


@pytest.mark.long
def test_training_continues_without_a_host_with_the_same_results(start_on_a, hosts, tmp_path):  # noqa: F811
    """Host c is disconnected, with two of four ranks."""
    options = ["--elastic", "--host-timeout", 5, "--grace", 0.5]
    code, errors = _train_without_c(
        "a:1,b:1,c:2", 4, options, "sharded", start_on_a, hosts, tmp_path
    )
    assert code == 0, errors
    assert "lost 2 of 4 ranks" in errors and "iterations repeated" in errors


@pytest.mark.long
def test_training_over_two_hosts_continues_on_one(start_on_a, hosts, tmp_path):  # noqa: F811
    """Host c is disconnected, with one of three ranks; the other ranks are on host a."""
    options = ["--elastic", "--host-timeout", 5, "--grace", 0.5]
    code, errors = _train_without_c("a:2,c:1", 3, options, "convnet", start_on_a, hosts, tmp_path)
    assert code == 0, errors
    assert "lost 1 of 3 ranks" in errors and "iterations repeated" in errors


@pytest.mark.long
def test_spare_rank_replaces_that_of_a_host(start_on_a, hosts, tmp_path):  # noqa: F811
    """Host c is disconnected; one of the ranks on b is a spare."""
    options = ["--elastic", "--spares", 1, "--host-timeout", 5, "--grace", 0.5]
    code, errors = _train_without_c("a:1,c:1,b:2", 3, options, "mlp", start_on_a, hosts, tmp_path)
    assert code == 0, errors
    assert "went back" in errors and "; rank 3 took its place; " in errors


def _train_without_c(places, n, options, model, start_on_a, hosts, folder):  # noqa: F811
    """Disconnects host c while a training waits, and compares the result with an undisturbed
    training.

    Returns:
        The exit code, and the standard error.
    """
    try:
        mpirun.find().elastic()
    except mpirun.NotElasticError as error:
        pytest.skip(f"needs Open MPI with ULFM: {error}")
    program = ["-m", "tests.distributed.elastic_models", model, folder, "wait:1:forward:6"]
    arguments = ["--hosts", places, "-n", n, *options, *program]
    launched = start_on_a(*arguments, folder=elastic.ranks.ROOT)
    assert launched.read_lines(1) == ["[1] waits"]
    hosts.cut("c")
    (folder / "continue").touch()
    try:
        code, _, errors = launched.finish()
    finally:
        hosts.join("c")
    with np.load(folder / "outcome.npz") as file:
        outcome = dict(file)
    assert elastic.is_as_good(model, outcome, elastic_models.in_one_process(model)), errors
    return code, errors
