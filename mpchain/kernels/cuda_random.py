"""Random words on GPUs: one kernel, whose words are those of the host."""

from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.kernels.philox import random_words
from mpchain.typing import Array

_BLOCK = """
const ptrdiff_t row = i / n_blocks;
unsigned int a = begins[row] + i % n_blocks, b = call, c = step, d = samples[row];
for (int round = 0; round < 10; round++) {
  const unsigned long long first = 0xD2511F53ull * a, second = 0xCD9E8D57ull * c;
  a = b ^ (unsigned int)(second >> 32) ^ (low + round * 0x9E3779B9u);
  c = d ^ (unsigned int)(first >> 32) ^ (high + round * 0xBB67AE85u);
  b = second; d = first;
}
words[4 * i] = a; words[4 * i + 1] = b; words[4 * i + 2] = c; words[4 * i + 3] = d;
"""


def _refuse(samples: Array, begins: Array, *numbers: Any) -> str | None:
    are_alike = cuda.is_gpu_array(samples) and cuda.is_gpu_array(begins)
    return None if are_alike else "not CuPy arrays"


@random_words.kernel("cuda_random", _refuse)
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
