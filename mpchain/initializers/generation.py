"""Functions that convert initial values to initializers, and make arrays by initializers."""

import copy
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.configuration import get_dtype
from mpchain.initializers.constant import Constant
from mpchain.initializers.initializer import Initializer
from mpchain.initializers.random import LeCunNormal
from mpchain.typing import Array, DeviceLike, DTypeLike, InitialValue


def get_initializer(
    initializer: InitialValue | Callable[[Array], None], dtype: DTypeLike = None
) -> Initializer | Callable[[Array], None]:
    """Converts an initial value to an initializer.

        >>> a = np.zeros(2)
        >>> get_initializer(0.5)(a)
        >>> a
        array([0.5, 0.5])

    Args:
        initializer: an :class:`Initializer` or other callable that fills an array; a number or an
            array; None for ``LeCunNormal()``.
        dtype: the dtype of the resulting initializer; None keeps the dtype of ``initializer``.
    """
    if initializer is None:
        return LeCunNormal(dtype=dtype)
    if not callable(initializer):
        return Constant(initializer, dtype)
    if dtype is None:
        return initializer
    is_ours = isinstance(initializer, Initializer)
    made: Any = copy.copy(initializer) if is_ours else functools.partial(initializer)
    made.dtype = dtype
    return made


def generate_array(
    initializer: Initializer | Callable[[Array], None],
    shape: int | tuple[int, ...],
    xp: ModuleType,
    dtype: DTypeLike = None,
    device: DeviceLike | None = None,
) -> Array:
    """Makes an array and fills it.

        >>> generate_array(Constant(3), (2, 2), np, np.float32)
        array([[3., 3.],
               [3., 3.]], dtype=float32)

    Args:
        initializer: an :class:`Initializer` or other callable that fills an array in place.
        shape: shape of the array.
        xp: ``numpy`` or ``cupy``; not used if ``device`` is given.
        dtype: dtype of the array; None means the dtype of the initializer if it has one, else
            ``config.dtype``.
        device: device of the array, see :func:`mpchain.get_device`.

    Raises:
        ValueError: ``dtype`` and the dtype of the initializer differ.
    """
    own = getattr(initializer, "dtype", None)
    if dtype is not None and own is not None and np.dtype(dtype) != np.dtype(own):
        raise ValueError(
            f"generate_array: dtype {np.dtype(dtype)} differs from the dtype of the initializer, "
            f"{np.dtype(own)}"
        )
    dtype = get_dtype(own if dtype is None else dtype)
    if device is None:
        array = xp.empty(shape, dtype)
        initializer(array)
        return array
    device = backend.get_device(device)
    with device.create_context():
        return generate_array(initializer, shape, device.xp, dtype)
