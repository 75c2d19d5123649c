"""Builds and loads a double of cuBLAS's C interface, which calls the double of CuPy's binding.

The library is loaded under cuBLAS's own name, libcublas.so.13, and has the functions that mpchain
calls without CuPy.
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
from cupy._pointers import block_at

SOURCE = pathlib.Path(__file__).with_name("cublas.cpp")
OPTIONS = "-std=c++17 -O1 -shared -fPIC -Wl,-soname,libcublas.so.13"
EXECUTION_FAILED = 13
_Call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_longlong))
_streams, _workspaces = {}, {}


@functools.cache
def load():
    """Returns the library, which is compiled once for all processes."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeError("the double of cuBLAS needs g++")
    library = CACHE / f"cublas_{hashlib.sha256(SOURCE.read_bytes()).hexdigest()}.so"
    if not library.exists():
        CACHE.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            made = pathlib.Path(folder, "libcublas.so.13")
            command = [compiler, *OPTIONS.split(), "-o", made, SOURCE]
            subprocess.run(command, check=True, timeout=120)
            made.replace(library)
    library = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    library.cublasDoubleConnect(_call)
    return library


@_Call
def _call(function, arguments):
    """Calls a function; an exception, which C cannot see, becomes a fault and an error status."""
    try:
        (_set_stream, _set_workspace, _multiply)[function](arguments)
    except Exception as error:
        _machine.ledger.faults.append(f"cuBLAS: {error!r}")
        return EXECUTION_FAILED
    return 0


def _set_stream(arguments):
    handle, number = arguments[:2]
    _streams[handle] = _machine.stream_of(number)
    # The stream then uses cuBLAS's own workspace, which a capture would allocate.
    _workspaces.pop(handle, None)


def _set_workspace(arguments):
    handle, pointer, n_bytes = arguments[:3]
    _workspaces[handle] = block_at(pointer, n_bytes, "the workspace")


def _multiply(arguments):
    from cupy.cuda import cublas

    handle = arguments[0]
    stream = _streams[handle]
    if stream.capture is not None:
        if handle not in _workspaces:
            raise ValueError("a product is captured without a workspace")
        _workspaces[handle].access(stream, True)
    with stream:
        cublas.multiply(*arguments[:23])
