"""Tests devices: specifiers, moving arrays, and behavior without CuPy."""

import pickle
import subprocess
import sys
import types
from importlib.util import find_spec

import numpy as np
import pytest

import mpchain
from mpchain import Variable, backend
from mpchain.backends import cuda

pytestmark = pytest.mark.slow

without_gpu = pytest.mark.skipif(cuda.available, reason="needs a host without a GPU")
without_cupy = pytest.mark.skipif(
    find_spec("cupy") is not None, reason="needs an environment without CuPy"
)


# Specifiers.


@pytest.mark.parametrize(
    "spec", ["@numpy", " @numpy ", -1, "-1", np.int64(-1), backend.CpuDevice()]
)
def test_specifiers_of_the_cpu(spec):
    device = mpchain.get_device(spec)
    assert device == backend.CpuDevice() and type(device) is backend.CpuDevice
    assert device.name == str(device) == "@numpy" and repr(device) == "<CpuDevice @numpy>"
    assert device.xp is np and device.supported_array_types == (np.ndarray,)


def test_a_device_is_its_own_specifier():
    device = backend.CpuDevice()
    assert mpchain.get_device(device) is device


def test_intel64_is_the_cpu_under_another_name():
    device = mpchain.get_device("@intel64")
    assert device.name == "@intel64" and device.xp is np and isinstance(device, backend.CpuDevice)
    assert device != backend.CpuDevice()


def test_devices_are_keys_and_can_be_pickled():
    a, b = backend.CpuDevice(), backend.CpuDevice()
    assert a == b and hash(a) == hash(b) and len({a, b, backend.Intel64Device()}) == 2
    assert pickle.loads(pickle.dumps(a)) == a
    assert a != "@numpy"


@pytest.mark.parametrize(
    "spec", ["cpu", "@cupy:x", "@cupy:", "@cupy:-1", "@numpy:0", "", "1.5", "@"]
)
def test_unknown_specifiers(spec):
    with pytest.raises(ValueError, match=r"^get_device: device_spec must be '@numpy', '@cupy:N'"):
        mpchain.get_device(spec)


@pytest.mark.parametrize("spec", [None, 1.5, True, np.zeros(1), ("@numpy",)])
def test_objects_that_specify_nothing(spec):
    with pytest.raises(TypeError, match=r"^get_device: device_spec must be a Device"):
        mpchain.get_device(spec)


def test_device_of_a_class_that_an_array_is_on():
    backend = mpchain.backend
    assert backend.CpuDevice.from_array(np.zeros(1)) == backend.CpuDevice()
    for cls in (backend.Device, backend.CpuDevice, backend.Intel64Device, backend.GpuDevice):
        assert cls.from_array(3) is None
    assert backend.Intel64Device.from_array(np.zeros(1)) is None
    assert backend.GpuDevice.from_array(np.zeros(1)) is None


def test_what_stands_for_a_gpu():
    dummy = mpchain.cuda.DummyDevice()
    dummy.synchronize()
    assert int(dummy) == -1 and dummy == mpchain.cuda.DummyDevice() and dummy != -1
    assert len({dummy, mpchain.cuda.DummyDevice()}) == 1


@pytest.mark.parametrize("spec", ["native", "native:0", "cuda:0"])
def test_chainerx_specifiers(spec):
    with pytest.raises(RuntimeError, match=f"^get_device\\('{spec}'\\): mpchain has no ChainerX"):
        mpchain.get_device(spec)


def test_nothing_else_of_chainerx_works_either():
    for name, call in {
        "ChainerxDevice": lambda: backend.ChainerxDevice("native"),
        "to_chx": lambda: backend.to_chx(np.zeros(1)),
        "from_chx": lambda: backend.from_chx(np.zeros(1)),
    }.items():
        with pytest.raises(RuntimeError, match=f"^{name}: mpchain has no ChainerX; use '@numpy'"):
            call()


@without_gpu
@pytest.mark.parametrize("spec", ["@cupy:0", "@cupy", 0, "1", np.int32(3)])
def test_a_gpu_without_cupy(spec):
    with pytest.raises(RuntimeError, match=r"^a GPU is needed here, but CuPy"):
        mpchain.get_device(spec)


def test_the_context_of_the_cpu():
    device = backend.CpuDevice()
    with mpchain.using_device("@numpy") as entered:
        assert entered == device
    with device as entered:
        assert entered is device
    assert device.create_context() is device
    device.use()


# Moving arrays.


def test_send_leaves_what_is_there_as_it_is():
    device = backend.CpuDevice()
    a, b = np.zeros(2), np.ones(3)
    assert device.send(a) is a and device.send(None) is None
    sent = device.send([a, (b, None), {"a": a}])
    assert type(sent) is list and sent[0] is a
    assert type(sent[1]) is tuple and sent[1][0] is b and sent[1][1] is None
    assert list(sent[2]) == ["a"] and sent[2]["a"] is a
    assert device.send(1.5) == np.asarray(1.5)
    assert device.is_array_supported(a) and not device.is_array_supported([1])
    with pytest.raises(
        TypeError, match=r"^expected a NumPy or CuPy array, but got builtins.object"
    ):
        device.send(object())


def test_get_device_from_array():
    assert backend.get_device_from_array(np.zeros(1)) == backend.CpuDevice()
    assert backend.get_device_from_array() == backend.CpuDevice()
    assert backend.get_device_from_array(Variable(np.zeros(1)), 3) == backend.CpuDevice()


def test_get_array_module():
    assert mpchain.get_array_module() is np
    assert backend.get_array_module(np.zeros(1), Variable(np.zeros(1)), None, 2) is np


@pytest.mark.parametrize("source", [np.arange(3), np.arange(3, dtype=np.float16), np.array(7.0)])
def test_copyto(source):
    target = np.zeros(3, np.float32)
    backend.copyto(target, source)
    np.testing.assert_array_equal(target, np.broadcast_to(source, 3))
    assert target.dtype == np.float32


def test_copyto_what_does_not_fit():
    with pytest.raises(ValueError, match="broadcast"):
        backend.copyto(np.zeros(2), np.zeros(3))
    with pytest.raises(TypeError, match=r"^copyto: dst must be a NumPy or CuPy array, not list"):
        backend.copyto([0], np.zeros(1))
    with pytest.raises(TypeError, match=r"^expected a NumPy or CuPy array, but got builtins.dict"):
        backend.copyto(np.zeros(1), {})


def test_the_base_class_says_what_is_missing():
    class Nowhere(backend.Device):
        name = "@nowhere"

    device = Nowhere()
    with pytest.raises(NotImplementedError, match=r"^Nowhere does not implement send_array"):
        device.send(np.zeros(1))
    with pytest.raises(RuntimeError, match=r"use 'with mpchain.using_device\('@nowhere'\)'"):
        with device:
            pass


# The cuda module without CuPy.


@without_gpu
def test_without_cupy_everything_stays_on_the_host():
    array = np.zeros(2)
    assert cuda.available is False and cuda.cudnn_enabled is False
    assert cuda.get_array_module(array) is np and not cuda.is_gpu_array(array)
    assert cuda.to_cpu(array) is array and cuda.to_cpu(None) is None
    assert cuda.to_cpu(np.float32(2)).shape == () and cuda.to_cpu(2).dtype == int
    (moved,) = cuda.to_cpu([array])
    assert moved is array
    assert not isinstance(array, cuda.ndarray)
    assert isinstance(cuda.get_device_from_array(array), cuda.DummyDevice)
    assert isinstance(cuda.get_device_from_id(-1), cuda.DummyDevice)
    assert isinstance(cuda.get_device_from_id(None), cuda.DummyDevice)
    assert isinstance(cuda.get_device(array, "x"), cuda.DummyDevice)
    assert cuda.GpuDevice.from_array(array) is None
    assert cuda.unavailable_reason().startswith("CuPy")
    assert mpchain.get_array_types()[0] is np.ndarray
    with cuda.DummyDevice() as device:
        device.use()
        assert device.id == -1


@without_gpu
@pytest.mark.parametrize(
    "call",
    [
        cuda.check_cuda_available,
        lambda: cuda.to_gpu(np.zeros(1)),
        lambda: cuda.get_device_from_id(0),
        lambda: cuda.get_device(0),
        lambda: cuda.copy(np.zeros(1)),
        lambda: cuda.elementwise("T x", "T y", "y = x", "identity"),
        lambda: cuda.reduce("T x", "T y", "x", "a + b", "y = a", "0", "total"),
        lambda: cuda.raw("", "nothing"),
        lambda: cuda.GpuDevice.from_device_id(0),
        lambda: cuda.GpuDevice(None),
        lambda: cuda.memoize(for_each_device=True)(len)("a"),
        lambda: backend.GpuDevice(0),
    ],
)
def test_what_needs_a_gpu_says_what_is_missing(call):
    with pytest.raises(RuntimeError, match=r"^a GPU is needed here, but CuPy"):
        call()


@without_cupy
def test_cupy_itself_says_what_is_missing():
    with pytest.raises(RuntimeError, match=r"^cupy\.something: CuPy"):
        cuda.cupy.something
    for name in ("Stream", "Event"):
        with pytest.raises(RuntimeError, match=rf"^cupy\.cuda\.{name}\.something: CuPy"):
            getattr(cuda, name).something
        with pytest.raises(RuntimeError, match=rf"^cupy\.cuda\.{name}: CuPy"):
            getattr(cuda, name)()
    assert not hasattr(cuda.cupy, "ElementwiseKernel")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cuda.nothing
    assert cuda.to_gpu([None, ()]) == [None, ()]


@without_cupy
def test_decorators_without_cupy():
    assert cuda.fuse(len) is len
    assert cuda.fuse()(len) is len and cuda.fuse(kernel_name="n")(len) is len


def test_negative_numbers_of_gpus():
    with pytest.raises(ValueError, match=r"device_id must not be negative, not -2"):
        cuda.GpuDevice.from_device_id(-2)


def test_workspace():
    size = cuda.get_max_workspace_size()
    try:
        cuda.set_max_workspace_size(2.0**20)
        assert cuda.get_max_workspace_size() == 2**20
    finally:
        cuda.set_max_workspace_size(size)


def _import_after(code):
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=_root())
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def _root():
    return str(next(iter(mpchain.__path__))).rpartition("mpchain")[0]


def test_import_does_not_import_cupy():
    assert _import_after("import sys, mpchain; print('cupy' in sys.modules)") == ["False"]


def test_cupy_that_cannot_be_imported_is_no_error():
    code = (
        "import sys; sys.modules['cupy'] = None\n"
        "import mpchain; from mpchain.backends import cuda\n"
        "print(cuda.available, \"pip install 'mpchain[gpu]'\" in cuda.unavailable_reason())"
    )
    assert _import_after(code) == ["False", "True"]


@pytest.mark.parametrize(
    "is_available, reason",
    [
        ("lambda: False", "CuPy finds no usable GPU (is a driver installed"),
        ("lambda: 1 / 0", "CuPy finds no usable GPU: division by zero"),
    ],
)
def test_cupy_without_a_usable_gpu(is_available, reason):
    code = (
        "import sys, types\n"
        "cupy = sys.modules['cupy'] = types.ModuleType('cupy')\n"
        f"cupy.cuda = types.SimpleNamespace(is_available={is_available})\n"
        "import mpchain; from mpchain.backends import cuda\n"
        f"print(cuda.available, cuda.unavailable_reason().startswith({reason!r}))"
    )
    assert _import_after(code) == ["False", "True"]


# GpuDevice against a stand-in for CuPy with two devices.


class FakeDevice:
    def __init__(self, number=0):
        self.id = getattr(number, "id", number)

    def use(self):
        self.used = True


FakeDevice.__module__ = "cupy.cuda"


@pytest.fixture
def fake_cupy(monkeypatch):
    cupy = types.SimpleNamespace(
        ndarray=type("ndarray", (), {}),
        cuda=types.SimpleNamespace(
            Device=FakeDevice, runtime=types.SimpleNamespace(getDeviceCount=lambda: 2)
        ),
    )
    monkeypatch.setattr(cuda, "_load", lambda: (cupy, True, ""))
    return cupy


@pytest.mark.parametrize(
    "spec, number",
    [("@cupy:1", 1), ("@cupy", 0), (0, 0), ("1", 1), (np.int64(1), 1), (FakeDevice(1), 1)],
)
def test_specifiers_of_gpus(fake_cupy, spec, number):
    device = mpchain.get_device(spec)
    assert device.name == f"@cupy:{number}" and device.device.id == number
    assert device.xp is fake_cupy and device.supported_array_types == (fake_cupy.ndarray,)
    assert device == mpchain.get_device(number) != mpchain.get_device(1 - number)
    assert pickle.loads(pickle.dumps(device)) == device
    device.use()
    assert device.device.used and device.create_context().id == number


@pytest.mark.parametrize("spec", ["@cupy:2", 7, "99"])
def test_a_gpu_that_does_not_exist(fake_cupy, spec):
    with pytest.raises(ValueError, match=r"^GpuDevice: no GPU \d+; .* process sees: 2$"):
        mpchain.get_device(spec)


def test_a_gpu_device_is_made_of_cupys_device(fake_cupy):
    with pytest.raises(TypeError, match=r"^GpuDevice: device must be a cupy.cuda.Device, not int"):
        backend.GpuDevice(0)


# Arrays on a GPU.


@pytest.mark.gpu
def test_arrays_move_between_host_and_gpu():
    device = mpchain.get_device("@cupy:0")
    array = np.arange(3.0)
    there = device.send(array)
    assert device.is_array_supported(there) and device.send(there) is there
    assert cuda.get_array_module(there) is cuda.cupy
    assert backend.get_device_from_array(array, there) == device
    np.testing.assert_array_equal(cuda.to_cpu(there), array)
    backend.copyto(there, array + 1)
    np.testing.assert_array_equal(backend.CpuDevice().send(there), array + 1)
    backend.copyto(array, there)
    np.testing.assert_array_equal(array, [1, 2, 3])
    assert mpchain.is_arrays_compatible([there, None])
    assert not mpchain.is_arrays_compatible([there, array])
    with mpchain.using_device(device):
        assert cuda.cupy.cuda.Device().id == 0
