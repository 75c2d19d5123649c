"""Tests that the tests on the double of CuPy find faults that are planted in the source."""

import ast
import shutil

import pytest

from tests.tools.gpu_faults import FAULTS, Fault, plant, replaced, with_fault

each_fault = pytest.mark.parametrize(
    "fault", FAULTS, ids=[fault.what.replace(" ", "_") for fault in FAULTS]
)


@each_fault
def test_source_is_where_a_fault_is_planted(fault):
    """If this test fails, change tests/tools/gpu_faults.py with the source."""
    assert ast.parse(with_fault(fault))


def in_place(old, new, place="A.f", **options):
    return Fault("", "a.py", place, old, new, (), "", **options)


REFORMATTED = """
K = "y = x[j];"
class A:
    def g(self):
        wait(a, b)
    def f(self):
        for _ in a:
            wait(  # reformatted
                a, b,
            )
        if a: return
"""


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (in_place("wait(a, b)", "None"), "            None"),
        (in_place("b", "a"), "            wait(a, a)"),
        (in_place("if a:\n    return", "pass"), "        pass"),
        (in_place("x[j]", "x[0]", "K", in_cuda=True), 'K = "y = x[0];"'),
    ],
)
def test_faults_are_planted_by_function_and_node(fault, line):
    changed = replaced(REFORMATTED, fault)
    assert line in changed.splitlines()
    assert "wait(a, b)" in changed  # the other function still contains this text
    original = ast.parse(REFORMATTED)
    assert ast.dump(original) != ast.dump(ast.parse(changed))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (in_place("a", "b"), "has 3 times, not once"),
        (in_place("wait(b)", "None"), "has 0 times, not once"),
        (in_place("wait(a, b)", "None", "A.h"), "does not define A.h once"),
        (in_place("wait(a, b)", "None", "A"), "has 2 times, not once"),
        (in_place("z", "x", "K", in_cuda=True), "has 0 times, not once"),
    ],
)
def test_a_fault_whose_place_is_not_there_once_is_refused(fault, message):
    with pytest.raises(AssertionError, match=message):
        replaced(REFORMATTED, fault)


@pytest.mark.nightly
@pytest.mark.timeout(700)
@pytest.mark.skipif(not shutil.which("g++"), reason="the double of CuPy needs g++")
@each_fault
def test_planted_fault_is_found(fault, tmp_path):
    plant(fault, tmp_path)
