"""What tests on the double of CuPy share."""

import pytest


@pytest.fixture
def double(request):
    """What happened on the double; see Ledger in doubles/cupy/_machine.py."""
    if request.config.option.gpu != "double":
        pytest.skip("counts on the double of CuPy: --gpu=double")
    import cupy

    return cupy.double
