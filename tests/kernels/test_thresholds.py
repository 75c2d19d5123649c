"""Tests the measured thresholds, and the context that sets them."""

import ast
import inspect
import subprocess
import sys

import numpy as np
import pytest

from mpchain.kernels import thresholds
from mpchain.kernels.cpu.loops import loop_of
from tests.kernels.needs import needs_numba


def test_numbers_are_restored_also_after_an_error():
    before = thresholds.loop, thresholds.few_rows
    with pytest.raises(KeyError), thresholds.using(loop=3, few_rows=range(2)):
        assert (thresholds.loop, thresholds.few_rows) == (3, range(2))
        raise KeyError
    assert (thresholds.loop, thresholds.few_rows) == before


@pytest.mark.parametrize("name", ["lop", "using", "_caches", "Any"])
def test_a_name_that_is_none_of_a_number(name):
    with pytest.raises(AttributeError, match=f"thresholds.using: there is no number {name!r}"):
        with thresholds.using(loop=0, **{name: 1}):
            pass
    assert thresholds.loop == 1 << 16


def test_what_is_remembered_is_forgotten_with_the_numbers():
    @thresholds.remembered(maxsize=4)
    def is_large(n):
        return n > thresholds.loop

    assert not is_large(9)
    with thresholds.using(loop=0):
        assert is_large(9)
    assert not is_large(9)


@needs_numba
def test_a_loop_takes_arrays_from_the_number_on():
    loop, x = loop_of(lambda x: x * x + 1, ["x"], 1), np.arange(5.0)
    assert loop(x) is None
    with thresholds.using(loop=5, compiled_loop=-1):
        assert loop(x).tolist() == [1, 2, 5, 10, 17]
        assert loop(x[:4]) is None


def test_every_number_says_what_it_is():
    body = ast.parse(inspect.getsource(thresholds)).body
    for node, following in zip(body, [*body[1:], None]):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) != "_caches":
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            assert is_text, f"{ast.unparse(node)}: without a sentence"


@pytest.mark.long
def test_the_command_that_measures_them():
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.thresholds",
        "loop",
        "few_rows",
        "--times",
        "1",
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200).stdout
    assert "loop = 65536" in output and "few_rows = range(4, 49)" in output
