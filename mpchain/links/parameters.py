"""What links that have weights and a bias share."""

import numbers

from mpchain.initializers import get_initializer
from mpchain.variable import Parameter


def bias_parameter(nobias, initial_bias, size=None):
    """The bias, zeros by default, uninitialized without a size; None if there shall be none."""
    if nobias:
        return None
    return Parameter(get_initializer(0 if initial_bias is None else initial_bias), size)


def check_sizes(link, **sizes):
    """Raises TypeError or ValueError unless each is a positive int."""
    for name, size in sizes.items():
        if not isinstance(size, numbers.Integral):
            kind = type(size).__name__
            raise TypeError(f"{type(link).__name__}: {name} must be an int, not {size!r} ({kind})")
        if size <= 0:
            raise ValueError(f"{type(link).__name__}: {name} must be positive, but is {size}")
