"""Which arrays travel between ranks, and the small steps that all communicators take with them."""

import numpy as np

from mpchain import backend
from mpchain.backends import cuda

WIRE_DTYPES = {
    np.dtype(dtype): np.dtype(wire)
    for dtype, wire in {
        "int32": "int32",
        "int64": "int64",
        "float16": "float32",
        "float32": "float32",
        "float64": "float64",
    }.items()
}
"""The dtypes that travel, and the dtype in which each is summed."""

PIECE = 2**30
"""Elements in one message: MPI libraries before version 4 count in 32-bit integers."""


def check_array(function, argument, x):
    """Returns ``x``, a NumPy scalar as an array; raises TypeError unless such arrays travel."""
    if isinstance(x, np.generic):
        x = np.asarray(x)
    if isinstance(x, (tuple, list)):
        raise TypeError(f"{function}: {argument} must be one array, not a {type(x).__name__}")
    if not (isinstance(x, np.ndarray) or cuda.is_gpu_array(x)):
        raise TypeError(
            f"{function}: {argument} must be a NumPy or CuPy array, not {type(x).__name__} "
            "(other objects travel by the methods whose names end in _obj)"
        )
    if x.dtype not in WIRE_DTYPES:
        allowed = ", ".join(map(str, WIRE_DTYPES))
        raise TypeError(
            f"{function}: {argument} has dtype {x.dtype}, but must have one of {allowed}"
        )
    return x


def check_arrays(function, argument, xs, size):
    """Checks that ``xs`` holds one array for each of ``size`` ranks, and returns them as a list."""
    if not hasattr(xs, "__len__") or len(xs) != size:
        held = f"{len(xs)}" if hasattr(xs, "__len__") else f"a {type(xs).__name__}"
        raise ValueError(
            f"{function}: {argument} must hold {size} arrays, one per rank, not {held}"
        )
    return [check_array(function, f"{argument}[{rank}]", x) for rank, x in enumerate(xs)]


def describe(x):
    """What a receiver must know to make room: shape, dtype, and whether on a GPU."""
    return x.shape, x.dtype.str, cuda.is_gpu_array(x)


def make_room(description):
    """Returns an uninitialized array for what :func:`describe` described."""
    shape, dtype, on_gpu = description
    xp = cuda.cupy if on_gpu and cuda.available else np
    return xp.empty(shape, dtype)


def contiguous(x):
    """Returns ``x``, or a copy of it, with its elements in a row."""
    return backend.get_array_module(x).ascontiguousarray(x).reshape(x.shape)


def pieces(array):
    """Cuts a contiguous array into flat views that one message can carry."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, PIECE):
        yield flat[start : start + PIECE]


def byte_pieces(array):
    """As :func:`pieces`, of the array's bytes."""
    return pieces(array.reshape(-1).view(np.uint8))


def partition(n, index, n_parts):
    """Returns the range of one of the parts into which ``n`` things are divided: the first have one
    more, where the number does not divide them."""
    quotient, remainder = divmod(n, n_parts)
    begin = index * quotient + min(index, remainder)
    return begin, begin + quotient + (index < remainder)
