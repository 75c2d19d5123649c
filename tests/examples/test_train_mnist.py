"""Tests the main example: in one process, on several ranks, and resumed."""

import json
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "mnist" / "train_mnist.py"
KEYS = ["main/loss", "main/accuracy", "validation/main/loss", "validation/main/accuracy"]


def _train(out, *arguments, ranks=1):
    """Runs the example and returns its log."""
    start = [sys.executable] if ranks == 1 else [sys.executable, "-m", "launch", "-n", str(ranks)]
    command = [*start, str(SCRIPT), "--out", str(out), "--double", *map(str, arguments)]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads((out / "log").read_text())


def _check_equal(log, expected):
    assert len(log) == len(expected)
    for entry, reference in zip(log, expected):
        for key in KEYS:
            assert entry[key] == pytest.approx(reference[key], rel=1e-9), key


@pytest.fixture
def needs_mpirun():
    pytest.importorskip("mpi4py")
    from mpi4py import MPI  # noqa: F401  (an MPI library must be installed, too)


@pytest.mark.long
def test_it_learns_and_leaves_its_results(tmp_path):
    log = _train(tmp_path, "--epoch", 3, "--model", "mlp")
    assert log[-1]["main/loss"] < 0.5 * log[0]["main/loss"]
    assert log[-1]["validation/main/accuracy"] > 0.8
    names = {path.name for path in tmp_path.iterdir()}
    assert {"log", "loss.png"} <= names and any(n.startswith("snapshot_iter_") for n in names)
    assert not any(".tmp" in name for name in names)


@pytest.mark.long
def test_two_ranks_compute_what_one_process_computes(tmp_path, needs_mpirun):
    options = ("--epoch", 2, "--model", "conv", "--batchsize", 125)
    expected = _train(tmp_path / "one", *options)
    _check_equal(_train(tmp_path / "two", *options, ranks=2), expected)


@pytest.mark.long
def test_resumed_training_is_the_uninterrupted_one(tmp_path):
    expected = _train(tmp_path / "whole", "--epoch", 3)
    _train(tmp_path / "part", "--epoch", 2)
    (snapshot,) = sorted((tmp_path / "part").glob("snapshot_iter_*"))[-1:]
    log = _train(tmp_path / "part", "--epoch", 3, "--resume", snapshot)
    _check_equal(log, expected)
