"""cuBLAS by its C interface, for streams that capture: CuPy refuses to call it there."""

import ctypes
import functools
from typing import Any

from mpchain.backends import cuda
from mpchain.recording import current


def captured_product(handle: int, *args: Any) -> None:
    """Adds ``cublasGemmStridedBatchedEx`` to the graph that this thread captures.

    Args:
        handle: CuPy's handle of cuBLAS.
        args: the other arguments, numbers; pointers are addresses.

    Raises:
        RuntimeError: cuBLAS returns an error.
    """
    library, workspace = _library(), current.graph.workspace
    stream = cuda.cupy.cuda.get_current_stream().ptr
    _check(library.cublasSetStream_v2(handle, stream))  # CuPy sets it anew in its own calls
    # Without one cuBLAS would allocate memory, as a part of the graph.
    _check(library.cublasSetWorkspace_v2(handle, workspace.data.ptr, workspace.nbytes))
    _check(library.cublasGemmStridedBatchedEx(handle, *args))


@functools.cache
def _library():
    runtime = cuda.cupy.cuda.runtime
    # It is loaded already, by CuPy.
    library = ctypes.CDLL(f"libcublas.so.{runtime.runtimeGetVersion() // 1000}")
    pointer, number, step = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    matrices = [pointer, number, number, step]
    library.cublasSetStream_v2.argtypes = [pointer] * 2
    library.cublasSetWorkspace_v2.argtypes = [pointer, pointer, ctypes.c_size_t]
    library.cublasGemmStridedBatchedEx.argtypes = [
        *[pointer, *[number] * 5, pointer],
        *[*matrices, *matrices, pointer, *matrices],
        *[number] * 3,
    ]
    return library


def _check(status):
    if status:
        raise RuntimeError(f"cuBLAS: a product in a captured step failed with status {status}")


def workspace_bytes(compute_capability: int) -> int:
    """Returns how much memory cuBLAS wants for itself, by NVIDIA's advice.

    Example:
        >>> workspace_bytes(90) >> 20
        32
    """
    return (32 if compute_capability >= 90 else 4) << 20
