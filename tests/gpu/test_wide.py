"""Elementwise kernels whose threads load 128 bits: the same values, for all places in memory."""

import numpy as np
import pytest

import mpchain
from mpchain.kernels.gpu.cuda_wide import WideKernel, wide
from tests.gpu import nvrtc, sass

on_gpu = pytest.mark.gpu
_OPERATION = "const T t = a * number; y = t + b; z = t > (T)0 ? t : (T)0"
_KERNEL = WideKernel(["a", "b", "number"], ["y", "z"], _OPERATION, "mpchain_tried")
_SIZES = [1, 7, 8, 9, 130, 5001]


def _expected(a, b, number):
    t = (a * a.dtype.type(number)).astype(a.dtype)
    return (t + b).astype(a.dtype), np.maximum(t, 0)


def _send(x):
    return mpchain.get_device("@cupy:0").send(x)


def _check(a, b, number=0.75):
    """Takes arrays of the GPU."""
    ys = _KERNEL(a, b, number)
    for y, x in zip(ys, _expected(a.get(), b.get(), number), strict=True):
        assert y.dtype == a.dtype
        np.testing.assert_array_equal(y.get(), x)
    return ys


def _is_wide(double):
    return any("words_" in text for (name, _), text in double.kernels.items() if "tried" in name)


@on_gpu
@pytest.mark.parametrize("dtype", ["e", "f", "d"])
@pytest.mark.parametrize("size", _SIZES)
def test_all_sizes(size, dtype, double):
    a, b = np.random.randn(2, size).astype(dtype)
    _check(_send(a), _send(b))
    assert _is_wide(double)


@on_gpu
@pytest.mark.parametrize("begin", range(1, 8))
def test_places_that_no_thread_can_load_at_once(begin, double):
    a, b = (_send(x) for x in np.random.randn(2, 100).astype("e"))
    _check(a[begin:], b[begin:])
    assert not _is_wide(double)


@on_gpu
def test_gaps_and_other_orders_and_no_elements(double):
    a, b = (_send(x) for x in np.random.randn(2, 24, 32).astype("f"))
    _check(a[:, ::2], b[:, ::2])
    _check(a.T, b.T)
    _check(a.T, b.T.copy())
    _check(a[:0], b[:0])
    assert not _is_wide(double)


@on_gpu
def test_channels_last_stay_last(double):
    a, b = (_send(x).transpose(0, 3, 1, 2) for x in np.random.randn(2, 2, 3, 4, 5).astype("e"))
    ys = _check(a, b)
    assert all(y.strides == a.strides for y in ys)
    assert _is_wide(double)
    double.reset()
    _check(a, b.copy(order="C"))
    assert not _is_wide(double)


@on_gpu
def test_a_function_loads_wide_words(double):
    """A step of a network moves no fewer bytes by that, but keeps more of them under way."""
    x = mpchain.Variable(_send(np.ones((3, 8), "e")))
    y = mpchain.functions.relu(x)
    y.grad = y.array
    y.backward()
    work = [each for each in double.work if "relu" in each.name]
    assert len(work) == 2 and all(each.grain == 0 for each in work)


def test_one_kernel_for_the_same_arguments():
    args = ["a"], ["y"], "y = a", "mpchain_kept"
    assert wide(*args) is wide(*args)


@pytest.mark.skipif(
    nvrtc.load() is None or sass.load() is None,
    reason=nvrtc.REASON if nvrtc.load() is None else sass.REASON,
)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("char", ["e", "f", "d"])
def test_machine_code_has_wide_loads(char, architecture):
    log, binary = nvrtc.compiled(_KERNEL.text(char, (True, True, False)), architecture)
    assert log == "" and binary
    names = [x.name for x in sass.disassembled(binary).instructions]
    for kind in ("LDG", "STG"):
        assert sum(name.startswith(kind) and "128" in name for name in names) >= 2
    assert not any(name.startswith(("LDL", "STL")) for name in names)
