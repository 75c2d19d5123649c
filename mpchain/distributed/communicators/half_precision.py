"""Numbers with fewer bits, for messages: 16 per element, rounded to nearest."""

import numpy as np

from mpchain import backend


class Float16:
    """IEEE half precision: 11 significant bits, up to 65504."""

    dtype = np.dtype(np.float16)

    @staticmethod
    def encode(x):
        """Returns a float array as float16; what is too large becomes infinite."""
        with np.errstate(over="ignore"):
            return x.astype(np.float16)

    @staticmethod
    def decode(encoded, dtype):
        """Returns what :meth:`encode` returned as an array of a float dtype."""
        return encoded.astype(dtype)


class BFloat16:
    """The upper half of a float32, as an array of uint16: 8 significant bits, range of float32."""

    dtype = np.dtype(np.uint16)

    @staticmethod
    def encode(x):
        bits = x.astype(np.float32).view(np.uint32)
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        is_nan = (bits & 0x7FFFFFFF) > 0x7F800000  # rounding could make these infinite
        return (
            backend.get_array_module(x)
            .where(is_nan, (bits >> 16) | 0x40, rounded)
            .astype(np.uint16)
        )

    @staticmethod
    def decode(encoded, dtype):
        return (encoded.astype(np.uint32) << 16).view(np.float32).astype(dtype, copy=False)


HALF_PRECISION = {"float16": Float16, "bfloat16": BFloat16}
"""The dtypes, by name, in which sums can travel."""
