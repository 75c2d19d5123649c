"""The README's example runs, and its commands are those that a newcomer needs."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


TWENTY_LINES, OWN_FUNCTION = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def numbers_printed_by(code):
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return list(map(float, re.findall(r"[-.\de]+", result.stdout)))


@pytest.mark.slow
def test_the_example_learns_a_function_with_its_derivatives():
    assert TWENTY_LINES.count("\n") <= 22
    y, dy, d2y = numbers_printed_by(TWENTY_LINES)
    assert abs(y - np.sin(0.5)) < 0.02
    assert abs(dy - np.cos(0.5)) < 0.1
    assert abs(d2y + np.sin(0.5)) < 0.2


def test_a_function_of_the_user_has_derivatives_of_every_order():
    assert numbers_printed_by(OWN_FUNCTION) == [1 / 4, -1 / 4, 3 / 8, -3 / 4]
    assert "# 1/4, -1/4, 3/8, -3/4\n" in OWN_FUNCTION


def test_the_commands_install_the_extras_that_they_need():
    run, test = re.findall(r"<!-- (?:run|test) -->\n```sh\n(.*?)```", README, re.DOTALL)
    assert "[mpi,data,plot]" in run and "-n 2 examples/mnist/train_mnist.py" in run
    assert "[test]" in test and test.rstrip().endswith("-m pytest -n 2")
    for path in re.findall(r"`((?:mpchain|launch|examples|tests)/[\w/]*)`", README):
        assert (ROOT / path).exists(), path
