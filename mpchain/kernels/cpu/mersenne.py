"""Draws the masks of dropout from NumPy's global generator, with the bits that NumPy draws.

NumPy calls a function for each number of its Mersenne Twister. The compiled loop here computes 624
words at a time, in the memory of the generator, and writes the factors of dropout without storing
the random numbers.

See M. Matsumoto and T. Nishimura, Mersenne Twister: a 623-dimensionally equidistributed uniform
pseudorandom number generator, ACM TOMACS 8, 1998.
"""

import ctypes
import functools
import math
import textwrap
from typing import Any

import numpy as np

from mpchain.kernels.cpu.compiler import Switch, compile_written_loop, load_numba
from mpchain.typing import Array

_N_WORDS = 624
_FILL = """
def fill(words, y, least, factor):
    place, done, zero = np.int64(words[624]), 0, factor - factor
    while done < y.size:
        is_split, a = place == 623, words[623]  # the second word of a number is of the next turn
        for _ in range(place >= 623):
            TWIST
            place = np.int64(0)
        for _ in range(is_split):
            b = words[0]
            NUMBER
            y[done] = factor if number >= least else zero
            done, place = done + 1, place + 1
        n = min((624 - place) // 2, y.size - done)
        own, part = words[place : place + 2 * n], y[done : done + n]
        for i in range(n):
            a, b = own[2 * i], own[2 * i + 1]
            NUMBER
            part[i] = factor if number >= least else zero
        place, done = place + 2 * n, done + n
    words[624] = place
"""
_TWIST = """
# each of these loops reads words that the loops before it have written
for i in range(227):
    t = (words[i] & np.uint32(0x80000000)) | (words[i + 1] & np.uint32(0x7FFFFFFF))
    words[i] = words[i + 397] ^ (t >> np.uint32(1)) ^ ((t & np.uint32(1)) * np.uint32(0x9908B0DF))
for i in range(227, 454):
    t = (words[i] & np.uint32(0x80000000)) | (words[i + 1] & np.uint32(0x7FFFFFFF))
    words[i] = words[i - 227] ^ (t >> np.uint32(1)) ^ ((t & np.uint32(1)) * np.uint32(0x9908B0DF))
for i in range(454, 623):
    t = (words[i] & np.uint32(0x80000000)) | (words[i + 1] & np.uint32(0x7FFFFFFF))
    words[i] = words[i - 227] ^ (t >> np.uint32(1)) ^ ((t & np.uint32(1)) * np.uint32(0x9908B0DF))
t = (words[623] & np.uint32(0x80000000)) | (words[0] & np.uint32(0x7FFFFFFF))
words[623] = words[396] ^ (t >> np.uint32(1)) ^ ((t & np.uint32(1)) * np.uint32(0x9908B0DF))
"""
_NUMBER = """
a ^= a >> np.uint32(11)
a ^= (a << np.uint32(7)) & np.uint32(0x9D2C5680)
a ^= (a << np.uint32(15)) & np.uint32(0xEFC60000)
a ^= a >> np.uint32(18)
b ^= b >> np.uint32(11)
b ^= (b << np.uint32(7)) & np.uint32(0x9D2C5680)
b ^= (b << np.uint32(15)) & np.uint32(0xEFC60000)
b ^= b >> np.uint32(18)
number = np.int64(a >> np.uint32(5)) * np.int64(1 << 26) + np.int64(b >> np.uint32(6))
"""


class GlobalMasks:
    """An object that recorders treat as a random generator: it draws masks from NumPy's global
    generator.

    Attributes:
        switch: decides when the loop draws instead of NumPy.

    Example:
        >>> np.random.seed(0)
        >>> GlobalMasks().factors((4,), np.dtype("f"), 0.6)
        array([0. , 2.5, 2.5, 0. ], dtype=float32)
    """

    def __init__(self):
        self.switch = Switch()

    def factors(self, shape: tuple[int, ...], dtype: np.dtype, ratio: float) -> Array:
        """Returns an array that is 1 / (1 - ratio) where ``np.random.random_sample(shape)`` is at
        least ``ratio``, and 0 elsewhere."""
        words = self._words(math.prod(shape), dtype)
        if words is None:
            keep = np.random.random_sample(shape) >= ratio
            return keep.astype(dtype) * dtype.type(1 / (1 - ratio))
        y = np.empty(shape, dtype)
        # A number is an integer below 2 ** 53, divided by 2 ** 53.
        least, factor = math.ceil(ratio * 2.0**53), dtype.type(1 / (1 - ratio))
        with _generator().lock:
            _loop()(words, y.reshape(-1), least, factor)
        return y

    def _words(self, n, dtype):
        """Returns the generator's memory, 624 words and the position of the next one; None if NumPy
        should draw."""
        generator = _generator()
        if dtype.char not in "fd" or type(generator) is not np.random.MT19937:
            return None
        is_due = self.switch.is_due(n, _loop)
        return _words_of(generator) if n and is_due and _is_known() else None


def _generator():
    random: Any = np.random  # NumPy's types do not know the function
    return random.get_bit_generator()


def _words_of(generator):
    address = generator.ctypes.state_address
    return np.ctypeslib.as_array((ctypes.c_uint32 * (_N_WORDS + 1)).from_address(address))


@functools.cache
def _is_known():
    """Returns whether numba is installed and NumPy's generator computes what the loop does."""
    if load_numba() is None:
        return False
    generator, same = np.random.MT19937(5), np.random.MT19937(5)
    legacy, found = np.random.RandomState(same), np.empty(1000)
    _loop()(_words_of(generator), found, 1 << 52, np.float64(1))
    right = legacy.random_sample(1000) >= 0.5
    return bool((found == right).all()) and generator.random_raw() == same.random_raw()


@functools.cache
def _loop():
    text = _FILL
    for name, lines in (("TWIST", _TWIST), ("NUMBER", _NUMBER)):
        text = text.replace(name, textwrap.indent(lines, " " * 12).strip())
    return compile_written_loop("masks", text)
