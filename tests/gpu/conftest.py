"""Fixtures of tests on the double of CuPy."""

import sys

import pytest

from mpchain.kernels.gpu import cuda_reductions, cuda_steps, cudnn


@pytest.fixture
def library(double, monkeypatch):
    """Replaces cuDNN with its double; changes that a test makes to the double are undone."""
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
    """Discards the kernels of reductions before and after the test, so that their text is written
    again."""
    _forget_reductions()
    yield
    _forget_reductions()


def _forget_reductions():
    cuda_reductions._compiled.cache_clear()
    cuda_reductions._sized.cache_clear()


@pytest.fixture
def limit_arguments(monkeypatch):
    """Returns a function that sets how many bytes of arguments a kernel accepts."""
    return lambda n_bytes: monkeypatch.setattr(cuda_steps, "_argument_bytes", lambda: n_bytes)


@pytest.fixture
def set_reductions(monkeypatch):
    """Returns a function that sets the text of reductions (by a function that changes it), the
    number of blocks of a grid and the number of parts of sums."""

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
