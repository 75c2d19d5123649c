"""Conversions of scalars, functions of shapes, and sums, which user-defined functions often
need."""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from mpchain.typing import Array, DTypeLike


def force_array(x: Any, dtype: DTypeLike | None = None) -> Array:
    """Returns ``x`` as an array, of ``dtype`` if given, because NumPy returns scalars in place of
    0-d arrays.

    Example:
        >>> force_array(np.ones(()) + 1, np.float32)
        array(2., dtype=float32)
    """
    if np.isscalar(x):
        return np.asarray(x, dtype)
    return x if dtype is None else x.astype(dtype, copy=False)


def force_type(dtype: np.dtype, value: Any) -> Any:
    """Returns a scalar or an array converted to the given dtype, so that results of computations
    keep this dtype.

    Example:
        >>> force_type(np.dtype(np.float32), 0.5).dtype
        dtype('float32')
    """
    if np.isscalar(value):
        return dtype.type(value)
    return value if value.dtype == dtype else value.astype(dtype)


def size_of_shape(shape: Sequence[int]) -> int:
    """Returns the number of elements of an array of the given shape.

    Example:
        >>> size_of_shape((2, 3))
        6
    """
    return math.prod(shape)


def converted(xp: ModuleType, value: Any, dtype: DTypeLike = None) -> Array:
    """Returns ``xp.asarray(value, dtype)``. Arrays are converted by their method ``astype``, whose
    calls captured steps record.

    Example:
        >>> converted(np, [1, 2], np.float32)
        array([1., 2.], dtype=float32)
    """
    if isinstance(value, xp.ndarray):
        return value if dtype is None else value.astype(dtype, copy=False)
    return xp.asarray(value, dtype)


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Returns whether an array of one shape broadcasts to another.

    Args:
        shape, target: the shapes.

    Example:
        >>> broadcasts_to((1, 3), (2, 3)), broadcasts_to((2,), (2, 3))
        (True, False)
    """
    lead = len(target) - len(shape)
    return lead >= 0 and all(n in (1, m) for n, m in zip(shape, target[lead:]))


def sum_to(x: Array, shape: Sequence[int]) -> Array:
    """Sums an array over the axes along which broadcasting from ``shape`` would repeat elements.

    Args:
        x: NumPy or CuPy array.
        shape: a shape that broadcasts to the shape of ``x``.

    Returns:
        array of shape ``shape``.

    Raises:
        ValueError: ``shape`` does not broadcast to the shape of ``x``.

    Example:
        >>> sum_to(np.ones((2, 3)), (3,))
        array([2., 2., 2.])
    """
    if not broadcasts_to(shape, x.shape):
        raise ValueError(f"sum_to: shape {shape} does not broadcast to the shape of x, {x.shape}")
    lead = x.ndim - len(shape)
    axes = [i for i, n in enumerate(shape, lead) if n == 1]
    return x.sum(axis=(*range(lead), *axes), keepdims=True).reshape(shape)
