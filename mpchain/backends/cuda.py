"""NVIDIA GPUs through CuPy: the only file of mpchain that imports ``cupy``.

CuPy is imported when a function of this file first needs it. Without CuPy or a GPU, all modules can
be imported, ``available`` is False, arrays stay on the host, and functions that need a GPU raise an
error that says what is missing.
"""

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeGuard

import numpy as np

from mpchain.backends.device import Device as _Device
from mpchain.configuration import config
from mpchain.from_pytorch import module_getattr as _module_getattr
from mpchain.observers import current
from mpchain.typing import Array, DTypeLike

_max_workspace_size = 8 * 1024 * 1024


@functools.cache
def _load() -> tuple[Any, bool, str]:
    """Returns the cupy module or None, whether a GPU can be used, and the reason why not."""
    try:
        import cupy
    except ImportError as error:
        return None, False, f"CuPy is not installed ({error}): pip install 'mpchain[gpu]'"
    try:
        if cupy.cuda.is_available():
            return cupy, True, ""
    except Exception as error:
        # A broken driver raises many kinds of errors; their text becomes part of the reason.
        return cupy, False, f"CuPy finds no usable GPU: {error}"
    reason = "CuPy finds no usable GPU (is a driver installed, and is the device visible?)"
    return cupy, False, reason


class _MissingError(AttributeError, RuntimeError):
    """CuPy or a GPU is missing; ``hasattr`` returns False."""


class _Unavailable:
    """Replaces the cupy module; any access of a name raises an error that says what is missing."""

    def __init__(self, path: str = "cupy"):
        self._path = path

    def __getattr__(self, name):
        raise _MissingError(f"{self._path}.{name}: {_load()[2]}")


class _MissingClass(_Unavailable):
    """Replaces a class of CuPy, which cannot be instantiated either."""

    def __call__(self, *args, **options):
        raise _MissingError(f"{self._path}: {_load()[2]}")


class _NoArray:
    """Replaces ``cupy.ndarray`` without CuPy; no object is an instance of this class."""


class DummyDevice:
    """Replaces a CUDA device if arrays are on the host; entering it does nothing.

    Example:
        >>> with mpchain.cuda.DummyDevice() as device:
        ...     device.id
        -1
    """

    id = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        return None

    def use(self) -> None:
        """Does nothing."""

    def synchronize(self) -> None:
        """Does nothing, because no work is pending on the host."""

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DummyDevice)

    def __hash__(self) -> int:
        return hash(self.id)


_lazy = {
    "available": lambda cupy, usable: usable,
    "cudnn_enabled": lambda cupy, usable: usable and importlib.util.find_spec("cudnn") is not None,
    "cupy": lambda cupy, usable: cupy or _Unavailable(),
    "ndarray": lambda cupy, usable: cupy.ndarray if cupy else _NoArray,
    "Device": lambda cupy, usable: cupy.cuda.Device if cupy else DummyDevice,
    "Stream": lambda cupy, usable: cupy.cuda.Stream if cupy else _MissingClass("cupy.cuda.Stream"),
    "Event": lambda cupy, usable: cupy.cuda.Event if cupy else _MissingClass("cupy.cuda.Event"),
}


_raise_attribute_error = _module_getattr(__name__)


def __getattr__(name: str) -> Any:
    if name not in _lazy:
        _raise_attribute_error(name)
    cupy, usable, _ = _load()
    return _lazy[name](cupy, usable)


def check_cuda_available() -> None:
    """Raises RuntimeError, which says what is missing, unless a GPU can be used.

    Example:
        >>> mpchain.cuda.check_cuda_available()  # doctest: +SKIP
        Traceback (most recent call last):
        RuntimeError: a GPU is needed here, but CuPy is not installed ...
    """
    _, usable, reason = _load()
    if not usable:
        raise RuntimeError(f"a GPU is needed here, but {reason}")


def device_count() -> int:
    """Returns the number of GPUs that this process sees; 0 if no GPU can be used.

    Example:
        >>> device = f"@cupy:{comm.intra_rank}" if mpchain.cuda.device_count() else "@numpy"
    """
    cupy, usable, _ = _load()
    return cupy.cuda.runtime.getDeviceCount() if usable else 0


def _cupy() -> Any:
    check_cuda_available()
    return _load()[0]


if TYPE_CHECKING:

    class GpuArray(np.ndarray[Any, Any]):
        """The attributes that only CuPy's arrays have, for type checkers."""

        device: Any
        data: Any

        def get(
            self, stream: object = None, out: object = None, blocking: bool = True
        ) -> np.ndarray: ...
        def set(self, arr: np.ndarray, stream: object = None) -> None: ...


def is_gpu_array(array: object) -> "TypeGuard[GpuArray]":
    """Returns whether ``array`` is a CuPy array; never imports CuPy.

    Example:
        >>> mpchain.cuda.is_gpu_array(np.zeros(2))
        False
    """
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


class GpuDevice(_Device):
    """One CUDA device; its specifier is ``'@cupy:N'``.

    Args:
        device: the ``cupy.cuda.Device``.

    Example:
        >>> device = mpchain.get_device("@cupy:0")  # doctest: +SKIP
        >>> device.send(np.zeros(2)).device  # doctest: +SKIP
        <CUDA Device 0>
    """

    def __init__(self, device: Any):
        cupy = _cupy()
        if not isinstance(device, cupy.cuda.Device):
            raise TypeError(
                f"GpuDevice: device must be a cupy.cuda.Device, not {type(device).__name__}"
            )
        count = cupy.cuda.runtime.getDeviceCount()
        if not 0 <= device.id < count:
            raise ValueError(
                f"GpuDevice: no GPU {device.id}; the number of GPUs that this process sees: {count}"
            )
        self.device = device
        self.xp = cupy
        self.name = f"@cupy:{device.id}"
        self.supported_array_types = (cupy.ndarray,)

    @staticmethod
    def from_device_id(device_id: int) -> "GpuDevice":
        """Returns the device with an ID, which counts from 0 among the GPUs that this process
        sees."""
        if device_id < 0:
            raise ValueError(
                f"GpuDevice.from_device_id: device_id must not be negative, not {device_id}"
            )
        return GpuDevice(_cupy().cuda.Device(device_id))

    @staticmethod
    def from_array(array: object) -> "GpuDevice | None":
        """Returns the device on which a CuPy array lives, or None for any other object."""
        return GpuDevice(array.device) if is_gpu_array(array) else None

    def __reduce__(self) -> tuple:
        return GpuDevice.from_device_id, (self.device.id,)

    def create_context(self) -> Any:
        # The device object is new each time, because two threads must not enter one cupy device at
        # once.
        return self.xp.cuda.Device(self.device.id)

    def use(self) -> None:
        self.device.use()

    def is_current(self) -> bool:
        return self.xp.cuda.Device().id == self.device.id

    def send_array(self, array: object) -> Array:
        return to_gpu(array, self.device)

    def is_array_supported(self, array: Any) -> bool:
        return is_gpu_array(array) and array.device.id == self.device.id


def get_device_from_id(device_id: int | None) -> Any:
    """Returns the CUDA device with an ID; a :class:`DummyDevice` for None or a negative ID.

    Example:
        >>> mpchain.cuda.get_device_from_id(-1).id
        -1
    """
    if device_id is None or int(device_id) < 0:
        return DummyDevice()
    return _cupy().cuda.Device(int(device_id))


def get_device_from_array(*arrays: Any) -> Any:
    """Returns the CUDA device of the first CuPy array; a :class:`DummyDevice` if there is none.

    Example:
        >>> mpchain.cuda.get_device_from_array(np.zeros(2)).id
        -1
    """
    return next((array.device for array in arrays if is_gpu_array(array)), DummyDevice())


def other_device(*arrays: Any) -> Any:
    """Returns the GPU of the first CuPy array, or Variable with one; None if that GPU is current or
    missing.

    Example:
        >>> mpchain.cuda.other_device(np.zeros(2)) is None
        True
    """
    device = _device_of(arrays)
    is_current = device.id < 0 or device.id == _cupy().cuda.Device().id
    return None if is_current else device


def make_current(*arrays: Any) -> None:
    """Makes the GPU of the first CuPy array, or Variable with one, the current device.

    Example:
        >>> mpchain.cuda.make_current(np.zeros(2))  # does nothing
    """
    _device_of(arrays).use()


def _device_of(values):
    return get_device_from_array(*[getattr(value, "array", value) for value in values])


def restored_device() -> Any:
    """Returns a context manager that, on exit, restores the device that is current on entry.

    Example:
        >>> with mpchain.cuda.restored_device():
        ...     mpchain.cuda.make_current(np.zeros(2))
    """
    cupy = sys.modules.get("cupy")
    return cupy.cuda.Device() if cupy is not None and _load()[1] else DummyDevice()


def get_device(*args: Any) -> Any:
    """Returns the CUDA device of the first device ID, device or CuPy array; a :class:`DummyDevice`
    if there is none, or the ID is negative. This function is deprecated.

    Example:
        >>> mpchain.cuda.get_device(np.zeros(2)).id
        -1
    """
    cupy = _load()[0]
    for arg in args:
        if isinstance(arg, (int, np.integer)) and not isinstance(arg, bool):
            return get_device_from_id(int(arg))
        if cupy is not None and isinstance(arg, cupy.cuda.Device):
            return arg
        if is_gpu_array(arg):
            return arg.device
    return DummyDevice()


def get_array_module(*args: Any) -> Any:
    """Returns ``cupy`` if an argument is a CuPy array or a Variable with one; otherwise ``numpy``.

    Example:
        >>> xp = mpchain.cuda.get_array_module(np.zeros(2))
        >>> xp is np
        True
    """
    if "cupy" not in sys.modules:
        return np
    is_on_gpu = any(is_gpu_array(getattr(arg, "array", arg)) for arg in args)
    return sys.modules["cupy"] if is_on_gpu else np


def to_gpu(array: Any, device: Any = None, stream: Any = None) -> Any:
    """Copies an array to a GPU; returns the array itself if it is already there.

    Args:
        array: NumPy or CuPy array, a scalar, None, or a tuple or list of these.
        device: a CUDA device or its ID; None means the current device.
        stream: the stream in which the copy is queued; None means the current stream.

    Example:
        >>> x = mpchain.cuda.to_gpu(np.zeros(2), device=0)  # doctest: +SKIP
    """
    if isinstance(array, (tuple, list)):
        return type(array)([to_gpu(item, device, stream) for item in array])
    if array is None:
        return None
    cupy = _cupy()
    target = cupy.cuda.Device(device) if device is not None else cupy.cuda.Device()
    if is_gpu_array(array) and array.device.id == target.id:
        return array
    if current.graph is not None and not is_gpu_array(array):
        current.graph.refuse("it copies an array to a GPU")
    with target, stream if stream is not None else contextlib.nullcontext():
        return array.copy() if is_gpu_array(array) else cupy.asarray(_as_host_array(array))


def to_cpu(array: object, stream: object = None) -> Any:
    """Copies an array to the host; a NumPy array is returned unchanged. See :func:`to_gpu`.

    Example:
        >>> mpchain.cuda.to_cpu((np.zeros(2), 1.5, None))
        (array([0., 0.]), array(1.5), None)
    """
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


def copy(
    array: Array, out: Array | None = None, out_device: Any = None, stream: Any = None
) -> Array:
    """Copies a CuPy array to ``out``, to another device, or to new memory on its own device.

    Example:
        >>> y = mpchain.cuda.copy(x, out_device=1)  # doctest: +SKIP
    """
    cupy = _cupy()
    if out is not None:
        with stream if stream is not None else contextlib.nullcontext():
            cupy.copyto(out, array)
        return out
    device = get_device(out_device if out_device is not None else array)
    with device, stream if stream is not None else contextlib.nullcontext():
        return cupy.array(array, copy=True)


_LEVELS = {"==always": ("always",), ">=auto": ("always", "auto")}


def should_use_cudnn(level: str, lowest_version: int = 0) -> bool:
    """Returns whether cuDNN is available, and the configuration requests it at this level.

    Args:
        level: '==always' or '>=auto', the condition for ``config.use_cudnn``.
        lowest_version: accepted for programs that pass it, but not checked.

    Raises:
        ValueError: ``level`` has another value.

    Example:
        >>> mpchain.cuda.should_use_cudnn("==always")
        False
    """
    if level not in _LEVELS:
        raise ValueError(f"should_use_cudnn: level must be one of {list(_LEVELS)}, not {level!r}")
    return config.use_cudnn in _LEVELS[level] and __getattr__("cudnn_enabled")


def should_use_cudnn_tensor_core(dtype: DTypeLike) -> bool:
    """Returns whether cuDNN is available, and the configuration requests cuDNN and its tensor cores
    for a dtype.

    Example:
        >>> mpchain.cuda.should_use_cudnn_tensor_core(np.float16)
        False
    """
    wanted = config.use_cudnn_tensor_core
    return should_use_cudnn(">=auto") and (
        wanted == "always" or (wanted == "auto" and np.dtype(dtype) == np.float16)
    )


_memos = []


def memoize(for_each_device: bool = False) -> Callable[[Callable], Callable]:
    """Decorator that caches results by arguments (and by device on request) until
    :func:`clear_memo`.

    Example:
        >>> @mpchain.cuda.memoize()
        ... def table(n):
        ...     return list(range(n))
        >>> table(3) is table(3)
        True
    """

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


def clear_memo() -> None:
    """Clears all caches of :func:`memoize`.

    Example:
        >>> mpchain.cuda.clear_memo()
    """
    for memo in _memos:
        memo.clear()


@functools.cache
def elementwise(
    in_params: str, out_params: str, operation: str, name: str, **kwargs: Any
) -> Callable:
    """Returns a ``cupy.ElementwiseKernel``, which is made once for the same arguments.

    Example:
        >>> square = mpchain.cuda.elementwise("T x", "T y", "y = x * x", "square")  # doctest: +SKIP
        >>> square(mpchain.cuda.cupy.arange(3))  # doctest: +SKIP
        array([0, 1, 4])
    """
    return _cupy().ElementwiseKernel(in_params, out_params, operation, name, **kwargs)


@functools.cache
def reduce(
    in_params: str,
    out_params: str,
    map_expr: str,
    reduce_expr: str,
    post_map_expr: str,
    identity: object,
    name: str,
    **kwargs: Any,
) -> Callable:
    """Returns a ``cupy.ReductionKernel``, which is made once for the same arguments.

    Example:
        >>> total = mpchain.cuda.reduce(  # doctest: +SKIP
        ...     "T x", "T y", "x", "a + b", "y = a", 0, "total"
        ... )
    """
    return _cupy().ReductionKernel(
        in_params, out_params, map_expr, reduce_expr, post_map_expr, identity, name, **kwargs
    )


@functools.cache
def raw(code: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """Returns a ``cupy.RawKernel``, which is made once for the same arguments.

    Example:
        >>> kernel = mpchain.cuda.raw(code, "my_kernel")  # doctest: +SKIP
    """
    return _cupy().RawKernel(code, name, *args, **kwargs)


def scatter_add(array: Array, slices: object, values: object) -> None:
    """Adds ``values`` to ``array[slices]`` in place, as ``numpy.add.at`` does.

    Example:
        >>> mpchain.cuda.scatter_add(x, ([0, 0],), 1.0)  # doctest: +SKIP
    """
    _cupy().add.at(array, slices, values)


@contextlib.contextmanager
def new_generator(seed: int | None, device: Any = None) -> Iterator[None]:
    """Context manager: CuPy draws on a GPU from a new generator in the block, then from the old
    generator.

    Args:
        seed: the seed of the new generator; with None, CuPy keeps its generator.
        device: the CUDA device; None means the current device.

    Example:
        >>> with mpchain.cuda.new_generator(0):  # doctest: +SKIP
        ...     mask = mpchain.cuda.cupy.random.rand(3)
    """
    if seed is None:
        yield
        return
    random, device = _cupy().random, device or _cupy().cuda.Device()
    with device:
        outer = random.get_random_state()
        random.set_random_state(random.RandomState(seed))
    try:
        yield
    finally:
        with device:
            random.set_random_state(outer)


def special_functions() -> Any:
    """Returns ``cupyx.scipy.special``, the special functions of CuPy arrays.

    Example:
        >>> mpchain.cuda.special_functions().erf(x)  # doctest: +SKIP
    """
    import cupyx.scipy.special

    return cupyx.scipy.special


def fuse(*args: Any, **kwargs: Any) -> Any:
    """Decorator: calls ``cupy.fuse``; without CuPy, leaves the function unchanged.

    Example:
        >>> @mpchain.cuda.fuse()
        ... def add_twice(x, y):
        ...     return x + y + y
    """
    cupy = _load()[0]
    if cupy is not None:
        return cupy.fuse(*args, **kwargs)
    return args[0] if args and callable(args[0]) else lambda function: function


def get_max_workspace_size() -> int:
    """Returns the number of bytes that a kernel of a vendor's library may use as workspace.

    Example:
        >>> mpchain.cuda.get_max_workspace_size()
        8388608
    """
    return _max_workspace_size


def set_max_workspace_size(size: int) -> None:
    """Sets the number of bytes that a kernel of a vendor's library may use as workspace.

    Example:
        >>> mpchain.cuda.set_max_workspace_size(8 * 1024**2)
    """
    global _max_workspace_size  # noqa: PLW0603  (a setting of the process)
    _max_workspace_size = int(size)


def unavailable_reason() -> str:
    """Returns the reason why no GPU can be used; an empty string if a GPU can be used.

    Example:
        >>> mpchain.cuda.unavailable_reason()  # doctest: +SKIP
        "CuPy is not installed (No module named 'cupy'): pip install 'mpchain[gpu]'"
    """
    return _load()[2]
