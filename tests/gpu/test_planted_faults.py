"""The tests on the double of CuPy find faults that are planted in the source."""

import pytest

from tests.tools.gpu_faults import FAULTS, plant


@pytest.mark.nightly
@pytest.mark.timeout(700)
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.what.replace(" ", "_") for fault in FAULTS])
def test_planted_fault_is_found(fault, tmp_path):
    plant(fault, tmp_path)
