"""Joining arrays on GPUs: one kernel, where CuPy takes one for each of a few arrays."""

import functools
import math

from mpchain.backends import cuda
from mpchain.kernels import reference
from mpchain.typing import Array

_MOST = 32  # arrays that one kernel takes


def _refuse(axis: int, *arrays: Array) -> str | None:
    if not all(map(cuda.is_gpu_array, arrays)):
        return "not CuPy arrays"
    if not 2 <= len(arrays) <= _MOST:
        return f"not 2 to {_MOST} arrays"
    return None if len({x.dtype for x in arrays}) == 1 else "arrays of several dtypes"


@functools.cache
def _kernel(n):
    """The kernel for n arrays: element j of a row of the result is in the first that reaches it."""
    ins = ", ".join(f"raw T x{k}, int64 n{k}" for k in range(n))
    text = "const ptrdiff_t row = i / width; ptrdiff_t j = i % width;\n"
    for k in range(n):
        reached = f"(j -= n{k - 1})" if k else "j"
        text += f"{'else ' if k else ''}if ({reached} < n{k}) y = x{k}[row * n{k} + j];\n"
    return cuda.elementwise(f"{ins}, int64 width", "T y", text, f"mpchain_join_{n}")


@reference.concatenate.kernel("cuda_joining", _refuse)
def concatenate(axis: int, *arrays: Array) -> Array:
    """See :func:`mpchain.kernels.reference.concatenate`."""
    first = arrays[0]
    axis %= first.ndim
    lead, rest = first.shape[:axis], first.shape[axis + 1 :]
    shape = (*lead, sum(x.shape[axis] for x in arrays), *rest)
    y = cuda.get_array_module(first).empty(shape, first.dtype)
    sized = [part for x in arrays for part in (x, math.prod(x.shape[axis:]))]
    return _kernel(len(arrays))(*sized, math.prod(shape[axis:]), y)
