"""Products of stacked matrices on GPUs by cuBLAS, mostly without copies of the operands.

CuPy's own product copies matrices that are transposed or have gaps, launches kernels to find
repeated matrices, and multiplies half precision in single precision. The product of this module
accepts transposed matrices and rows with gaps without copies, repeats a matrix with a stride of
zero, and multiplies half precision on tensor cores, with sums in single precision. In captured
steps, it multiplies two matrices that are not stacked too.

With ``config.use_cudnn_tensor_core = "always"``, tensor cores multiply single precision in all
products, including products of two matrices; factors are then rounded to ten bits (TF32).
"""

import ctypes
import functools
import itertools
import math
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.configuration import config
from mpchain.kernels import reference
from mpchain.observers import current
from mpchain.typing import Array

_TYPES = {"float16": "16F", "bfloat16": "16BF", "float32": "32F", "float64": "64F"}
_NUMBERS = {  # These are the constants one and zero, in host memory.
    dtype: (np.ones((), dtype), np.zeros((), dtype)) for dtype in (np.float32, np.float64)
}
_LARGEST = (1 << 31) - 1


def _matrix(x) -> Any:
    """Returns whether the matrices of a stack are transposed, and the distance between rows.

    The result is None if neither rows nor columns are contiguous, or if their distance is too large
    for cuBLAS.
    """
    (rows, columns), (of_row, of_column) = x.shape[-2:], (s // x.itemsize for s in x.strides[-2:])
    if (columns == 1 or of_column == 1) and (rows == 1 or columns <= of_row < _LARGEST):
        return False, of_row if rows > 1 else columns
    if (rows == 1 or of_row == 1) and (columns == 1 or rows <= of_column < _LARGEST):
        return True, of_column if columns > 1 else rows
    return None


def _step(x, stack):
    """Returns the distance in elements between the matrices of a stack, 0 if one matrix is
    repeated; None if the distance varies."""
    missing = len(stack) + 2 - x.ndim
    own = [0 if n == 1 else s // x.itemsize for n, s in zip(x.shape[:-2], x.strides)]
    axes = [(n, s) for n, s in zip(stack, [0] * missing + own) if n > 1]
    for (_, outer), (n, inner) in itertools.pairwise(axes):
        if outer != n * inner:
            return None
    step = axes[-1][1] if axes else 0
    return step if step >= 0 else None


def _operand(x, stack) -> tuple[Any, Any, Any, Any]:
    """Returns the array or a copy, whether its matrices are transposed, the distance between rows,
    and the distance between matrices."""
    matrix, step = _matrix(x), _step(x, stack)
    if matrix is None or step is None:
        xp = cuda.get_array_module(x)
        # x is repeated along some axes of the stack, but not along all
        if math.prod(x.shape[:-2]) not in (1, math.prod(stack)):
            x = xp.broadcast_to(x, (*stack, *x.shape[-2:]))
        x = xp.ascontiguousarray(x)
        matrix, step = _matrix(x), _step(x, stack)
    return x, *matrix, step


def _refuse(a, b, out=None):
    if max(a.ndim, b.ndim) < 3 and current.graph is None and not _rounds(a):
        return "two matrices, which CuPy multiplies as fast"
    if not (a.size and b.size):
        return "an array without elements"
    if max(*a.shape[-2:], b.shape[-1], math.prod(_stack(a, b))) >= _LARGEST // 2:
        return "sizes that are too large"
    return None if out is None or out.flags.c_contiguous else "a result that has gaps"


def _rounds(x):
    """Returns whether tensor cores multiply single precision. For CuPy's own products, an
    environment variable decides."""
    return x.dtype == np.float32 and config.use_cudnn_tensor_core == "always"


def _stack(a, b):
    return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])


@reference.product.kernel("cublas", _refuse, tuple(_TYPES))
def product(a: Array, b: Array, out: Array | None = None) -> Array:
    """See :func:`mpchain.kernels.reference.product`."""
    xp, stack = cuda.get_array_module(a), _stack(a, b)
    n_rows, n_inner, n_columns = *a.shape[-2:], b.shape[-1]
    result: Any = xp.empty((*stack, n_rows, n_columns), a.dtype) if out is None else out
    n, (left, turn_a, row_a, next_a) = math.prod(stack), _operand(a, stack)
    right, turn_b, row_b, next_b = _operand(b, stack)
    are_alike = next_b == 0 and not turn_a and (n == 1 or next_a == n_rows * row_a)
    if are_alike and n_rows * n < _LARGEST:
        n_rows, n = n_rows * n, 1  # all rows of a are multiplied by the same matrix
    library, kind = xp.cuda.cublas, getattr(xp.cuda.runtime, f"CUDA_R_{_TYPES[a.dtype.name]}")
    wide = np.float64 if a.dtype == np.float64 else np.float32
    one, zero = (x.ctypes.data for x in _NUMBERS[wide])
    compute = "64F" if wide is np.float64 else "32F_FAST_TF32" if _rounds(a) else "32F"
    # cuBLAS stores matrices by columns, so it reads our arrays as transposes: out^T = b^T a^T. CuPy
    # refuses to call cuBLAS in a stream that captures.
    multiply = library.gemmStridedBatchedEx if current.graph is None else captured_product
    multiply(
        *(xp.cuda.get_cublas_handle(), int(turn_b), int(turn_a), n_columns, n_rows, n_inner, one),
        *(right.data.ptr, kind, row_b, next_b, left.data.ptr, kind, row_a, next_a, zero),
        *(result.data.ptr, kind, n_columns, n_rows * n_columns, n),
        *(getattr(library, f"CUBLAS_COMPUTE_{compute}"), library.CUBLAS_GEMM_DEFAULT),
    )
    return result


# The functions below call cuBLAS's C interface in streams that capture, where CuPy would refuse.


def captured_product(handle: int, *args: Any) -> None:
    """Adds ``cublasGemmStridedBatchedEx`` to the graph that this thread captures.

    Args:
        handle: CuPy's handle of cuBLAS.
        args: the other arguments, as numbers; pointers are addresses.

    Raises:
        RuntimeError: cuBLAS returns an error.
    """
    assert current.graph is not None  # outside of a capture, product() calls cuBLAS through CuPy
    library, workspace = _library(), current.graph.workspace
    stream = cuda.cupy.cuda.get_current_stream().ptr
    # The stream need not be restored, because CuPy sets the stream in each of its own calls.
    _check(library.cublasSetStream_v2(handle, stream))
    # Without a workspace, cuBLAS would allocate memory as a node of the graph.
    _check(library.cublasSetWorkspace_v2(handle, workspace.data.ptr, workspace.nbytes))
    _check(library.cublasGemmStridedBatchedEx(handle, *args))


@functools.cache
def _library():
    runtime = cuda.cupy.cuda.runtime
    # CuPy has already loaded this library.
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
    """Returns the workspace size that NVIDIA recommends for cuBLAS, in bytes.

    Example:
        >>> workspace_bytes(90) >> 20
        32
    """
    return (32 if compute_capability >= 90 else 4) << 20
