"""Checks and describes arrays that ranks send, and cuts arrays into messages and partitions."""

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.backends.dtypes import as_dtype, is_bfloat16, is_floating, is_half
from mpchain.typing import Array, DTypeLike
from mpchain.variable import Variable


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
        is_nan = (bits & 0x7FFFFFFF) > 0x7F800000  # rounding could turn NaNs into infinities
        xp = backend.get_array_module(x)
        return xp.where(is_nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)

    @staticmethod
    def decode(encoded: Array, dtype: DTypeLike) -> Array:
        return (encoded.astype(np.uint32) << 16).view(np.float32).astype(dtype, copy=False)


HALF_PRECISION = {"float16": Float16, "bfloat16": BFloat16}
"""The encodings of messages, by the name of their dtype."""


_Class = TypeVar("_Class", bound=type)

_NAMES = ("int32", "int64", "float16", "bfloat16", "float32", "float64")
_DTYPES = {np.dtype(name) for name in _NAMES if name != "bfloat16"}

_SUMMED = {dtype for dtype in _DTYPES if not is_half(dtype)}

PIECE = 2**30
"""The most elements in one message: before MPI-4, the standard counts in 32-bit integers."""


def summed_dtype(dtype: np.dtype) -> np.dtype | None:
    """Returns the dtype in which ranks sum arrays of a dtype; None if they cannot send the dtype.

    >>> summed_dtype(np.dtype("float16")), summed_dtype(np.dtype("int8"))
    (dtype('float32'), None)
    """
    if is_half(dtype):
        return np.dtype(np.float32)
    return dtype if dtype in _DTYPES else None


def check_array(function: str, argument: str, x: object) -> Array:
    """Returns ``x`` as an array; raises TypeError if ranks cannot send it.

    >>> check_array("allreduce", "x", np.float32(2))
    array(2., dtype=float32)
    """
    if type(x) is np.ndarray and x.dtype in _DTYPES:
        return x
    if isinstance(x, np.generic):
        x = np.asarray(x)
    if isinstance(x, Variable):
        differentiable = function.removeprefix("i")
        raise TypeError(
            f"{function}: {argument} must be an array, not a {type(x).__name__}: pass x.array, "
            f"or call mpchain.distributed.functions.{differentiable}, which takes Variables "
            "and can be differentiated"
        )
    if isinstance(x, (tuple, list)):
        raise TypeError(f"{function}: {argument} must be one array, not a {type(x).__name__}")
    if not (isinstance(x, np.ndarray) or cuda.is_gpu_array(x)):
        raise TypeError(
            f"{function}: {argument} must be a NumPy or CuPy array, not {type(x).__name__} "
            "(for other objects, use the methods whose names end in _obj)"
        )
    if summed_dtype(x.dtype) is None:
        raise TypeError(
            f"{function}: {argument} has dtype {x.dtype}, but must have one of {', '.join(_NAMES)}"
        )
    return x


def check_arrays(function: str, argument: str, xs: Sequence[Array], size: int) -> list[Array]:
    """Returns ``xs`` as a list; raises ValueError if its length is not ``size``, and TypeError if
    ranks cannot send an element."""
    if not hasattr(xs, "__len__") or len(xs) != size:
        held = f"{len(xs)}" if hasattr(xs, "__len__") else f"a {type(xs).__name__}"
        raise ValueError(
            f"{function}: {argument} must hold {size} arrays, one per rank, not {held}"
        )
    return [check_array(function, f"{argument}[{rank}]", x) for rank, x in enumerate(xs)]


def check_contiguous(function: str, x: Array) -> None:
    """Raises ValueError, or TypeError, if ``x`` is not a contiguous array.

    >>> check_contiguous("ibcast", np.ones(2))
    """
    check_array(function, "x", x)
    if isinstance(x, np.generic) or not x.flags.c_contiguous:
        raise ValueError(f"{function}: x must be contiguous, but has strides {x.strides}")


def check_addends(
    function: str,
    x: Array,
    wire_dtype: str | None,
    wire_dtypes: Sequence[str | None] = (None, "sparse", *HALF_PRECISION),
) -> None:
    """Raises ValueError, or TypeError, if ``x`` cannot be summed in place.

    >>> check_addends("iallreduce", np.ones(2), "float16")
    """
    if type(x) is np.ndarray and x.dtype in _SUMMED and x.flags.c_contiguous and wire_dtype is None:
        return  # most arrays need no other check
    check_contiguous(function, x)
    if summed_dtype(x.dtype) != x.dtype:
        raise ValueError(
            f"{function}: x must be an array of a dtype that can be summed in place (int32, int64, "
            f"float32 or float64), not {x.dtype}"
        )
    if wire_dtype not in wire_dtypes or (wire_dtype is not None and not is_floating(x.dtype)):
        raise ValueError(
            f"{function}: wire_dtype must be one of {', '.join(map(str, wire_dtypes))}, and "
            f"None unless x is a float array; it is {wire_dtype!r}, for {x.dtype}"
        )


def check_pieces(function: str, x: Array, size: int, wire_dtype: str | None = None) -> None:
    """Raises ValueError, or TypeError, if ``x`` does not hold an addend for each rank.

    >>> check_pieces("ireduce_scatter", np.ones((2, 3)), size=2)
    """
    check_addends(function, x, wire_dtype, (None, *HALF_PRECISION))
    if x.ndim == 0 or len(x) != size:
        raise ValueError(
            f"{function}: x must hold {size} arrays, one per rank, but has shape {x.shape}"
        )


def check_room(function: str, x: object, out: Array | None, size: int) -> Array:
    """Returns ``x`` as an array; raises ValueError if ``out`` is neither None nor an array that can
    hold such an array of each rank.

    >>> check_room("iallgather", np.ones(2), np.empty((3, 2)), size=3)
    array([1., 1.])
    """
    x = check_array(function, "x", x)
    if out is not None:
        kind = f"contiguous NumPy array of shape {(size, *x.shape)} and dtype {x.dtype}"
        is_room = isinstance(out, np.ndarray) and out.flags.c_contiguous
        if not is_room or (out.shape, out.dtype) != ((size, *x.shape), x.dtype):
            raise ValueError(
                f"{function}: out must be a {kind}, but is a {type(out).__name__} of shape "
                f"{getattr(out, 'shape', None)} and dtype {getattr(out, 'dtype', None)}"
            )
    return x


def check_parts(function: str, parts: Sequence[Array] | None, x: Array) -> None:
    """Raises ValueError unless ``parts`` are flat arrays that together have the size and dtype of
    ``x``.

    >>> check_parts("iallreduce", [np.ones(2), np.ones(1)], np.ones(3))
    """
    if parts is not None:
        are_flat = all(y.dtype == x.dtype and y.ndim == 1 and y.flags.c_contiguous for y in parts)
        if not are_flat or sum(y.size for y in parts) != x.size:
            given = ", ".join(f"{y.shape} {y.dtype}" for y in parts)
            raise ValueError(
                f"{function}: parts must be flat contiguous arrays of {x.dtype} with {x.size} "
                f"elements together, like x, but are {given}"
            )


def describe(x: Array) -> tuple[tuple[int, ...], str, bool]:
    """Returns the shape and dtype of an array, and whether it is on a GPU, for its receiver.

    >>> describe(np.zeros((2, 3)))
    ((2, 3), '<f8', False)
    """
    dtype = x.dtype.name if is_bfloat16(x.dtype) else x.dtype.str
    return x.shape, dtype, cuda.is_gpu_array(x)


def make_room(description: tuple[tuple[int, ...], str, bool]) -> Array:
    """Returns an uninitialized array that fits the result of :func:`describe`.

    >>> make_room(((2, 3), "<f8", False)).shape
    (2, 3)
    """
    shape, dtype, on_gpu = description
    xp = cuda.cupy if on_gpu and cuda.available else np
    return xp.empty(shape, as_dtype(dtype))


def contiguous(x: Array) -> Array:
    """Returns ``x``, or a copy if it is not contiguous.

    >>> contiguous(np.eye(2)[:, 0]).flags.c_contiguous
    True
    """
    return backend.get_array_module(x).ascontiguousarray(x).reshape(x.shape)


def pieces(array: Array) -> Iterator[Array]:
    """Cuts a contiguous array into flat views that one message can carry.

    >>> [piece.size for piece in pieces(np.zeros((2, 3)))]
    [6]
    """
    flat = array.reshape(-1)
    for start in range(0, flat.size, PIECE):
        yield flat[start : start + PIECE]


def byte_pieces(array: Array) -> Iterator[Array]:
    """Cuts the bytes of a contiguous array as :func:`pieces` does.

    >>> [piece.size for piece in byte_pieces(np.zeros((2, 3)))]
    [48]
    """
    return pieces(array.reshape(-1).view(np.uint8))


@functools.lru_cache(maxsize=256)
def partition(n: int, index: int, n_parts: int) -> tuple[int, int]:
    """Returns the range (begin, end) of part ``index`` when ``n`` items are divided into
    ``n_parts`` parts; the first parts may have one item more than the last parts.

    >>> [partition(7, i, 3) for i in range(3)]
    [(0, 3), (3, 5), (5, 7)]
    """
    quotient, remainder = divmod(n, n_parts)
    begin = index * quotient + min(index, remainder)
    return begin, begin + quotient + (index < remainder)


def on_gpu_of_arrays(communicator_class: _Class) -> _Class:
    """Decorates a communicator class: its methods make the GPU of their arrays the current one.

    A method that gets no CuPy array, such as ``recv``, makes the communicator's ``gpu`` the
    current one, unless ``gpu`` is None.

    >>> on_gpu_of_arrays(type("OneMore", (type(comm),), {})).__name__
    'OneMore'
    """
    for name in _TAKE_ARRAYS:
        method = getattr(communicator_class, name)
        if not hasattr(method, "_makes_current"):
            setattr(communicator_class, name, _on_gpu(method))
    return communicator_class


_TAKE_ARRAYS = (
    "bcast gather allgather scatter alltoall reduce_scatter allreduce reduce send recv sendrecv "
    "ibcast iallgather ireduce_scatter _begin_sum_of_products begin_sum"
).split()


def _on_gpu(method):
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        if "cupy" not in sys.modules:
            return method(self, *args, **kwargs)
        given = [*args, *kwargs.values()]
        given += [x for xs in given if isinstance(xs, (tuple, list)) for x in xs]
        device = next((x.device for x in given if cuda.is_gpu_array(x)), self.gpu)
        with device or cuda.DummyDevice():
            return method(self, *args, **kwargs)

    vars(call)["_makes_current"] = True
    return call
