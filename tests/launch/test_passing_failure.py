"""Tests that only a temporary failure of mpirun is followed by a second start."""

import sys

import pytest

from tests.launch.imitated_mpirun import run_with_mpirun

FAKE = """#!{python}
import os, sys
with open({counter!r}, "a") as file:
    file.write("x")
if "--version" in sys.argv:
    print("mpirun (Open MPI) 5.0.0")
    sys.exit()
print({words!r})
sys.exit(213)
"""


@pytest.mark.parametrize(
    "words, starts",
    [("The PMIx server's listener thread failed to start.", 3), ("Something else.", 1)],
)
def test_a_passing_failure(words, starts, tmp_path):
    counter = tmp_path / "starts"
    fake = tmp_path / "mpirun"
    fake.write_text(FAKE.format(python=sys.executable, counter=str(counter), words=words))
    result = run_with_mpirun(fake, "OpenMpi")
    assert result.returncode == 213
    assert len(counter.read_text()) == starts
    assert result.stderr.count("failed to start; trying again") == starts - 1
    assert words in result.stderr
