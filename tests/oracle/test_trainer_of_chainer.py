"""Compares a trainer with many extensions with Chainer's: the logs agree, except for validation,
and both can resume from the other's snapshots.

The environment variable MPCHAIN_TEST_CHAINER_PYTHON names an interpreter that has Chainer 7.8.1.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

VARIABLE = "MPCHAIN_TEST_CHAINER_PYTHON"
PROGRAM = pathlib.Path(__file__).with_name("trainer.py")
pytestmark = pytest.mark.skipif(
    not os.environ.get(VARIABLE),
    reason=f"{VARIABLE} names no interpreter that has Chainer 7.8.1",
)


def train(library, out, *file):
    python = os.environ[VARIABLE] if library == "chainer" else sys.executable
    command = [python, str(PROGRAM), library, str(out), *map(str, file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1].removeprefix("\33[J"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns, for each library, its log and the folder of its snapshots."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("chainer", "mpchain")}
    return {name: (train(name, out), out) for name, out in folders.items()}


def assert_same(log, expected):
    assert len(log) == len(expected) == 4
    for entry, other in zip(log, expected, strict=True):
        # mpchain takes the mean over samples, Chainer over batches.
        names = {name for name in entry if not name.startswith("validation/")}
        assert names == {name for name in other if not name.startswith("validation/")}
        for name in names:
            assert entry[name] == pytest.approx(other[name], rel=1e-5, abs=1e-6), name


def test_same_log(trained):
    assert_same(trained["mpchain"][0], trained["chainer"][0])


@pytest.mark.parametrize(("library", "other"), [("chainer", "mpchain"), ("mpchain", "chainer")])
def test_each_resumes_the_snapshots_of_the_other(trained, tmp_path, library, other):
    log = train(library, tmp_path, trained[other][1] / "snapshot_iter_4")
    assert_same(log, trained[library][0])
