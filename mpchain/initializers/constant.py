"""Initializers of constant values."""

import math
import numbers

import numpy as np

from mpchain import backend
from mpchain.backends.cuda import is_gpu_array
from mpchain.initializers.initializer import Initializer
from mpchain.typing import Array, DTypeLike


class Constant(Initializer):
    """Fills arrays with a number, or with the values of an array.

        >>> L.Linear(3, 2, initialW=Constant(0.5)).W.array[0]
        array([0.5, 0.5, 0.5], dtype=float32)

    Args:
        fill_value: a number, or an array that broadcasts to the arrays to be filled.
        dtype: see :class:`Initializer`.

    Raises:
        TypeError: ``fill_value`` is neither a number nor an array.
        ValueError: when called, ``fill_value`` does not broadcast to the array.
    """

    def __init__(self, fill_value: Array | float, dtype: DTypeLike = None) -> None:
        if not isinstance(fill_value, (numbers.Number, np.ndarray)) and not is_gpu_array(
            fill_value
        ):
            raise TypeError(
                "Constant: fill_value must be a number or an array, "
                f"not {type(fill_value).__name__} {fill_value!r}"
            )
        super().__init__(dtype)
        self.fill_value = fill_value

    def __call__(self, array: Array) -> None:
        value = np.asarray(backend.cuda.to_cpu(self.fill_value))
        try:
            value = np.broadcast_to(value, array.shape)
        except ValueError:
            raise ValueError(
                f"Constant: fill_value of shape {value.shape} does not broadcast to an array of "
                f"shape {array.shape}"
            ) from None
        backend.copyto(array, value)


class Zero(Constant):
    """Fills arrays with 0.

    >>> a = np.ones(2)
    >>> Zero()(a)
    >>> a
    array([0., 0.])
    """

    def __init__(self, dtype: DTypeLike = None) -> None:
        super().__init__(0, dtype)


class One(Constant):
    """Fills arrays with 1.

    >>> a = np.zeros(2)
    >>> One()(a)
    >>> a
    array([1., 1.])
    """

    def __init__(self, dtype: DTypeLike = None) -> None:
        super().__init__(1, dtype)


class NaN(Constant):
    """Fills arrays with NaN, which reveals that a parameter is used before it gets its values.

    >>> a = np.zeros(2)
    >>> NaN()(a)
    >>> a
    array([nan, nan])
    """

    def __init__(self, dtype: DTypeLike = None) -> None:
        super().__init__(math.nan, dtype)


class Identity(Initializer):
    """Fills square matrices with a multiple of the identity.

        >>> a = np.zeros((2, 2))
        >>> Identity(3.0)(a)
        >>> a
        array([[3., 0.],
               [0., 3.]])

    Args:
        scale: the value on the diagonal.
        dtype: see :class:`Initializer`.
    """

    def __init__(self, scale: float = 1.0, dtype: DTypeLike = None) -> None:
        super().__init__(dtype)
        self.scale = scale

    def __call__(self, array: Array) -> None:
        if array.ndim != 2 or array.shape[0] != array.shape[1]:
            raise ValueError(f"Identity: the array must be a square matrix, not {array.shape}")
        backend.copyto(array, self.scale * np.eye(len(array)))
