"""Functions that find devices by name or by array, and copy arrays between devices."""

from typing import Any, NoReturn

import numpy as np

from mpchain.backends import cuda
from mpchain.backends.cpu import CpuDevice as CpuDevice
from mpchain.backends.cpu import Intel64Device as Intel64Device
from mpchain.backends.cuda import GpuDevice as GpuDevice
from mpchain.backends.cuda import get_array_module as get_array_module
from mpchain.backends.cuda import is_gpu_array
from mpchain.backends.device import Device as Device
from mpchain.typing import Array


def _no_chainerx(what) -> NoReturn:
    raise RuntimeError(
        f"{what}: mpchain has no ChainerX; use '@numpy' for the CPU or '@cupy:N' for GPU N"
    )


class ChainerxDevice(Device):
    """A class that exists only for programs that use its name; its constructor raises RuntimeError.

    Example:
        >>> mpchain.backend.ChainerxDevice("native:0")
        Traceback (most recent call last):
        RuntimeError: ChainerxDevice: mpchain has no ChainerX; ...
    """

    def __init__(self, device: object):
        _no_chainerx("ChainerxDevice")


def to_chx(array: object) -> NoReturn:
    """Raises RuntimeError: mpchain has no ChainerX.

    Example:
        >>> mpchain.backend.to_chx(np.zeros(2))
        Traceback (most recent call last):
        RuntimeError: to_chx: mpchain has no ChainerX; ...
    """
    _no_chainerx("to_chx")


def from_chx(array: object) -> NoReturn:
    """Raises RuntimeError: mpchain has no ChainerX.

    Example:
        >>> mpchain.backend.from_chx(np.zeros(2))
        Traceback (most recent call last):
        RuntimeError: from_chx: mpchain has no ChainerX; ...
    """
    _no_chainerx("from_chx")


def get_device(device_spec: object) -> Device:
    """Returns the device that a specifier names.

    Args:
        device_spec: a :class:`Device`; ``'@numpy'``; ``'@cupy:N'`` or ``'@cupy'`` (GPU 0);
            ``'@intel64'`` (the CPU); a ``cupy.cuda.Device``; an integer or decimal string (a GPU's
            number, or negative for the CPU).

    Raises:
        TypeError: the specifier is of another type.
        ValueError: the text is invalid, or there is no GPU of that number.
        RuntimeError: a GPU is named, but none can be used; or the text names a device of ChainerX.

    Example:
        >>> mpchain.get_device("@numpy"), mpchain.get_device(-1).xp is np
        (<CpuDevice @numpy>, True)
    """
    if isinstance(device_spec, Device):
        return device_spec
    if isinstance(device_spec, (int, np.integer)) and not isinstance(device_spec, bool):
        return CpuDevice() if device_spec < 0 else GpuDevice.from_device_id(int(device_spec))
    if isinstance(device_spec, str):
        return _device_from_text(device_spec.strip())
    if type(device_spec).__module__.startswith("cupy") and isinstance(device_spec, cuda.Device):
        return GpuDevice(device_spec)
    raise TypeError(
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


def get_device_from_array(*arrays: Any) -> Device:
    """Returns the device of the first array that is on a GPU, else the CPU.

    Example:
        >>> mpchain.backend.get_device_from_array(np.zeros(2))
        <CpuDevice @numpy>
    """
    for array in arrays:
        array = getattr(array, "array", array)
        if is_gpu_array(array):
            return GpuDevice(array.device)
    return CpuDevice()


def using_device(device_spec: object) -> Any:
    """Context manager: makes the device current, so that new GPU arrays are made on it.

    Example:
        >>> with mpchain.using_device("@numpy") as device:
        ...     device.xp.zeros(2)
        array([0., 0.])
    """
    return get_device(device_spec).create_context()


def copyto(dst: Array, src: Array) -> None:
    """Copies the values of one array into another, across devices and dtypes.

    Example:
        >>> dst = np.zeros(2, np.float32)
        >>> mpchain.backend.copyto(dst, np.array([1, 2]))
        >>> dst
        array([1., 2.], dtype=float32)
    """
    if is_gpu_array(dst):
        with dst.device:
            if not is_gpu_array(src):
                src = np.asarray(src, dst.dtype)
                if src.shape == dst.shape and dst.flags.c_contiguous:
                    dst.set(src)  # a contiguous destination of the same shape needs only one copy
                    # The copy may still be pending if the source is page-locked.
                    cuda.cupy.cuda.get_current_stream().synchronize()
                    return
            # A kernel cannot read arrays of another GPU, so the source is copied first.
            dst[...] = cuda.to_gpu(src, dst.device)
    elif isinstance(dst, np.ndarray):
        dst[...] = cuda.to_cpu(src)
    else:
        raise TypeError(f"copyto: dst must be a NumPy or CuPy array, not {type(dst).__name__}")
