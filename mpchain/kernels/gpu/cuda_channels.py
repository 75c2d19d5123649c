"""Elementwise kernels with a value for each channel, whose threads load 128 bits at once.

See :mod:`mpchain.kernels.gpu.cuda_wide`. Either the channels are the last axis, or the elements of
each channel are contiguous.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends import cuda
from mpchain.kernels.gpu import cuda_wide
from mpchain.kernels.gpu.cuda_wide import BLOCKS, HEADER, THREADS, TYPES, WIDTH, contiguous_view
from mpchain.typing import Array

_TEXT = """{header}
typedef {wide} W;
extern "C" __global__ void {name}({parameters}, Word* words_y,
    long long n, long long run, long long n_runs, int many) {{
  const long long step = gridDim.x * (long long)blockDim.x;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += step) {{
    {loaded}
    alignas(16) T own_y[{many}];
    const long long first = i / run % n_runs * many;
    #pragma unroll
    for (int u = 0; u < {many}; u++) {{
      const long long c = first + (many > 1 ? u : 0);
      {elements}
      T y;
      {operation};
      own_y[u] = y;
    }}
    words_y[i] = *(Word*)own_y;
  }}
}}
"""


class ChannelKernel(NamedTuple):
    """A kernel that computes one element ``y`` from its inputs.

    Attributes:
        name: the name of the kernel.
        reads: the names of the input arrays, which have the shape of the result.
        channels: names of arrays with an element for each channel.
        numbers: names of scalars, of the type ``W`` in which the kernel computes.
        operation: C code for one element.
    """

    name: str
    reads: Sequence[str]
    channels: Sequence[str]
    numbers: Sequence[str]
    operation: str

    def text(self, char: str, of_channels: str) -> str:
        """Returns the kernel's text for arrays of a dtype, given the dtypes of the arrays of
        channels."""
        kind, many = TYPES[char], WIDTH // np.dtype(char).itemsize
        words = [f"const Word* words_{x}" for x in self.reads]
        words += [f"const {TYPES[c]}* of_{x}" for x, c in zip(self.channels, of_channels)]
        words += [f"const {'double' if char == 'd' else 'float'} {x}" for x in self.numbers]
        loaded = [f"alignas(16) T own_{x}[{many}]; *(Word*)own_{x} = words_{x}[i];"
                  for x in self.reads]  # fmt: skip
        elements = [f"const T {x} = own_{x}[u];" for x in self.reads]
        elements += [f"const W {x} = (W)of_{x}[c];" for x in self.channels]
        return _TEXT.format(
            header=HEADER.format(kind=kind),
            wide="double" if char == "d" else "float",
            name=self.name,
            parameters=", ".join(words),
            many=many,
            loaded="\n    ".join(loaded),
            elements=" ".join(elements),
            operation=self.operation,
        )

    def run(
        self,
        arrays: "Sequence[cuda.GpuArray]",
        of_channels: Sequence[Array],
        sizes: tuple[int, int, int],
        numbers: Sequence[float] = (),
    ) -> Array | None:
        """Runs the kernel and returns a new array; returns None for unsupported arrays or sizes.

        Args:
            arrays: arrays of one shape and dtype.
            of_channels: arrays of any shape, with an element for each channel.
            sizes: the numbers of elements before, along, and after the channels' axis.
            numbers: the scalars.
        """
        first, (_, n_channels, inner) = arrays[0], sizes
        many = WIDTH // first.itemsize
        if inner == 1 and n_channels % many == 0:
            run, n_runs, by = 1, n_channels // many, many
        elif inner % many == 0:
            run, n_runs, by = inner // many, n_channels, 1
        else:
            return None
        if first.dtype.char not in TYPES or any(x.size != n_channels for x in of_channels):
            return None
        for x in arrays:
            if not x.flags.c_contiguous or not cuda_wide.is_aligned(x) or x.dtype != first.dtype:
                return None
        xp = cuda.get_array_module(first)
        kept = [xp.ascontiguousarray(x) for x in of_channels]
        kernel = _compiled(self, first.dtype.char, "".join(x.dtype.char for x in kept))
        y, n = xp.empty(first.shape, first.dtype), first.size // many
        wide = np.promote_types(first.dtype, np.float32).type
        given = *arrays, *kept, *map(wide, numbers), y
        n_blocks = min(-(-n // THREADS), BLOCKS)
        kernel((n_blocks,), (THREADS,), (*given, *map(np.int64, (n, run, n_runs)), np.int32(by)))
        return y


@functools.cache
def _compiled(kernel, char, of_channels):
    return cuda.raw(kernel.text(char, of_channels), kernel.name)


def in_order(x: "cuda.GpuArray", axis: tuple[int, ...]) -> Any:
    """Returns a view of ``x`` whose axes are in memory order, the indices of the axes ``axis`` in
    this view, and the argument of ``transpose`` that restores the order of axes (None if it is the
    same). For arrays with gaps, the view is ``x`` itself.

    Example:
        >>> in_order(x, (0, 2, 3))  # doctest: +SKIP
    """
    found = contiguous_view(x)
    if found is None or found[1] is None:
        return x, axis, None
    order = (0, *range(2, x.ndim), 1)
    return found[0], tuple(sorted(order.index(a % x.ndim) for a in axis)), found[1]


NORMALIZE = ChannelKernel(
    "mpchain_normalize",
    ("x",),
    ("gamma", "beta", "mean", "inverse_std"),
    (),
    "y = ((W)x - mean) * (inverse_std * gamma) + beta",
)
NORMALIZE_GRADIENT = ChannelKernel(
    "mpchain_normalization_gradient",
    ("g", "x"),
    ("gamma", "mean", "inverse_std", "g_gamma", "g_beta"),
    ("count",),
    """const W normalized = ((W)x - mean) * inverse_std;
      y = ((W)g - (normalized * g_gamma + g_beta) / count) * (gamma * inverse_std)""",
)
