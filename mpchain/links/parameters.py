"""Biases and checks of sizes, for links with weights."""

import numbers
from typing import Any

from mpchain.initializers import get_initializer
from mpchain.link import Link
from mpchain.typing import InitialValue
from mpchain.variable import Parameter


def bias_parameter(nobias: bool, initial_bias: InitialValue, size: int | None = None) -> Any:
    """Returns a bias, by default zeros, uninitialized without a size; None if ``nobias``.

    >>> bias_parameter(False, None, 2).array
    array([0., 0.], dtype=float32)
    >>> bias_parameter(True, None) is None
    True
    """
    if nobias:
        return None
    return Parameter(get_initializer(0 if initial_bias is None else initial_bias), size)


def check_sizes(link: Link, **sizes: Any) -> None:
    """Raises TypeError or ValueError unless each is a positive int.

    >>> check_sizes(L.Linear(3, 2), out_size=2)
    """
    for name, size in sizes.items():
        if not isinstance(size, numbers.Integral):
            kind = type(size).__name__
            raise TypeError(f"{type(link).__name__}: {name} must be an int, not {size!r} ({kind})")
        if size <= 0:
            raise ValueError(f"{type(link).__name__}: {name} must be positive, but is {size}")
