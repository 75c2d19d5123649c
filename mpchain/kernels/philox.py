"""The counter-based generator Philox4x32-10: random words are a function of counters and a key."""

from typing import NamedTuple

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.kernels import thresholds
from mpchain.kernels.operation import Operation, are_alike
from mpchain.typing import Array

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85  # each round adds these numbers to the two words of the key
_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_ROUNDS = 10


class Counters(NamedTuple):
    """The counters and key of an array's random words; see :func:`random_words`.

    Attributes:
        first: the sample index of the first row; the following rows have the next indices.
        n_rows: the number of rows, into which the array's elements are divided in order.
        call, step: the second and the third word of all counters.
        low, high: the two words of the key.

    Example:
        >>> from mpchain.kernels import Counters
        >>> Counters(first=4, n_rows=2, call=0, step=7, low=1, high=2).n_rows
        2
    """

    first: int
    n_rows: int
    call: int
    step: int
    low: int
    high: int


@Operation.given(
    "a sample for each begin",
    lambda samples, begins, *_: (
        samples.shape == begins.shape and samples.__class__ is begins.__class__
    ),
)
def random_words(
    samples: Array, begins: Array, n_blocks: int, call: int, step: int, low: int, high: int
) -> Array:
    """Returns ``n_blocks`` blocks of four random 32-bit words for each row.

    The counter of block ``b`` of row ``r`` is (begins[r] + b, call, step, samples[r]), each word
    modulo 2**32.

    Args:
        samples, begins: arrays (rows,) of integers.
        n_blocks: the number of blocks for each row.
        call, step: values in the formula above.
        low, high: the two words of the key.

    Returns:
        array of uint32 (rows, 4 n_blocks).

    Example:
        >>> from mpchain.kernels import random_words
        >>> random_words(np.array([0]), np.array([0]), 1, 0, 0, 0, 0)
        array([[1713891541, 3781805453, 3159862348, 2600524760]], dtype=uint32)

    See J. K. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011.
    """
    xp = get_array_module(samples)
    total = len(samples) * n_blocks
    words = xp.empty((total, 4), np.uint32)
    chunk = thresholds.random_chunk if xp is np else max(total, 1)
    for begin in range(0, total, chunk):
        place = slice(begin, min(begin + chunk, total))
        row, block = xp.divmod(xp.arange(place.start, place.stop), n_blocks)
        block += begins[row]
        counters = block, xp.full_like(block, call), xp.full_like(block, step), samples[row]
        results = _rounds([c.astype(np.uint64) & _MASK for c in counters], low, high)
        for i, result in enumerate(results):
            words[place, i] = result
    return words.reshape(len(samples), 4 * n_blocks)


@Operation.given(
    "x and h of the same shape and dtype",
    lambda x, h, *_: h is None or (h.shape == x.shape and are_alike(x, h)),
)
def drop(x: Array, h: Array | None, counters: Counters, ratio: float) -> Array:
    """Returns h + dropout(x), where dropout sets elements to zero whose random number is below
    ``ratio``, and divides the others by 1 - ``ratio``.

    The uniform random number of an element is (word + 1/2) / 2**32, where ``word`` is the element's
    random word.

    Args:
        h: an array of the shape and dtype of ``x``, or None for zero.

    Example:
        >>> from mpchain.kernels import Counters, drop
        >>> drop(np.ones(4), None, Counters(0, 1, 0, 0, 0, 0), 0.5)
        array([0., 2., 2., 2.])
    """
    factor, zero = x.dtype.type(1 / (1 - ratio)), x.dtype.type(0)
    y = get_array_module(x).where(_are_kept(x, counters, ratio), x * factor, zero)
    return y if h is None else h + y


@Operation
def draw_kept(x: Array, counters: Counters, ratio: float) -> Array:
    """Returns 1 for elements that :func:`drop` would keep and 0 for others; x is not read.

    Example:
        >>> from mpchain.kernels import Counters, draw_kept
        >>> draw_kept(np.ones(4), Counters(0, 1, 0, 0, 0, 0), 0.5)
        array([0., 1., 1., 1.])
    """
    return _are_kept(x, counters, ratio).astype(x.dtype)


def _are_kept(x, counters, ratio):
    xp, n_rows = get_array_module(x), counters.n_rows
    samples = xp.arange(counters.first, counters.first + n_rows)
    n = x.size // n_rows
    words = random_words(samples, xp.zeros_like(samples), -(-n // 4), *counters[2:])[:, :n]
    return ((words + 0.5) / 2.0**32 >= ratio).reshape(x.shape)


def _rounds(counters, low, high):
    a, b, c, d = counters
    for i in range(_ROUNDS):
        keys = [np.uint64((k + i * w) % (1 << 32)) for k, w in zip((low, high), _WEYL)]
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        b ^= second >> _SHIFT
        b ^= keys[0]
        d ^= first >> _SHIFT
        d ^= keys[1]
        a, b, c, d = b, second & _MASK, d, first & _MASK
    return a, b, c, d
