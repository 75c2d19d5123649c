"""Devices: which there are, which one an array is on, and moving arrays between them."""

import numpy as np

from mpchain.backends import cuda
from mpchain.backends.cpu import CpuDevice as CpuDevice
from mpchain.backends.cpu import Intel64Device as Intel64Device
from mpchain.backends.cuda import GpuDevice as GpuDevice
from mpchain.backends.cuda import get_array_module as get_array_module
from mpchain.backends.cuda import is_gpu_array
from mpchain.backends.device import Device as Device


def _no_chainerx(what):
    raise RuntimeError(
        f"{what}: mpchain has no ChainerX; use '@numpy' for the CPU or '@cupy:N' for GPU N"
    )


class ChainerxDevice(Device):
    """Kept so that programs which name it import; making one raises RuntimeError."""

    def __init__(self, device):
        _no_chainerx("ChainerxDevice")


def to_chx(array):
    """Raises RuntimeError: mpchain has no ChainerX."""
    _no_chainerx("to_chx")


def from_chx(array):
    """Raises RuntimeError: mpchain has no ChainerX."""
    _no_chainerx("from_chx")


def get_device(device_spec):
    """Returns the device that a specifier names.

    Args:
        device_spec: a :class:`Device`; ``'@numpy'``; ``'@cupy:N'`` or ``'@cupy'`` (GPU 0);
            ``'@intel64'`` (the CPU); a ``cupy.cuda.Device``; an integer or decimal string (a GPU's
            number, or negative for the CPU).

    Raises:
        ValueError: the specifier means no device, or there is no such GPU.
        RuntimeError: a GPU is named, but none can be used.
    """
    if isinstance(device_spec, Device):
        return device_spec
    if isinstance(device_spec, (int, np.integer)) and not isinstance(device_spec, bool):
        return CpuDevice() if device_spec < 0 else GpuDevice.from_device_id(int(device_spec))
    if isinstance(device_spec, str):
        return _device_from_text(device_spec.strip())
    if type(device_spec).__module__.startswith("cupy") and isinstance(device_spec, cuda.Device):
        return GpuDevice(device_spec)
    raise ValueError(
        "get_device: device_spec must be a Device, '@numpy', '@cupy:N' or an integer, "
        f"not {device_spec!r}"
    )


def _device_from_text(text):
    name, _, number = text.partition(":")
    if text.lstrip("-").isdecimal():
        return get_device(int(text))
    if text == "@numpy":
        return CpuDevice()
    if text == "@intel64":
        return Intel64Device()
    if name == "@cupy" and (number.isdecimal() or text == "@cupy"):
        return GpuDevice.from_device_id(int(number or 0))
    if name in ("native", "cuda"):
        _no_chainerx(f"get_device({text!r})")
    raise ValueError(
        f"get_device: device_spec must be '@numpy', '@cupy:N' or an integer, not {text!r}"
    )


def get_device_from_array(*arrays):
    """Returns the device of the first array that is on a GPU, else the CPU."""
    for array in arrays:
        array = getattr(array, "array", array)
        if is_gpu_array(array):
            return GpuDevice.from_array(array)
    return CpuDevice()


def using_device(device_spec):
    """Context manager: makes the device current, so that new GPU arrays are made on it."""
    return get_device(device_spec).create_context()


def copyto(dst, src):
    """Copies the values of one array into another, across devices and dtypes."""
    if is_gpu_array(dst):
        with dst.device:
            dst[...] = (
                src if is_gpu_array(src) else cuda.to_gpu(np.asarray(src, dst.dtype), dst.device)
            )
    elif isinstance(dst, np.ndarray):
        dst[...] = cuda.to_cpu(src)
    else:
        raise TypeError(f"copyto: dst must be a NumPy or CuPy array, not {type(dst).__name__}")
