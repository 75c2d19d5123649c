"""Tests the count of tests that pass only when they run again."""

import datetime
import subprocess
import sys

import pytest

from tests.tools import reruns

TESTS = """
import pathlib

def test_flaky():
    path = pathlib.Path(__file__).with_name("again")
    exists = path.exists()
    path.touch()
    assert exists

def test_broken():
    assert False

def test_good():
    pass
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_test_that_passes_alone_is_counted(tmp_path):
    (tmp_path / ".ci").mkdir()
    (tmp_path / "test_x.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    today = datetime.date.today().isoformat()
    for n in (1, 2):
        (tmp_path / "again").unlink(missing_ok=True)
        run = [sys.executable, "-m", "pytest", "-q"]
        assert subprocess.run(run, check=False, cwd=tmp_path, capture_output=True).returncode == 1
        assert reruns.rerun(["-q"], tmp_path) == 1  # one test always fails
        assert (tmp_path / reruns.FILE).read_text() == (
            f"{reruns.HEAD}{n} {today} test_x.py::test_flaky\n"
        )
    assert reruns.failed(tmp_path) == {"test_x.py::test_broken"}


def test_the_file_of_the_repository_can_be_read():
    head, *lines = (reruns.ROOT / reruns.FILE).read_text().splitlines(keepends=True)
    assert head == reruns.HEAD
    for line in lines:
        n, day, test = line.split(" ", 2)
        assert (
            int(n) > 0
            and datetime.date.fromisoformat(day)
            and test.startswith(("tests/", "mpchain/", "launch/"))
        )
