"""Elementwise kernels on GPUs whose threads load 128 bits at once.

CuPy's elementwise kernels give each thread one element. An element of half precision has only 2
bytes, so that the pending loads do not use the full memory bandwidth. A thread of the kernels in
this module processes as many elements as 128 bits hold, if all arrays have the same layout without
gaps and are aligned; otherwise CuPy's kernel computes the result. Arrays with channels last keep
this layout, which CuPy's kernel would not preserve.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.typing import Array

WIDTH = 16
"""The number of bytes that a thread loads at once, which is also the required alignment of
arrays."""
THREADS, BLOCKS = 256, 1 << 20
TYPES = {"e": "float16", "f": "float", "d": "double"}
HEADER = """#include <cupy/float16.cuh>
#include <cupy/complex.cuh>
#include <cupy/carray.cuh>
#include <cupy/atomics.cuh>
#include <cupy/math_constants.h>
typedef {kind} T;
struct alignas(16) Word {{ unsigned int part[4]; }};"""
_TEXT = """{header}
extern "C" __global__ void {name}({parameters}, long long n) {{
  const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const long long step = gridDim.x * (long long)blockDim.x;
  for (long long i = first; i < n / {many}; i += step) {{
    {declared}
    {loaded}
    #pragma unroll
    for (int u = 0; u < {many}; u++) {{
      {elements}
      {operation};
    }}
    {stored}
  }}
  for (long long i = n / {many} * {many} + first; i < n; i += step) {{
    {single}
    {operation};
    {kept}
  }}
}}
"""


def is_aligned(x: "cuda.GpuArray") -> bool:
    """Returns whether an array's address allows a thread to load 128 bits at once.

    Example:
        >>> is_aligned(x)  # doctest: +SKIP
        True
    """
    return x.data.ptr % WIDTH == 0


def contiguous_view(x: Array) -> Any:
    """Returns a C-contiguous view of a CuPy array in memory order, and the argument of
    ``transpose`` that restores the original order of axes (None if it is the same); None for arrays
    that are neither in C order nor channels last.

    Example:
        >>> contiguous_view(x)[0].flags.c_contiguous  # doctest: +SKIP
        True
    """
    if x.flags.c_contiguous:
        return x, None
    if x.ndim > 2:
        moved = x.transpose(0, *range(2, x.ndim), 1)
        if moved.flags.c_contiguous:
            return moved, (0, x.ndim - 1, *range(1, x.ndim - 1))
    return None


def _with_channels_last(x, own, back):
    if own is not None:
        return x, own
    xp = cuda.get_array_module(x)
    return xp.ascontiguousarray(x.transpose(0, *range(2, x.ndim), 1)), back


class WideKernel:
    """An elementwise kernel on arrays of the same shape and dtype, and on numbers.

    Args:
        ins, outs: the names of inputs and outputs.
        operation: C code that computes one element, where ``T`` is the type of the elements.
        name: the name of the kernel.
        return_tuple: whether a call returns a tuple even for one result.

    Example:
        >>> double = WideKernel(["x"], ["y"], "y = x + x", "double_x")  # doctest: +SKIP
        >>> double(mpchain.cuda.cupy.ones(3))  # doctest: +SKIP
        array([2., 2., 2.])
    """

    def __init__(
        self,
        ins: Sequence[str],
        outs: Sequence[str],
        operation: str,
        name: str,
        return_tuple: bool = False,
    ):
        self._ins, self._outs, self._operation, self._name = ins, outs, operation, name
        self._returns_tuple = return_tuple or len(outs) > 1
        self._text = functools.cache(self.text)

    def __call__(self, *args: Any) -> Any:
        """Returns new arrays with the results."""
        arrays = [x for x in args if cuda.is_gpu_array(x)]
        views = self._views(arrays)
        if views is None:
            return self._run_plain(args, arrays)
        (first, back), *_ = views
        dtype, xp = first.dtype, cuda.get_array_module(first)
        given = iter(views)
        values = [next(given)[0] if cuda.is_gpu_array(x) else dtype.type(x) for x in args]
        made = [xp.empty(first.shape, dtype) for _ in self._outs]
        words = [x for x in (*values, *made) if cuda.is_gpu_array(x)]
        text = self._text(dtype.char, tuple(map(cuda.is_gpu_array, values)))
        n_blocks = max(1, min(-(-first.size * dtype.itemsize // (WIDTH * THREADS)), BLOCKS))
        kernel = cuda.raw(text, self._name)
        kernel((n_blocks,), (THREADS,), (*words, *values, *made, np.int64(first.size)))
        results = tuple(made if back is None else [y.transpose(back) for y in made])
        return results if self._returns_tuple else results[0]

    def _run_plain(self, args, arrays):
        """Runs CuPy's kernel. If an array has channels last, the results have channels last too; no
        array is copied."""
        kernel, shapes = self._plain(), {x.shape for x in arrays}
        views = [contiguous_view(x) for x in arrays] if len(shapes) == 1 else []
        backs = {view[1] for view in views if view is not None} - {None}
        if not backs:
            return kernel(*args)
        (back,) = backs
        to_last = 0, *range(2, len(back)), 1
        results = kernel(*(x.transpose(to_last) if cuda.is_gpu_array(x) else x for x in args))
        if isinstance(results, tuple):
            return tuple(y.transpose(back) for y in results)
        return results.transpose(back)

    def _plain(self):
        """Returns the equivalent CuPy kernel."""
        declared = [", ".join(f"T {x}" for x in names) for names in (self._ins, self._outs)]
        options = {"return_tuple": self._returns_tuple}
        return cuda.elementwise(*declared, self._operation, self._name, **options)

    def _views(self, arrays):
        """Returns what :func:`contiguous_view` returns for each array; None for unsupported arrays.

        If an array has channels last, all other arrays are copied to this layout.
        """
        first = arrays[0] if arrays else None
        if first is None or first.dtype.char not in TYPES or not first.size:
            return None
        if any(x.shape != first.shape or x.dtype != first.dtype for x in arrays):
            return None
        views = [contiguous_view(x) for x in arrays]
        backs = {view[1] for view in views if view is not None} - {None}
        if None in views:
            return None
        if backs:
            views = [_with_channels_last(*view, *backs) for view in views]
        return None if not all(is_aligned(view) for view, _ in views) else views

    def text(self, char: str, are_arrays: tuple[bool, ...]) -> str:
        """Returns the kernel's text for a dtype; ``are_arrays`` has a flag for each argument, True
        for an array."""
        reads = [name for name, is_array in zip(self._ins, are_arrays) if is_array]
        kind, names = TYPES[char], [*reads, *self._outs]
        parameters = [f"{'const ' * (x in reads)}Word* words_{x}" for x in names]
        for x, is_array in zip(self._ins, are_arrays):
            parameters.append(f"const {kind}* all_{x}" if is_array else f"const {kind} {x}")
        parameters += [f"{kind}* all_{x}" for x in self._outs]
        many = WIDTH // np.dtype(char).itemsize
        given = " ".join(f"const T {x} = all_{x}[i];" for x in reads)
        made = " ".join(f"T {x};" for x in self._outs)
        kept = " ".join(f"all_{x}[i] = {x};" for x in self._outs)
        return _TEXT.format(
            header=HEADER.format(kind=kind),
            name=self._name,
            parameters=", ".join(parameters),
            many=many,
            declared=" ".join(f"alignas(16) T own_{x}[{many}];" for x in names),
            loaded=" ".join(f"*(Word*)own_{x} = words_{x}[i];" for x in reads),
            elements=" ".join(f"const T {x} = own_{x}[u];" for x in reads)
            + " ".join(f" T& {x} = own_{x}[u];" for x in self._outs),
            operation=self._operation,
            stored=" ".join(f"words_{x}[i] = *(Word*)own_{x};" for x in self._outs),
            single=f"{given} {made}",
            kept=kept,
        )


def wide(
    ins: Sequence[str], outs: Sequence[str], operation: str, name: str, return_tuple: bool = False
) -> Any:
    """Returns the :class:`WideKernel` for these arguments, which is made once and cached.

    Example:
        >>> double = wide(("x",), ("y",), "y = x + x", "double_x")  # doctest: +SKIP
    """
    return _wide(tuple(ins), tuple(outs), operation, name, return_tuple)


_wide = functools.cache(WideKernel)
