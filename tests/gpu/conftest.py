"""What tests on the double of CuPy share."""

import sys

import pytest

from mpchain.kernels.gpu import cudnn


@pytest.fixture
def double(request):
    """What happened on the double; see Ledger in doubles/cupy/_machine.py."""
    if request.config.option.gpu != "double":
        pytest.skip("counts on the double of CuPy: --gpu=double")
    import cupy

    return cupy.double


@pytest.fixture
def library(double, monkeypatch):
    """The double of cuDNN, in place of cuDNN."""
    import cudnn_double

    monkeypatch.setitem(sys.modules, "cudnn", cudnn_double)
    _forget()
    cudnn_double.executed.clear()
    yield cudnn_double
    _forget()


def _forget():
    cudnn.load_library.cache_clear()
    cudnn.cached_plan.cache_clear()
    cudnn._handles.of.clear()
