"""Encodings with 16 bits per element, rounded to nearest, for messages."""

import numpy as np

from mpchain import backend
from mpchain.typing import Array, DTypeLike


class Float16:
    """IEEE half precision: 11 significant bits, up to 65504.

    Example:
        >>> Float16.encode(np.array([0.1, 1e6]))
        array([0.1, inf], dtype=float16)
    """

    dtype = np.dtype(np.float16)

    @staticmethod
    def encode(x: Array) -> Array:
        """Returns a float array as float16; numbers that are too large become infinite."""
        with np.errstate(over="ignore"):
            return x.astype(np.float16)

    @staticmethod
    def decode(encoded: Array, dtype: DTypeLike) -> Array:
        """Returns an encoded array as an array of a float dtype."""
        return encoded.astype(dtype)


class BFloat16:
    """The upper half of a float32, as an array of uint16: 8 significant bits, range of float32.

    Example:
        >>> BFloat16.decode(BFloat16.encode(np.array([0.1, 1e6])), "float32")
        array([1.00097656e-01, 9.99424000e+05], dtype=float32)
    """

    dtype = np.dtype(np.uint16)

    @staticmethod
    def encode(x: Array) -> Array:
        bits = x.astype(np.float32).view(np.uint32)
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        is_nan = (bits & 0x7FFFFFFF) > 0x7F800000  # rounding could make these infinite
        xp = backend.get_array_module(x)
        return xp.where(is_nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)

    @staticmethod
    def decode(encoded: Array, dtype: DTypeLike) -> Array:
        return (encoded.astype(np.uint32) << 16).view(np.float32).astype(dtype, copy=False)


HALF_PRECISION = {"float16": Float16, "bfloat16": BFloat16}
"""The encodings of messages, by the name of their dtype."""
