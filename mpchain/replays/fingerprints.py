"""Fingerprints of parameters: checksums of bits, and sums whose rounding error is known."""

import functools
import math
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpchain import backend
from mpchain.typing import Array

_WORDS = 512  # number of words of 8 bytes in a row; the columns of all rows are summed
_ROW = 1024  # number of consecutive elements to which signs are applied
_EXACT = 1 << 16  # number of elements up to which sums are computed in float64
_FORM = struct.Struct("<Iff")

SIZE = _FORM.size
"""Number of bytes of a packed fingerprint."""


class Fingerprint(NamedTuple):
    """The fingerprint of one or several arrays.

    Attributes:
        bits: a checksum that depends on each bit.
        sum: the sum of the elements with fixed random signs. If elements change by ``d``, the sum
            changes by about the norm of ``d``.
        norm: the Euclidean norm.

    Example:
        >>> take(np.array([3.0, 4.0], np.float32)).norm
        5.0
    """

    bits: int
    sum: float
    norm: float

    def pack(self) -> bytes:
        """Returns :data:`SIZE` bytes, which :func:`unpack` reads; floats become float32."""
        return _FORM.pack(self.bits, _single(self.sum), _single(self.norm))


def _single(x):
    return float(np.clip(x, -3e38, 3e38)) if math.isfinite(x) else x


def unpack(data: bytes) -> list[Fingerprint]:
    """Returns the fingerprints that :meth:`Fingerprint.pack` wrote one after another.

    >>> unpack(take(np.zeros(3, np.float32)).pack())[0].norm
    0.0
    """
    return [Fingerprint(*fields) for fields in _FORM.iter_unpack(data)]


def unpacked(fingerprint: Fingerprint) -> Fingerprint:
    """Rounds a fingerprint to the precision of a record.

    >>> unpacked(Fingerprint(1, 0.1, 1.0)).sum
    0.10000000149011612
    """
    return unpack(fingerprint.pack())[0]


def join(parts: Sequence[Fingerprint]) -> Fingerprint:
    """Returns the fingerprint of several arrays together.

    >>> join([take(np.ones(9, np.float32)), take(np.ones(16, np.float32))]).norm
    5.0
    """
    if len(parts) == 1:
        return parts[0]
    bits = zlib.crc32(struct.pack(f"<{len(parts)}I", *[part.bits for part in parts]))
    total = math.fsum(part.sum for part in parts) if all_finite(parts) else math.nan
    return Fingerprint(bits, total, math.hypot(*[part.norm for part in parts]))


def all_finite(parts: Sequence[Fingerprint]) -> bool:
    """Returns whether no element is infinite or NaN.

    >>> all_finite([take(np.array([1, np.inf]))])
    False
    """
    return all(math.isfinite(part.sum) and math.isfinite(part.norm) for part in parts)


def take(x: Array) -> Fingerprint:
    """Returns the fingerprint of an array.

    Args:
        x: array of any shape and of a floating-point dtype, on the CPU or a GPU.

    Example:
        >>> a, b = np.zeros(5000, np.float32), np.zeros(5000, np.float32)
        >>> b[4321] = 1e-30
        >>> take(a).bits == take(b).bits
        False
    """
    xp = backend.get_array_module(x)
    x = xp.ascontiguousarray(x).reshape(-1)
    with np.errstate(all="ignore"):
        return Fingerprint(_bits(xp, x), *_sums(xp, x))


def _bits(xp, x):
    data = x.view(np.uint8)
    n = data.size // (8 * _WORDS) * (8 * _WORDS)
    checksum = zlib.crc32(_bytes(data[n:]))
    if n:
        rows = data[:n].view(np.uint64).reshape(-1, _WORDS)
        checksum = zlib.crc32(_bytes(xp.add.reduce(rows, axis=0)), checksum)
    return checksum


def _bytes(x):
    return (x if isinstance(x, np.ndarray) else x.get()).tobytes()


def _sums(xp, x):
    if x.dtype.itemsize < 4:
        x = x.astype(np.float32)
    if x.size <= _EXACT:
        x = (x if xp is np else x.get()).astype(np.float64)
        return float(x @ _signs(len(x), np.float64)), float(np.linalg.norm(x))
    n = x.size // _ROW * _ROW
    rows = x[:n].reshape(-1, _ROW) @ xp.asarray(_signs(_ROW, x.dtype))
    rest = x[n:]
    rows, rest = (np.asarray(y if xp is np else y.get(), np.float64) for y in (rows, rest))
    total = rows @ _signs(len(rows), np.float64) + rest.sum()
    # The root mean square of a row's sum with random signs is the row's norm.
    return float(total), math.hypot(np.linalg.norm(rows), np.linalg.norm(rest))


@functools.lru_cache(maxsize=64)
def _signs(n, dtype):
    signs = 1 - 2 * np.random.RandomState(n % 2**32).randint(0, 2, n)
    return signs.astype(dtype)
