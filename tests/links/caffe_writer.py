"""Writes .caffemodel bytes for tests, by a separate encoder with the numbers of ``caffe.proto``."""

import struct

import numpy as np


def varint(value):
    value %= 1 << 64
    digits = []
    while True:
        value, digit = divmod(value, 128)
        digits.append(digit + (128 if value else 0))
        if not value:
            return bytes(digits)


def integer(number, value):
    return varint(number * 8) + varint(value)


def floating(number, value):
    return varint(number * 8 + 5) + struct.pack("<f", value)


def inside(number, *parts):
    content = b"".join(p.encode() if isinstance(p, str) else p for p in parts)
    return varint(number * 8 + 2) + varint(len(content)) + content


def blob(number, array, kind="f"):
    """Returns the bytes of an array with its shape (``kind`` d: in double precision)."""
    array = np.asarray(array)
    shape = inside(7, inside(1, *map(varint, array.shape)))
    return inside(
        number, shape, inside(5 if kind == "f" else 8, array.astype(f"<{kind}").tobytes())
    )


def old_blob(number, array):
    """Returns the bytes of an array in the form of old files, with four sizes."""
    shape = (1,) * (4 - array.ndim) + array.shape
    sizes = b"".join(integer(i + 1, n) for i, n in enumerate(shape))
    return inside(number, sizes, inside(5, array.astype("<f4").tobytes()))


def layer(name, kind, bottoms, tops, *parts):
    names = [inside(3, b) for b in bottoms] + [inside(4, t) for t in tops]
    return inside(100, inside(1, name), inside(2, kind), *names, *parts)


def old_layer(name, kind, bottoms, tops, *parts):
    names = [inside(2, b) for b in bottoms] + [inside(3, t) for t in tops]
    return inside(2, *names, inside(4, name), integer(5, kind), *parts)
