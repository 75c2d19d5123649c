"""A double of cuBLAS: products of stacked matrices, which are stored by columns."""

import numpy as np

from cupy import _machine
from cupy._graphs import in_use, refuse_library
from cupy._pointers import view_at
from cupy.cuda import runtime

CUBLAS_COMPUTE_32F = 68
CUBLAS_COMPUTE_32F_FAST_TF32 = 77
CUBLAS_COMPUTE_64F = 70
CUBLAS_GEMM_DEFAULT = -1
_TYPES = {
    runtime.CUDA_R_16F: "float16",
    runtime.CUDA_R_16BF: "bfloat16",
    runtime.CUDA_R_32F: "float32",
    runtime.CUDA_R_64F: "float64",
}
_COMPUTE = {
    CUBLAS_COMPUTE_32F: np.float32,
    CUBLAS_COMPUTE_32F_FAST_TF32: np.float32,
    CUBLAS_COMPUTE_64F: np.float64,
}


class CUBLASError(RuntimeError):
    """cuBLAS refuses the arguments."""


def _number(pointer, dtype):
    return np.ctypeslib.as_ctypes_type(dtype).from_address(pointer).value


def _matrices(name, pointer, kind, n, step, rows, columns, ld):
    """Returns the stack (n, rows, columns), and its block of memory."""
    if not rows <= ld < 1 << 31 or step < 0:
        raise CUBLASError(f"CUBLAS_STATUS_INVALID_VALUE: {name} of {rows} rows, ld={ld}, {step=}")
    shape, strides = (n, rows, columns), (step, 1, ld)
    return view_at(pointer, shape, strides, _TYPES[kind], name, np.dtype(_TYPES[kind]).itemsize)


def gemmStridedBatchedEx(*args):
    """Computes C = op(A) op(B) for each of several matrices: alpha must be 1, and beta 0."""
    refuse_library("cuBLAS")
    multiply(*args)


def multiply(handle, transa, transb, m, n, k, alpha, A, Atype, lda, strideA, *others):
    """Multiplies stacks of matrices, also in streams that capture; the C interface calls this
    function."""
    B, Btype, ldb, strideB, beta, C, Ctype, ldc, strideC, count, compute, _ = others
    if handle != _machine.here.device + 1:
        raise CUBLASError("CUBLAS_STATUS_NOT_INITIALIZED: the handle of another device")
    wide = _COMPUTE[compute]
    if not Atype == Btype == Ctype or (Atype == runtime.CUDA_R_64F) != (wide is np.float64):
        raise CUBLASError("CUBLAS_STATUS_NOT_SUPPORTED: these types")
    if _number(alpha, wide) != 1 or _number(beta, wide) != 0:
        raise NotImplementedError("the double of cuBLAS multiplies by one, and adds to zero")
    if count > 1 and strideC < m * n:
        raise CUBLASError(f"the results overlap: {strideC=} for {m} x {n}")
    a, a_block = _matrices("A", A, Atype, count, strideA, *((k, m) if transa else (m, k)), lda)
    b, b_block = _matrices("B", B, Btype, count, strideB, *((n, k) if transb else (k, n)), ldb)
    c, c_block = _matrices("C", C, Ctype, count, strideC, m, n, ldc)
    stream, capture = _machine.get_current_stream(), in_use()
    for block, writes in ((a_block, False), (b_block, False), (c_block, True)):
        block.access(stream, writes=writes)
    a = a.swapaxes(1, 2) if transa else a
    b = b.swapaxes(1, 2) if transb else b

    def again():
        with np.errstate(all="ignore"):
            # The bits then equal those of CuPy's product of two matrices.
            if count == 1 and a.dtype == wide:
                c[0].T[...] = b[0].T.dot(a[0].T)
            else:
                c[...] = a.astype(wide) @ b.astype(wide)

    if capture is None:
        _machine.ledger.launches["gemm", _machine.place()] += 1
        _machine.count_moved("gemm", [a, b, c], flops=2.0 * m * n * k * count)
    else:
        capture.keep_blocks([a_block, b_block, c_block])
        capture.work.append(again)
    if _machine.ledger.computes:
        again()
