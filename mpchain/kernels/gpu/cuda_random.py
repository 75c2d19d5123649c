"""Kernels for random words and for dropout on GPUs, which compute the same words as the host."""

import functools
import math
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.kernels.gpu import cuda_wide
from mpchain.kernels.gpu.cuda_wide import BLOCKS, HEADER, THREADS, TYPES, WIDTH
from mpchain.kernels.operation import HALF_TO_DOUBLE
from mpchain.kernels.philox import Counters, draw_kept, drop, random_words
from mpchain.typing import Array

_ROUNDS = """
for (int round = 0; round < 10; round++) {
  const unsigned long long first = 0xD2511F53ull * a, second = 0xCD9E8D57ull * c;
  a = b ^ (unsigned int)(second >> 32) ^ (low + round * 0x9E3779B9u);
  c = d ^ (unsigned int)(first >> 32) ^ (high + round * 0xBB67AE85u);
  b = second; d = first;
}
"""

_BLOCK = f"""
const ptrdiff_t row = i / n_blocks;
unsigned int a = begins[row] + i % n_blocks, b = call, c = step, d = samples[row];
{_ROUNDS}
words[4 * i] = a; words[4 * i + 1] = b; words[4 * i + 2] = c; words[4 * i + 3] = d;
"""

# Each thread computes all four words of its element's block, which is faster than storing the words
# for other threads.
_DROP = f"""
const ptrdiff_t row = i / n, element = i - row * n;
unsigned int a = element / 4, b = call, c = step, d = begin + (unsigned int)row;
{_ROUNDS}
const int place = element % 4;
const unsigned int word = place == 0 ? a : place == 1 ? b : place == 2 ? c : d;
"""

# A thread computes a block of random words for each four elements of the 128 bits that it loads.
_WIDE_DROP = """{header}
extern "C" __global__ void {name}_wide({parameters}Word* words_y, const T factor,
    unsigned long long least, long long n, long long per_row, unsigned int begin,
    unsigned int call, unsigned int step, unsigned int low, unsigned int high) {{
  const long long n_threads = gridDim.x * (long long)blockDim.x;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += n_threads) {{
    {loaded}
    alignas(16) T own_y[{many}];
    const long long row = i / per_row;
    const unsigned int first = (unsigned int)((i - row * per_row) * {blocks});
    #pragma unroll
    for (int k = 0; k < {blocks}; k++) {{
      unsigned int a = first + k, b = call, c = step, d = begin + (unsigned int)row;
      {rounds}
      const unsigned int found[4] = {{ a, b, c, d }};
      #pragma unroll
      for (int u = 0; u < 4; u++) {{
        const unsigned int word = found[u];
        {elements}
        T y;
        y = {value};
        own_y[4 * k + u] = y;
      }}
    }}
    words_y[i] = *(Word*)own_y;
  }}
}}
"""


@functools.cache
def _wide_drop(name, value, reads, char):
    many = WIDTH // np.dtype(char).itemsize
    return _WIDE_DROP.format(
        header=HEADER.format(kind=TYPES[char]),
        name=name,
        parameters="".join(f"const Word* words_{x}, " for x in reads),
        loaded=" ".join(f"alignas(16) T own_{x}[{many}]; *(Word*)own_{x} = words_{x}[i];"
                        for x in reads),
        many=many,
        blocks=many // 4,
        rounds=_ROUNDS,
        elements=" ".join(f"const T {x} = own_{x}[4 * k + u];" for x in reads),
        value=value,
    )  # fmt: skip


def _can_be_wide(arrays, n):
    """Returns whether each 128-bit word of the arrays holds whole blocks of elements of a single
    row."""
    return all(
        x.dtype.char in "ef"
        and x.flags.c_contiguous
        and cuda_wide.is_aligned(x)
        and n % (WIDTH // x.itemsize) == 0
        for x in arrays
    )


@random_words.kernel("cuda_random", dtypes=())
def _random_words(
    samples: Array, begins: Array, n_blocks: int, call: int, step: int, low: int, high: int
) -> Array:
    """See :func:`mpchain.kernels.random_words`."""
    kernel = cuda.elementwise(
        "raw L samples, raw P begins, int64 n_blocks, "
        "uint32 call, uint32 step, uint32 low, uint32 high",
        "raw uint32 words",
        _BLOCK,
        "mpchain_random_words",
    )
    words = cuda.get_array_module(samples).empty((len(samples), 4 * n_blocks), np.uint32)
    numbers = (np.uint32(x % (1 << 32)) for x in (call, step, low, high))
    kernel(samples, begins, n_blocks, *numbers, words, size=len(samples) * n_blocks)
    return words


def _refuse_drop(x: Array, h: Array | None, counters: Counters, ratio: float) -> str | None:
    return None if x.size else "no elements"


@drop.kernel("cuda_random", _refuse_drop, HALF_TO_DOUBLE)
def _drop(x: Array, h: Array | None, counters: Counters, ratio: float) -> Array:
    """See :func:`mpchain.kernels.drop`."""
    name, value = "mpchain_drop", "word >= least ? x * factor : 0"
    if h is not None:
        name, value = "mpchain_add_dropped", f"h + ({value})"
    y = cuda.get_array_module(x).empty(x.shape, x.dtype)
    return _run(name, value, {"x": x} if h is None else {"h": h, "x": x}, y, counters, ratio)


def _run(name, value, reads, y, counters, ratio):
    """Writes a value for each element into ``y``, and returns ``y``."""
    # an element is kept if its word is at least this number
    least = np.uint64(math.ceil(ratio * 2**32 - 0.5))
    begin, n_rows, *numbers = counters
    numbers = [np.uint32(x % (1 << 32)) for x in (begin, *numbers)]
    factor, n = y.dtype.type(1 / (1 - ratio)), y.size // n_rows
    arrays: Any = [*reads.values()]
    if not _can_be_wide([*arrays, y], n):
        ins = "".join(f"T {x}, " for x in reads) + "T factor, uint64 least, int64 n, "
        ins += "uint32 begin, uint32 call, uint32 step, uint32 low, uint32 high"
        kernel = cuda.elementwise(ins, "T y", f"{_DROP}y = {value};", name)
        return kernel(*arrays, factor, least, n, *numbers, y)
    text, many = _wide_drop(name, value, "".join(reads), y.dtype.char), WIDTH // y.itemsize
    sizes = np.int64(y.size // many), np.int64(n // many)
    n_blocks = min(-(-y.size // (many * THREADS)), BLOCKS)
    kernel = cuda.raw(text, f"{name}_wide")
    kernel((n_blocks,), (THREADS,), (*arrays, y, factor, least, *sizes, *numbers))
    return y


def _refuse_draw(x: Array, counters: Counters, ratio: float) -> str | None:
    return None if x.size else "no elements"


@draw_kept.kernel("cuda_random", _refuse_draw, HALF_TO_DOUBLE)
def _draw_kept(x: Array, counters: Counters, ratio: float) -> Array:
    """See :func:`mpchain.kernels.draw_kept`."""
    y = cuda.get_array_module(x).empty(x.shape, x.dtype)
    return _run("mpchain_kept", "word >= least ? (T)1 : (T)0", {}, y, counters, ratio)
