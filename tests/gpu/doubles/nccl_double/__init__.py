"""Builds and loads the double of NCCL, which reports its use of memory to the double of CuPy.

The library is loaded under NCCL's own name, libnccl.so.2, so that all bindings find it instead of
NCCL.
"""

import ctypes
import functools
import hashlib
import pathlib
import shutil
import subprocess
import tempfile

from cupy import _machine
from cupy._kernels import CACHE

SOURCE = pathlib.Path(__file__).with_name("nccl.cpp")
OPTIONS = "-std=c++20 -O1 -w -shared -fPIC -pthread -Wl,-soname,libnccl.so.2"
_u64 = ctypes.c_uint64
_CurrentDevice = ctypes.CFUNCTYPE(ctypes.c_int)
_Access = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_int,
    *[_u64] * 3,
    ctypes.c_int,
    ctypes.c_void_p,
    _u64,
    ctypes.POINTER(ctypes.c_char),
)
_Captures = ctypes.CFUNCTYPE(_u64, _u64)
_Captured = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _u64, _u64)
_CURRENT = 2**64 - 1


def build():
    """Compiles the library once for all processes; returns its file."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeError("the double of NCCL needs g++")
    text = SOURCE.read_bytes()
    library = CACHE / f"nccl_{hashlib.sha256(text + OPTIONS.encode()).hexdigest()}.so"
    if not library.exists():
        CACHE.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            made = pathlib.Path(folder, "libnccl.so.2")
            command = [compiler, *OPTIONS.split(), "-o", made, SOURCE, "-lrt"]
            subprocess.run(command, check=True, timeout=120)
            made.replace(library)
    return library


@functools.cache
def load():
    """Returns the library, connected to the double of CuPy."""
    library = ctypes.CDLL(str(build()), ctypes.RTLD_GLOBAL)
    library.ncclDoubleWait.argtypes = library.ncclDoubleIsDone.argtypes = [ctypes.c_void_p, _u64]
    library.ncclDoubleReplay.argtypes = library.ncclDoubleForget.argtypes = [ctypes.c_void_p, _u64]
    library.ncclGetLastError.argtypes = [ctypes.c_void_p]
    library.ncclGetLastError.restype = ctypes.c_char_p
    library.ncclDoubleConnect(_current_device, _access, _captures, _captured)
    return library


class Ticket:
    """A call of NCCL that has begun.

    Attributes:
        comm: the communicator of the call.
    """

    def __init__(self, comm, number):
        self.comm, self._number = comm, number

    def is_done(self):
        return bool(load().ncclDoubleIsDone(self.comm, self._number))

    def wait(self):
        """Waits until the call is complete; if it failed, records a fault and raises an error."""
        _check_result(self.comm, load().ncclDoubleWait(self.comm, self._number))


def _check_result(comm, result):
    if result:
        why = load().ncclGetLastError(comm).decode()
        _machine.ledger.faults.append(f"NCCL: {why}")
        raise _machine.CUDARuntimeError(f"NCCL: {why}")


class _CapturedGroup:
    """Calls of a group that a graph contains; launches of the graph repeat the calls."""

    def __init__(self, comm, index):
        self._comm, self._index, self._forget = comm, index, load().ncclDoubleForget

    def __call__(self):
        _check_result(self._comm, load().ncclDoubleReplay(self._comm, self._index))

    def __del__(self):
        self._forget(self._comm, self._index)


@_Captures
def _captures(number):
    is_current = number == _CURRENT
    stream = _machine.get_current_stream() if is_current else _machine.stream_of(number)
    return 0 if stream is None or stream.capture is None else id(stream.capture)


@_Captured
def _captured(comm, index, number):
    _machine.stream_of(number).capture.work.append(_CapturedGroup(comm, index))


@_CurrentDevice
def _current_device():
    return _machine.here.device


@_Access
def _access(name, device, stream, pointer, n_bytes, writes, comm, number, why):
    try:
        _check(name.decode(), device, stream, pointer, n_bytes, bool(writes), comm, number)
    except Exception as error:  # an exception must not reach C
        text = str(error)
        if text not in _machine.ledger.faults:
            _machine.ledger.faults.append(text)
        ctypes.memmove(why, text.encode()[:599] + b"\0", len(text.encode()[:599]) + 1)
        return 1
    return 0


def _check(name, device, stream_number, pointer, n_bytes, writes, comm, number):
    """Records an access of NCCL to memory; raises an error for faults that NCCL cannot see."""
    name = f"nccl{name}"
    if _machine.here.device != device:
        raise ValueError(
            f"{name} is called on device {_machine.here.device}, but the communicator was made on "
            f"device {device}"
        )
    stream = _machine.stream_of(stream_number)
    if stream is None or stream.device_id != device:
        raise ValueError(f"{name}: there is no stream {stream_number:#x} on device {device}")
    block = _machine.pool.block_of(pointer)
    if block is None:
        raise ValueError(f"{name}: {pointer:#x} is not in the memory of an array that lives")
    if block.device_id != device:
        raise ValueError(
            f"{name}: the buffer is on device {block.device_id}, the communicator on {device}"
        )
    if not block.covers(pointer + n_bytes - 1):
        end = block.ptr + block.size - pointer
        raise ValueError(f"{name} uses {n_bytes} bytes of a buffer with {end}")
    # Captured work has no number, because it is done when the graph is launched.
    block.access(stream, writes, Ticket(comm, number) if number else None)
