"""Compares optimizers with Chainer 7.8.1, which runs in a separate environment.

The environment variable MPCHAIN_TEST_CHAINER_PYTHON names that environment's interpreter.
"""

import os
import subprocess

import numpy as np
import pytest

from tests.oracle import optimizers

PYTHON = os.environ.get("MPCHAIN_TEST_CHAINER_PYTHON")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="MPCHAIN_TEST_CHAINER_PYTHON names no interpreter that has Chainer 7.8.1"
)


@pytest.fixture(scope="module")
def mpchain():
    return optimizers.Framework("mpchain")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, mpchain):
    """Returns a folder with files that both libraries have saved, and with Chainer's results."""
    folder = tmp_path_factory.mktemp("oracle")
    (folder / "ours").mkdir()
    optimizers.save_half_way(mpchain, folder / "ours")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [PYTHON, optimizers.__file__, "chainer", str(folder)]
    subprocess.run(command, env=environment, check=True)
    return folder


def compare(actual, expected, tolerances):
    """Compares dicts of arrays; returns the largest relative differences."""
    differences = {}
    for name in expected:
        scale = np.abs(expected[name]).max()
        differences[name] = np.abs(actual[name] - expected[name]).max() / scale
    assert actual.keys() == set(expected)
    failures = {n: d for n, d in differences.items() if not d <= tolerances(n)}
    assert not failures
    return differences


def tolerance(name):
    if "MSVAG" in name:  # the first step magnifies rounding 10,000 times
        return 1e-3 if name.startswith("float32") else 1e-11
    return 2e-6 if name.startswith("float32") else 1e-13


def without_msvag(arrays):
    """Omits MSVAG, whose number of steps Chainer loses when it restores a file."""
    return {name: array for name, array in arrays.items() if "MSVAG" not in name}


def test_steps(mpchain, folder):
    with np.load(folder / "results.npz") as expected:
        differences = compare(optimizers.results(mpchain), dict(expected), tolerance)
    for name, difference in sorted(differences.items()):
        print(f"{name:36} {difference:.1e}")


def test_its_snapshots_resume_here(mpchain, folder):
    with np.load(folder / "resumed from theirs.npz") as expected:
        resumed = optimizers.resume(mpchain, folder / "theirs")
        compare(without_msvag(resumed), without_msvag(expected), tolerance)


def test_our_snapshots_resume_there(mpchain, folder):
    with np.load(folder / "resumed from ours.npz") as resumed:
        expected = optimizers.resume(mpchain, folder / "ours")
        compare(without_msvag(resumed), without_msvag(expected), tolerance)
