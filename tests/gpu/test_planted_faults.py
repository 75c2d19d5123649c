"""The tests on the double of CuPy find faults that are planted in the source."""

import shutil

import pytest

from tests.tools.gpu_faults import FAULTS, plant, with_fault

each_fault = pytest.mark.parametrize(
    "fault", FAULTS, ids=[fault.what.replace(" ", "_") for fault in FAULTS]
)


@each_fault
def test_source_is_where_a_fault_is_planted(fault):
    assert with_fault(fault), "change tests/tools/gpu_faults.py with the source"


@pytest.mark.nightly
@pytest.mark.timeout(700)
@pytest.mark.skipif(not shutil.which("g++"), reason="the double of CuPy needs g++")
@each_fault
def test_planted_fault_is_found(fault, tmp_path):
    plant(fault, tmp_path)
