"""Products of matrices: kernels that CuPy launches in addition to the product, and cuBLAS
itself."""

import numpy as np

PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "dot"}
OTHER_PRODUCTS = {"__imatmul__", "vdot", "inner", "tensordot", "einsum"}


def launches_beside(operands, out):
    """Returns the names of the kernels that CuPy 14 launches in addition to the product.

    Of two matrices, CuPy casts those of another dtype, and copies those that are neither C- nor
    F-contiguous. Of stacks, it copies those that are not C-contiguous or have another dtype than
    the sums, which are float32 for half precision; it finds repeated matrices by kernels, and
    copies a result that is in half precision or does not fit ``out``.
    """
    a, b = operands
    if not (a.size and b.size):
        return []
    dtype, n_axes = np.result_type(a, b), max(a.ndim, b.ndim)
    if n_axes <= 2:
        casts = ["astype" for x in operands if x.dtype != dtype]
        gaps = [x for x in operands if x.ndim == 2 and not (x.flags.c_contiguous or x.flags.forc)]
        return [*casts, *("copy" for _ in gaps)]
    wide = np.dtype(np.float32) if dtype == np.float16 else dtype
    names = ["copy" for x in operands if x.dtype != wide or not x.flags.c_contiguous]
    stacks = [x.shape[:-2] for x in operands]
    stack = np.broadcast_shapes(*stacks)
    if any((1,) * (len(stack) - len(s)) + s != stack for s in stacks):
        names += ["mat_ptrs"] * 3 * len(stack)
    if wide != dtype or (out is not None and not (out.flags.c_contiguous and out.dtype == wide)):
        names.append("copy")
    return names


def count_flops(a, b):
    """Returns the number of multiplications and additions of a product."""
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    inner, columns = b.shape[-2:] if b.ndim > 1 else (len(b), 1)
    return 2.0 * np.prod(stack) * (a.size // max(np.prod(a.shape[:-2]), 1)) * columns * bool(inner)


def without_values(a, b, out=None):
    """Returns an array with the shape and dtype of a product of stacks of matrices, and undefined
    values."""
    if out is not None:
        return out
    if min(a.ndim, b.ndim) < 2:
        return np.dot(a, b)
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return np.empty((*stack, a.shape[-2], b.shape[-1]), np.result_type(a, b))
