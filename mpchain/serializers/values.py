"""Converts values to arrays that every file format can hold, and back."""

from typing import Any

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.backends.dtypes import as_dtype, is_bfloat16, is_floating
from mpchain.serializer import SerializationError
from mpchain.typing import Array

NONE_DTYPE = np.dtype([("None", "?")])
"""None is stored as an empty array of this dtype."""

_BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""The stored dtype of bfloat16, which .npz and HDF5 files lack: a field of integers."""


def to_array(key: str, value: object) -> Array:
    """Returns the host array that represents a value in a file.

    Args:
        key: the name of the value, for messages.
        value: an array or variable on any device, a scalar, a string, a list of these, or None.

    Raises:
        TypeError: NumPy has no plain dtype for the value.

    Example:
        >>> to_array("scale", 0.5), is_none(to_array("seed", None))
        (array(0.5), True)
    """
    if value is None:
        return np.empty(0, NONE_DTYPE)
    value = getattr(value, "array", value)
    array = np.asarray(cuda.to_cpu(value) if cuda.is_gpu_array(value) else value)
    if array.dtype.kind in "OV" and not is_bfloat16(array.dtype):
        raise TypeError(
            f"{key!r} cannot be saved: a value of type {type(value).__name__} becomes an array of "
            f"dtype {array.dtype}, and only numbers, booleans, strings and None are stored"
        )
    return array


def as_stored(array: Array) -> Array:
    """Returns the form of an array in .npz and HDF5 files: a view of a bfloat16 array, and any
    other array unchanged.

    Example:
        >>> as_stored(np.ones(2, mpchain.mixed_bf16)).dtype, as_stored(np.ones(2)).dtype
        (dtype([('bfloat16', '<u2')]), dtype('float64'))
    """
    return array.view(_BFLOAT16) if is_bfloat16(array.dtype) else array


def loaded_dtype(dtype: np.dtype) -> np.dtype:
    """Returns the dtype that a dtype in a file represents; see :func:`as_stored`.

    Raises:
        ImportError: the result is bfloat16, and ml_dtypes is not installed.

    Example:
        >>> loaded_dtype(np.dtype([("bfloat16", "<u2")])).name
        'bfloat16'
    """
    return as_dtype("bfloat16") if dtype == _BFLOAT16 else dtype


def is_none(array: Array) -> bool:
    """Returns whether an array is the result of :func:`to_array` for None, or holds the object
    None."""
    return array.dtype == NONE_DTYPE or (array.shape == () and array[()] is None)


def is_array(value: object) -> bool:
    """Returns whether a value is an array of NumPy or CuPy."""
    return isinstance(value, np.ndarray) or cuda.is_gpu_array(value)


def header_of(array: Array) -> tuple[tuple[int, ...], np.dtype] | None:
    """Returns ``(shape, dtype)`` of an array from a file; None if the array represents None."""
    return None if is_none(array) else (array.shape, array.dtype)


def check_shape(shape: tuple[Any, ...]) -> None:
    """Raises ValueError unless all elements of a shape from a file are integers of at least 0."""
    if not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"{tuple(shape)} is not a shape, which has only integers of at least 0")


def as_bytes(array: Array) -> Array:
    """Returns an array's bytes as uint8 (*array.shape, itemsize), for formats that lack its dtype.

    Example:
        >>> from_bytes(as_bytes(np.array(["a", "b"])), "<U1")
        array(['a', 'b'], dtype='<U1')
    """
    flat = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    return flat.reshape(*array.shape, array.dtype.itemsize)


def from_bytes(array: Array, dtype: str) -> Array:
    """Returns the array of a dtype from the bytes that :func:`as_bytes` returned.

    Raises:
        ValueError: ``array`` has a wrong shape or dtype, or ``dtype`` holds objects.
    """
    if dtype == "None":
        return np.array(None)
    d = np.dtype(dtype)
    if d.hasobject or array.dtype != np.uint8 or array.shape[-1:] != (d.itemsize,):
        raise ValueError(
            f"an array of {array.dtype} of shape {array.shape} does not hold the bytes of dtype {d}"
        )
    if d.itemsize == 0:  # this is a dtype of empty strings
        return np.empty(array.shape[:-1], d)
    return np.frombuffer(array.tobytes(), d).reshape(array.shape[:-1])


def from_array(key: str, array: Array, value: Any) -> Any:
    """Restores a value from an array of a file; see :func:`to_array`.

    Args:
        key: the name of the value, for messages.
        array: the stored array. If it represents None, the result is None.
        value: the current value. An array or variable is overwritten in place; a scalar, string,
            list or tuple determines the type of the result, except that an int may become a float
            or complex; for None the result is a copy of the array.

    Raises:
        SerializationError: the stored array does not match the current value.

    Example:
        >>> from_array("n", np.array(3), 0)
        3
    """
    if is_none(array):
        return None
    problem = misfit(key, array.shape, array.dtype, value)
    if problem:
        raise SerializationError(problem)
    target = getattr(value, "array", value)
    if target is None:
        return array.copy()
    if is_array(target):
        # NumPy converts bfloat16 only in explicit conversions.
        is_strange = is_bfloat16(array.dtype) or is_bfloat16(target.dtype)
        backend.copyto(target, array.astype(target.dtype) if is_strange else array)
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(array.tolist())
    return _scalar(key, array, value)


def misfit(key: str, shape: tuple[int, ...], dtype: np.dtype, value: Any) -> str | None:
    """Returns the reason why a stored array with a shape and dtype cannot restore a value; None if
    it can.

    Args:
        key: the name of the value, for the message.
        value: the current value; see :func:`from_array`.
    """
    target = getattr(value, "array", value)
    if target is None or isinstance(value, (list, tuple)):
        return None
    if not is_array(target):
        here = f"is a {type(value).__name__} here"
        return None if shape == () else f"{key!r} has shape {shape} in the file but {here}"
    if target.shape != shape:
        return f"{key!r} has shape {shape} in the file but {target.shape} in the object"
    converts = is_floating(dtype, target.dtype) or np.can_cast(dtype, target.dtype, "same_kind")
    if not converts:
        return f"{key!r} has dtype {dtype} in the file but {target.dtype} in the object"
    return None


def _scalar(key, array, value):
    if isinstance(value, int) and (is_floating(array.dtype) or array.dtype.kind == "c"):
        return array.item()  # a value that began as the integer 0 may have become 0.5
    try:
        return type(value)(array[()])
    except (TypeError, ValueError) as error:
        raise SerializationError(
            f"{key!r} is {array[()]!r} in the file but a {type(value).__name__} here"
        ) from error
