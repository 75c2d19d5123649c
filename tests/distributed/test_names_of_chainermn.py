"""Tests names of ChainerMN that refer to objects in other modules."""

import importlib.util
import types

import pytest

from mpchain import backend
from mpchain.backends import cuda
from mpchain.distributed import nccl, testing


def test_device_of_tests():
    assert testing.get_device() == backend.get_device("@numpy")
    with pytest.raises(Exception, match="ChainerX"):
        testing.get_device(use_chainerx=True)
    with pytest.raises(Exception, match="ChainerX"):
        testing.get_device(1, use_chainerx=True)


@pytest.mark.skipif(cuda.available, reason="needs a host without a GPU")
@pytest.mark.skipif(
    importlib.util.find_spec("cupy") is not None, reason="needs an environment without CuPy"
)
def test_without_cupy():
    with pytest.raises(RuntimeError, match="CuPy"):
        testing.get_device(0)
    assert not hasattr(nccl, "__path__")
    assert getattr(nccl, "get_unique_id", None) is None
    with pytest.raises(RuntimeError, match="CuPy"):
        nccl.get_unique_id


def test_nccl_is_cupys(pretend_cupy):
    fake = types.SimpleNamespace(cuda=types.SimpleNamespace(nccl=types.SimpleNamespace(NCCL_SUM=0)))
    pretend_cupy(fake)
    assert nccl.NCCL_SUM == 0
    with pytest.raises(AttributeError, match="no_such_thing"):
        nccl.no_such_thing
