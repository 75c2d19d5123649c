"""Tests the line that says why tests were skipped."""

import subprocess
import sys

from tests import skips


def test_the_most_frequent_reasons_are_named():
    reasons = [f"Skipped: needs {i}" for i in range(6) for _ in range(10 - i)]
    reasons += ["Skipped: could not import 'torch.nn': No module named 'torch'"] * 11
    assert skips.summary(reasons) == (
        "skipped: 11 (torch is not installed), 10 (needs 0), 9 (needs 1), 8 (needs 2), "
        "18 for other reasons (-rs lists them)"
    )
    assert skips.summary([]) == ""


def test_the_test_command_prints_it(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text("import pytest\n\n@pytest.mark.skip('no moon')\ndef test_it(): pass\n")
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", str(path)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.stdout.count("\nskipped: 1 (no moon)\n") == 1, done.stdout
