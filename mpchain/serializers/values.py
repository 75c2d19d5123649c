"""Values to arrays that every file format can hold, and back."""

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.serializer import SerializationError

NONE_DTYPE = np.dtype([("None", "?")])
"""None is stored as an empty array of this dtype."""


def to_array(key, value):
    """Returns the host array that stands in a file for a value.

    Args:
        key (str): its name, for messages.
        value: an array or variable on any device, a number, a string, a list of these, or None.

    Raises:
        TypeError: NumPy has no plain dtype for the value.
    """
    if value is None:
        return np.empty(0, NONE_DTYPE)
    value = getattr(value, "array", value)
    array = np.asarray(cuda.to_cpu(value) if cuda.is_gpu_array(value) else value)
    if array.dtype.kind in "OV":
        raise TypeError(
            f"{key!r} cannot be saved: a value of type {type(value).__name__} becomes an array of "
            f"dtype {array.dtype}, and only numbers, booleans, strings and None are stored"
        )
    return array


def is_none(array):
    """Returns whether an array is what :func:`to_array` makes of None."""
    return array.dtype == NONE_DTYPE


def header_of(array):
    """Returns (shape, dtype) of what :func:`to_array` made; None for None."""
    return None if is_none(array) or _holds_none(array) else (array.shape, array.dtype)


def check_shape(shape):
    """Raises ValueError unless a shape, as a file has it, is one: of integers not below 0."""
    if not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"{tuple(shape)} is no shape")


def as_bytes(array):
    """Returns an array's bytes as uint8 of shape (*array.shape, itemsize), for formats without its
    dtype; :func:`from_bytes` goes back."""
    flat = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    return flat.reshape(*array.shape, array.dtype.itemsize)


def from_bytes(array, dtype):
    """Returns the array of a dtype whose bytes :func:`as_bytes` returned."""
    if dtype == "None":
        return np.array(None)
    dtype = np.dtype(dtype)
    if dtype.hasobject or array.dtype != np.uint8 or array.shape[-1:] != (dtype.itemsize,):
        raise ValueError(f"{array.dtype} of shape {array.shape} are no bytes of dtype {dtype}")
    if dtype.itemsize == 0:  # of empty strings only
        return np.empty(array.shape[:-1], dtype)
    return np.frombuffer(array.tobytes(), dtype).reshape(array.shape[:-1])


def from_array(key, array, value):
    """Restores a value from what :func:`to_array` made.

    Args:
        key (str): its name, for messages.
        array (numpy.ndarray): the stored array.
        value: the present value. An array or variable is overwritten in place; a scalar, string,
            list or tuple says what type to return; None lets the stored array itself be returned.
    """
    if header_of(array) is None:
        return None
    problem = misfit(key, array.shape, array.dtype, value)
    if problem:
        raise SerializationError(problem)
    target = getattr(value, "array", value)
    if target is None:
        return array.copy()
    if isinstance(target, np.ndarray) or cuda.is_gpu_array(target):
        backend.copyto(target, array)
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(array.tolist())
    return _scalar(key, array, value)


def _holds_none(array):
    return array.dtype == object and array.shape == () and array[()] is None


def misfit(key, shape, dtype, value):
    """Says why a stored array of a shape and dtype cannot restore a value; None if it can.

    Args:
        key (str): its name, for the message.
        value: the present value; see :func:`from_array`.
    """
    target = getattr(value, "array", value)
    if target is None or isinstance(value, (list, tuple)):
        return None
    if not (isinstance(target, np.ndarray) or cuda.is_gpu_array(target)):
        kind = type(value).__name__
        return (
            None if shape == () else f"{key!r} has shape {shape} in the file but is a {kind} here"
        )
    if target.shape != shape:
        return f"{key!r} has shape {shape} in the file but {target.shape} in the object"
    if not np.can_cast(dtype, target.dtype, "same_kind"):
        return f"{key!r} has dtype {dtype} in the file but {target.dtype} in the object"
    return None


def _scalar(key, array, value):
    if isinstance(value, int) and array.dtype.kind in "fc":
        return array.item()  # an object that started with 0 may have counted up to 0.5
    try:
        return type(value)(array[()])
    except (TypeError, ValueError) as error:
        raise SerializationError(
            f"{key!r} is {array[()]!r} in the file but a {type(value).__name__} here"
        ) from error
