"""Tests which binding of NCCL is used, and the error when no binding works."""

import pytest

from mpchain.backends import nccl_bindings, pynccl
from mpchain.backends.nccl_bindings import find_binding


class Works:
    def get_version(self):
        return 23203


def broken(name):
    def make():
        raise ImportError(f"no {name} here")

    return make


@pytest.fixture
def bindings(monkeypatch):
    """Returns a function that replaces the bindings."""
    yield lambda **made: (
        monkeypatch.setattr(nccl_bindings, "BINDINGS", made),
        nccl_bindings._why_not.cache_clear(),
    )
    nccl_bindings._why_not.cache_clear()


def test_the_first_that_works(bindings):
    bindings(nccl4py=broken("nccl4py"), cupy=Works, pynccl=Works)
    assert find_binding() == "cupy"
    assert find_binding("pynccl") == "pynccl"
    with pytest.raises(RuntimeError, match=r"NCCL cannot be used \(nccl4py: no nccl4py here\)"):
        find_binding("nccl4py")


def test_none_works(bindings):
    bindings(cupy=broken("cupy"), pynccl=broken("libnccl"))
    reasons = r"\(cupy: no cupy here; pynccl: no libnccl here\): pip install 'mpchain\[gpu\]'"
    with pytest.raises(RuntimeError, match=f"NCCL cannot be used {reasons}"):
        find_binding()


def test_a_name_that_is_no_binding():
    with pytest.raises(ValueError, match="unknown binding 'gloo'; the bindings are nccl4py, cupy"):
        find_binding("gloo")


def test_all_take_the_same_calls():
    """CuPy's adapter and pynccl have the functions that :class:`Connection` calls, with the same
    names."""
    calls = "all_reduce reduce broadcast all_gather reduce_scatter send recv".split()
    assert set(nccl_bindings._OfCupy._methods) == set(calls)
    for name in [*calls, "group_start", "group_end", "comm_abort", "comm_destroy"]:
        assert callable(getattr(pynccl, name)), name


@pytest.mark.parametrize("binding", ["nccl4py", "pynccl"])
def test_identities(binding):
    """The functions that make identities are tested with NVIDIA's library, which needs no GPU for
    them, or its double."""
    try:
        find_binding(binding)
    except RuntimeError as error:
        pytest.skip(str(error))
    first, second = (nccl_bindings.new_identity(binding) for _ in range(2))
    assert isinstance(first, bytes) and len(first) == len(second) == 128
    assert first != second
