"""NCCL's C functions through ``ctypes``, with the names and arguments of NVIDIA's nccl4py.

This module is not PyPI's package of the same name, which does not work with current versions of
NCCL: that package was written for NCCL 2.7, passes a unique ID of the wrong size, and needs numba's
context.

Pointers, streams and communicators are integers. A function that fails raises :class:`Error`.
"""

import ctypes
import functools
import importlib.util
import pathlib

_pointer, _int, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


class Error(RuntimeError):
    """A function of NCCL has failed.

    Args:
        text: the error message.
        status: the result code of the function.
    """

    def __init__(self, text: str, status: int):
        super().__init__(f"{text} ({status})")
        self.status = status


class _Identity(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]


@functools.cache
def load() -> ctypes.CDLL:
    """Loads NCCL: the library that this process has loaded, the system's library, or that of
    NVIDIA's wheel.

    Raises:
        OSError: no library was found.

    Example:
        >>> mpchain.backends.pynccl.load()  # doctest: +SKIP
        <CDLL 'libnccl.so.2', handle ...>
    """
    try:
        library = ctypes.CDLL("libnccl.so.2")
    except OSError:
        wheel = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.nccl")
        if not wheel or not wheel.submodule_search_locations:
            raise
        folder = next(iter(wheel.submodule_search_locations))
        library = ctypes.CDLL(str(pathlib.Path(folder, "lib", "libnccl.so.2")))
    library.ncclGetErrorString.restype = library.ncclGetLastError.restype = ctypes.c_char_p
    return library


def _call(name, *args):
    library = load()
    if code := getattr(library, name)(*args):
        raise Error(f"{name}: {library.ncclGetErrorString(code).decode()}", code)


def _function(name, *types):
    """Returns a function of NCCL that takes arguments of these types and returns nothing."""
    return lambda *args: _call(name, *(t(x) for t, x in zip(types, args, strict=True)))


_collective = _pointer, _pointer, _size, _int  # sent and received array, number of elements, type
_on = _pointer, _pointer  # communicator, stream

all_reduce = _function("ncclAllReduce", *_collective, _int, *_on)
all_gather = _function("ncclAllGather", *_collective, *_on)
broadcast = _function("ncclBroadcast", *_collective, _int, *_on)
reduce = _function("ncclReduce", *_collective, _int, _int, *_on)
reduce_scatter = _function("ncclReduceScatter", *_collective, _int, *_on)
send = _function("ncclSend", _pointer, _size, _int, _int, *_on)
recv = _function("ncclRecv", _pointer, _size, _int, _int, *_on)
group_start, group_end = _function("ncclGroupStart"), _function("ncclGroupEnd")
comm_destroy, comm_abort = (_function(f"ncclComm{end}", _pointer) for end in ("Destroy", "Abort"))
comm_revoke = _function("ncclCommRevoke", _pointer, _int)
red_op_destroy = _function("ncclRedOpDestroy", _int, _pointer)


def get_version() -> int:
    """Returns the library's version, such as 23203 for 2.32.3.

    Example:
        >>> mpchain.backends.pynccl.get_version()  # doctest: +SKIP
        23203
    """
    _call("ncclGetVersion", ctypes.byref(version := _int()))
    return version.value


def get_unique_id() -> bytes:
    """Returns the unique ID of a new group of ranks; all of these ranks need it.

    Example:
        >>> len(mpchain.backends.pynccl.get_unique_id())  # doctest: +SKIP
        128
    """
    _call("ncclGetUniqueId", ctypes.byref(identity := _Identity()))
    return bytes(identity)


def comm_init_rank(n_ranks: int, identity: bytes, rank: int) -> int:
    """Returns the communicator of a rank, on the current GPU; collective.

    Example:
        >>> comm = mpchain.backends.pynccl.comm_init_rank(1, identity, 0)  # doctest: +SKIP
    """
    comm, group = _pointer(), _Identity.from_buffer_copy(identity)
    _call("ncclCommInitRank", ctypes.byref(comm), _int(n_ranks), group, _int(rank))
    return comm.value or 0


def comm_shrink(comm: int, excluded: int, n_excluded: int, config: int, flags: int) -> int:
    """Returns the communicator of all ranks except the excluded ones; collective for the other
    ranks.

    ``excluded`` is the address of an int32 array of rank numbers.

    Example:
        >>> args = excluded.ctypes.data, len(excluded), 0, 1  # doctest: +SKIP
        >>> comm = mpchain.backends.pynccl.comm_shrink(comm, *args)  # doctest: +SKIP
    """
    made = _pointer()
    args = _pointer(excluded), _int(n_excluded), ctypes.byref(made), _pointer(config), _int(flags)
    _call("ncclCommShrink", _pointer(comm), *args)
    return made.value or 0


def comm_get_async_error(comm: int) -> int:
    """Returns the code of an error that occurred in the background; 0 if there was none.

    Example:
        >>> mpchain.backends.pynccl.comm_get_async_error(comm)  # doctest: +SKIP
        0
    """
    _call("ncclCommGetAsyncError", _pointer(comm), ctypes.byref(code := _int()))
    return code.value


def get_last_error(comm: int | None) -> str:
    """Returns NCCL's text for its last failure.

    Example:
        >>> mpchain.backends.pynccl.get_last_error(comm)  # doctest: +SKIP
        ''
    """
    return load().ncclGetLastError(_pointer(comm)).decode()


def red_op_create_pre_mul_sum(factor: int, dtype: int, residence: int, comm: int) -> int:
    """Returns a reduction that multiplies each rank's array by its factor and sums the products.

    ``factor`` is the address of this rank's factor.

    Example:
        >>> pynccl.red_op_create_pre_mul_sum(factor.ctypes.data, 7, 1, comm)  # doctest: +SKIP
        5
    """
    op = _int()
    _call(
        "ncclRedOpCreatePreMulSum",
        ctypes.byref(op),
        _pointer(factor),
        _int(dtype),
        _int(residence),
        _pointer(comm),
    )
    return op.value
