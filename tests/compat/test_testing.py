"""Tests chainer.testing in programs, also without pytest."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules["pytest"] = None

import unittest

import numpy
import chainer.functions as F
import chainermn.testing
from chainer import testing
from chainer.testing import attr, condition, doctest_helper


def reference(x, dtype):
    return numpy.sin(x, dtype=dtype)


@testing.unary_math_function_unittest(F.sin, func_expected=reference)
class TestSin(unittest.TestCase):
    @attr.slow
    @condition.retry(3)
    def test_slow(self):
        pass


for name in testing.__all__:
    getattr(testing, name)
unittest.main()
"""


@pytest.mark.slow
def test_without_pytest(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, "utf-8")
    command = [sys.executable, "-m", "mpchain.compat", str(program)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    # For each of 6 pairs of a shape and a dtype, the decorator adds 6 tests to the one written by
    # hand; tests on GPUs skip.
    assert run.returncode == 0 and "Ran 42 tests" in run.stderr, run.stderr
