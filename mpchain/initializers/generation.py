"""From what users may give as an initial value to an initializer, and on to an array."""

import copy
import functools

import numpy as np

from mpchain import backend
from mpchain.configuration import get_dtype
from mpchain.initializer import Initializer
from mpchain.initializers.constant import Constant
from mpchain.initializers.random import LeCunNormal


def get_initializer(initializer, dtype=None):
    """Returns an initial value as an initializer.

    Args:
        initializer: an :class:`Initializer` or other callable that fills an array; a number or an
            array; None for ``LeCunNormal()``.
        dtype: the dtype that it shall have; None leaves its own.
    """
    if initializer is None:
        return LeCunNormal(dtype=dtype)
    if not callable(initializer):
        return Constant(initializer, dtype)
    if dtype is None:
        return initializer
    is_ours = isinstance(initializer, Initializer)
    initializer = copy.copy(initializer) if is_ours else functools.partial(initializer)
    initializer.dtype = dtype
    return initializer


def generate_array(initializer, shape, xp, dtype=None, device=None):
    """Makes an array and fills it.

    Args:
        initializer: an :class:`Initializer` or other callable that fills an array in place.
        shape (int or tuple of int): the array's.
        xp: ``numpy`` or ``cupy``; not used if ``device`` is given.
        dtype: the array's; None means the initializer's own, and the configuration's if that is
            None too.
        device: where to make the array, as for :func:`mpchain.get_device`.

    Raises:
        ValueError: ``dtype`` and the initializer's own differ.
    """
    own = getattr(initializer, "dtype", None)
    if dtype is not None and own is not None and np.dtype(dtype) != np.dtype(own):
        raise ValueError(
            f"generate_array: dtype {np.dtype(dtype)} is not that of the initializer, "
            f"{np.dtype(own)}"
        )
    dtype = get_dtype(own if dtype is None else dtype, map_mixed16=np.float16)
    if device is None:
        array = xp.empty(shape, dtype)
        initializer(array)
        return array
    device = backend.get_device(device)
    with device.create_context():
        return generate_array(initializer, shape, device.xp, dtype)
