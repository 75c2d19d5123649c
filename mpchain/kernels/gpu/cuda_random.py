"""Random words on GPUs, and dropout by them: one kernel each, with the words of the host."""

import math

import numpy as np

from mpchain.backends import cuda
from mpchain.kernels.operation import HALF_TO_DOUBLE
from mpchain.kernels.philox import Counters, drop, random_words
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

# Each thread computes the four words of its element's block, which is faster than to store them.
_DROP = f"""
const ptrdiff_t row = i / n, element = i - row * n;
unsigned int a = element / 4, b = call, c = step, d = begin + (unsigned int)row;
{_ROUNDS}
const int place = element % 4;
const unsigned int word = place == 0 ? a : place == 1 ? b : place == 2 ? c : d;
"""


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
    ins = "T x, T factor, uint64 least, int64 n, "
    ins += "uint32 begin, uint32 call, uint32 step, uint32 low, uint32 high"
    name, value = "mpchain_drop", "word >= least ? x * factor : 0"
    if h is not None:
        ins, name, value = f"T h, {ins}", "mpchain_add_dropped", f"h + ({value})"
    kernel = cuda.elementwise(ins, "T y", f"{_DROP}y = {value};", name)
    least = np.uint64(math.ceil(ratio * 2**32 - 0.5))  # the first word of what is kept
    begin, n_rows, *numbers = counters
    numbers = (np.uint32(x % (1 << 32)) for x in (begin, *numbers))
    factor = x.dtype.type(1 / (1 - ratio))
    return kernel(*([] if h is None else [h]), x, factor, least, x.size // n_rows, *numbers)
