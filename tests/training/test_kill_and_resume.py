"""Tests that a training that was killed while it wrote a snapshot resumes with the same results."""

import re
import subprocess
import sys

import pytest


@pytest.mark.long
def test_losses_are_the_same_bit_by_bit():
    command = [
        sys.executable,
        "-m",
        "tests.tools.kill_and_resume",
        "--kills",
        "2",
    ]  # the default is 20 kills
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *kills, summary = done.stdout.splitlines()
    assert len(kills) == 2
    for kill in kills:
        n_written, n_bytes = map(
            int, re.search(r"after +(\d+) of (\d+) bytes; same", kill).groups()
        )
        assert 0 < n_written < n_bytes
    first, last = map(float, re.search(r"90 losses each: (.*) to (.*)", summary).groups())
    assert last < 0.7 * first
