"""What tests on the double of CuPy share."""

import sys

import pytest

from mpchain.kernels.gpu import cuda_reductions, cuda_steps, cudnn


@pytest.fixture
def double(request):
    """What happened on the double; see Ledger in doubles/cupy/_machine.py."""
    if request.config.option.gpu != "double":
        pytest.skip("counts on the double of CuPy: --gpu=double")
    import cupy

    return cupy.double


@pytest.fixture
def library(double, monkeypatch):
    """The double of cuDNN, in place of cuDNN; what a test changes of it is restored."""
    import cudnn_double

    before = dict(vars(cudnn_double))
    monkeypatch.setitem(sys.modules, "cudnn", cudnn_double)
    _forget()
    cudnn_double.executed.clear()
    yield cudnn_double
    vars(cudnn_double).update(before)
    _forget()


@pytest.fixture
def new_reductions():
    """Has kernels of reductions written anew, in the test and after it."""
    _forget_reductions()
    yield
    _forget_reductions()


def _forget_reductions():
    cuda_reductions._compiled.cache_clear()
    cuda_reductions._sized.cache_clear()


@pytest.fixture
def limit_arguments(monkeypatch):
    """Function that says how many bytes of arguments a kernel has."""
    return lambda n_bytes: monkeypatch.setattr(cuda_steps, "_argument_bytes", lambda: n_bytes)


@pytest.fixture
def set_reductions(monkeypatch):
    """Function that sets the text of reductions (by what changes it), the blocks of a grid and the
    parts of sums.
    """

    def set_reductions(change=None, **values):
        _forget_reductions()
        if change is not None:
            text = cuda_reductions._TEXT
            values["_TEXT"] = change(text)
            assert values["_TEXT"] != text
        for name, value in values.items():
            monkeypatch.setattr(cuda_reductions, name, value)

    return set_reductions


def _forget():
    cudnn.load_library.cache_clear()
    cudnn.cached_plan.cache_clear()
    cudnn._handles.of.clear()
