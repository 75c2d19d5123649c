"""NVIDIA GPUs through CuPy: the only file of mpchain that imports ``cupy``.

CuPy is imported when something here first needs it. Without it, or without a GPU, everything still
imports, ``available`` is False, arrays stay on the host, and what needs a GPU raises one error that
says what is missing.
"""

import contextlib
import functools
import sys

import numpy as np

from mpchain.backends.device import Device as _Device
from mpchain.configuration import config

_max_workspace_size = 8 * 1024 * 1024


@functools.cache
def _load():
    """Returns (the cupy module or None, whether a GPU can be used, the reason why not)."""
    try:
        import cupy
    except ImportError as error:
        return None, False, f"CuPy is not installed ({error}): pip install 'mpchain[gpu]'"
    try:
        if cupy.cuda.is_available():
            return cupy, True, ""
    except Exception as error:
        # A broken driver shows itself in many ways; the reason is kept and told.
        return cupy, False, f"CuPy finds no usable GPU: {error}"
    reason = "CuPy finds no usable GPU (is a driver installed, and is the device visible?)"
    return cupy, False, reason


class _MissingError(AttributeError, RuntimeError):
    """What needs CuPy or a GPU was asked for; ``hasattr`` answers False."""


class _Unavailable:
    """Stands where the cupy module would be; any use of it says what is missing."""

    def __getattr__(self, name):
        raise _MissingError(f"cupy.{name}: {_load()[2]}")


class _NoArray:
    """Stands for ``cupy.ndarray`` where there is no CuPy: nothing is an instance of it."""


class DummyDevice:
    """Stands for a CUDA device where arrays are on the host: entering it does nothing."""

    id = -1

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        return None

    def use(self):
        """Does nothing."""


_lazy = {
    "available": lambda cupy, usable: usable,
    "cudnn_enabled": lambda cupy, usable: False,
    "cupy": lambda cupy, usable: cupy or _Unavailable(),
    "ndarray": lambda cupy, usable: cupy.ndarray if cupy else _NoArray,
    "Device": lambda cupy, usable: cupy.cuda.Device if cupy else DummyDevice,
    "Stream": lambda cupy, usable: cupy.cuda.Stream if cupy else _Unavailable(),
    "Event": lambda cupy, usable: cupy.cuda.Event if cupy else _Unavailable(),
}


def __getattr__(name):
    if name not in _lazy:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    cupy, usable, _ = _load()
    return _lazy[name](cupy, usable)


def check_cuda_available():
    """Raises RuntimeError, saying what is missing, unless a GPU can be used."""
    _, usable, reason = _load()
    if not usable:
        raise RuntimeError(f"a GPU is needed here, but {reason}")


def device_count():
    """Returns the number of GPUs that this process sees; 0 where none can be used."""
    cupy, usable, _ = _load()
    return cupy.cuda.runtime.getDeviceCount() if usable else 0


def _cupy():
    check_cuda_available()
    return _load()[0]


def is_gpu_array(array):
    """Returns whether ``array`` is a CuPy array; never imports CuPy."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


class GpuDevice(_Device):
    """One CUDA device; its specifier is ``'@cupy:N'``.

    Args:
        device (cupy.cuda.Device): the device.
    """

    def __init__(self, device):
        cupy = _cupy()
        if not isinstance(device, cupy.cuda.Device):
            raise TypeError(
                f"GpuDevice: device must be a cupy.cuda.Device, not {type(device).__name__}"
            )
        count = cupy.cuda.runtime.getDeviceCount()
        if not 0 <= device.id < count:
            raise ValueError(
                f"GpuDevice: there is no GPU {device.id}; this process sees {count} "
                f"(0 to {count - 1})"
            )
        self.device = device
        self.xp = cupy
        self.name = f"@cupy:{device.id}"
        self.supported_array_types = (cupy.ndarray,)

    @staticmethod
    def from_device_id(device_id):
        """Returns the device with that number (from 0, as this process sees them)."""
        if device_id < 0:
            raise ValueError(
                f"GpuDevice.from_device_id: device_id must not be negative, but is {device_id}"
            )
        return GpuDevice(_cupy().cuda.Device(device_id))

    @staticmethod
    def from_array(array):
        """Returns the device that a CuPy array lives on, or None for any other object."""
        return GpuDevice(array.device) if is_gpu_array(array) else None

    def __reduce__(self):
        return GpuDevice.from_device_id, (self.device.id,)

    def create_context(self):
        # A new object each time: one cupy device object must not be entered by two threads at once.
        return self.xp.cuda.Device(self.device.id)

    def use(self):
        self.device.use()

    def send_array(self, array):
        return to_gpu(array, self.device)

    def is_array_supported(self, array):
        return is_gpu_array(array) and array.device.id == self.device.id


def get_device_from_id(device_id):
    """Returns the CUDA device of that number; a :class:`DummyDevice` for None or a negative one."""
    if device_id is None or int(device_id) < 0:
        return DummyDevice()
    return _cupy().cuda.Device(int(device_id))


def get_device_from_array(*arrays):
    """Returns the CUDA device of the first CuPy array; a :class:`DummyDevice` if there is none."""
    return next((array.device for array in arrays if is_gpu_array(array)), DummyDevice())


def get_device(*args):
    """Returns the CUDA device of the first number, device or CuPy array. Deprecated."""
    cupy = _load()[0]
    for arg in args:
        if isinstance(arg, (int, np.integer)) and not isinstance(arg, bool):
            return get_device_from_id(arg)
        if cupy is not None and isinstance(arg, cupy.cuda.Device):
            return arg
        if is_gpu_array(arg):
            return arg.device
    return DummyDevice()


def get_array_module(*args):
    """Returns ``cupy`` if any argument is, or as a Variable holds, a CuPy array; else ``numpy``."""
    if "cupy" not in sys.modules:
        return np
    is_on_gpu = any(is_gpu_array(getattr(arg, "array", arg)) for arg in args)
    return sys.modules["cupy"] if is_on_gpu else np


def to_gpu(array, device=None, stream=None):
    """Copies an array to a GPU; a CuPy array that is there already is returned as it is.

    Args:
        array: NumPy or CuPy array, a scalar, None, or a tuple or list of these.
        device: a CUDA device or its number; None is the current one.
        stream (cupy.cuda.Stream): where the copy is queued; None waits for it.
    """
    if isinstance(array, (tuple, list)):
        return type(array)([to_gpu(item, device, stream) for item in array])
    if array is None:
        return None
    cupy = _cupy()
    target = cupy.cuda.Device(device) if device is not None else cupy.cuda.Device()
    if is_gpu_array(array) and array.device.id == target.id:
        return array
    with target, stream if stream is not None else contextlib.nullcontext():
        return array.copy() if is_gpu_array(array) else cupy.asarray(_as_host_array(array))


def to_cpu(array, stream=None):
    """Copies an array to the host; a NumPy array is returned as it is. See :func:`to_gpu`."""
    if isinstance(array, (tuple, list)):
        return type(array)([to_cpu(item, stream) for item in array])
    if is_gpu_array(array):
        with array.device:
            return array.get(stream)
    return None if array is None else _as_host_array(array)


def _as_host_array(array):
    if isinstance(array, np.ndarray):
        return array
    if np.isscalar(array):
        return np.asarray(array)
    raise TypeError(
        "expected a NumPy or CuPy array, but got "
        f"{type(array).__module__}.{type(array).__qualname__}"
    )


def copy(array, out=None, out_device=None, stream=None):
    """Copies a CuPy array, to ``out``, to another device, or beside itself."""
    cupy = _cupy()
    if out is not None:
        with stream if stream is not None else contextlib.nullcontext():
            cupy.copyto(out, array)
        return out
    device = get_device(out_device if out_device is not None else array)
    with device, stream if stream is not None else contextlib.nullcontext():
        return cupy.array(array, copy=True)


_LEVELS = {"==always": ("always",), ">=auto": ("always", "auto")}


def should_use_cudnn(level, lowest_version=0):
    """Returns whether the configuration wants cuDNN at this level, and there is one.

    Args:
        level (str): '==always' or '>=auto', as ``config.use_cudnn`` is to be.
        lowest_version (int): cuDNN's version that is needed.

    Raises:
        ValueError: another level.
    """
    if level not in _LEVELS:
        raise ValueError(f"should_use_cudnn: level must be one of {list(_LEVELS)}, not {level!r}")
    return config.use_cudnn in _LEVELS[level] and __getattr__("cudnn_enabled")


def should_use_cudnn_tensor_core(dtype):
    """Returns whether the configuration wants tensor cores for that dtype, and cuDNN is there."""
    wanted = config.use_cudnn_tensor_core
    return should_use_cudnn(">=auto") and (
        wanted == "always" or (wanted == "auto" and np.dtype(dtype) == np.float16)
    )


_memos = []


def memoize(for_each_device=False):
    """Decorator: remembers results by arguments (per device if asked) until :func:`clear_memo`."""

    def decorate(function):
        memo = {}
        _memos.append(memo)

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            device = _cupy().cuda.Device().id if for_each_device else None
            key = (device, args, frozenset(kwargs.items()))
            if key not in memo:
                memo[key] = function(*args, **kwargs)
            return memo[key]

        return wrapper

    return decorate


def clear_memo():
    """Forgets everything that :func:`memoize` remembers."""
    for memo in _memos:
        memo.clear()


@functools.cache
def elementwise(in_params, out_params, operation, name, **kwargs):
    """Returns a ``cupy.ElementwiseKernel``, made once for the same arguments."""
    return _cupy().ElementwiseKernel(in_params, out_params, operation, name, **kwargs)


@functools.cache
def reduce(in_params, out_params, map_expr, reduce_expr, post_map_expr, identity, name, **kwargs):
    """Returns a ``cupy.ReductionKernel``, made once for the same arguments."""
    return _cupy().ReductionKernel(
        in_params, out_params, map_expr, reduce_expr, post_map_expr, identity, name, **kwargs
    )


@functools.cache
def raw(code, name, *args, **kwargs):
    """Returns a ``cupy.RawKernel``, made once for the same arguments."""
    return _cupy().RawKernel(code, name, *args, **kwargs)


def scatter_add(array, slices, values):
    """Adds ``values`` to ``array[slices]`` in place, as ``numpy.add.at`` does."""
    import cupyx

    cupyx.scatter_add(array, slices, values)


def special_functions():
    """Returns ``cupyx.scipy.special``, the special functions of CuPy arrays."""
    import cupyx.scipy.special

    return cupyx.scipy.special


def fuse(*args, **kwargs):
    """``cupy.fuse``; without CuPy, a decorator that changes nothing."""
    cupy = _load()[0]
    if cupy is not None:
        return cupy.fuse(*args, **kwargs)
    return args[0] if args and callable(args[0]) else lambda function: function


def get_max_workspace_size():
    """Returns the number of bytes that a vendor kernel may use as workspace."""
    return _max_workspace_size


def set_max_workspace_size(size):
    """Sets the number of bytes that a vendor kernel may use as workspace."""
    global _max_workspace_size  # noqa: PLW0603  (a setting of the process)
    _max_workspace_size = int(size)


def unavailable_reason():
    """Returns why no GPU can be used; empty if one can."""
    return _load()[2]
