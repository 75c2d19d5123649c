"""Functions that make biases and check sizes, for links with weights."""

import numbers
from typing import Any, cast

from mpchain.initializers import get_initializer
from mpchain.link import Link
from mpchain.typing import InitialValue
from mpchain.variable import Parameter


def bias_parameter(nobias: bool, initial_bias: InitialValue, size: int | None = None) -> Any:
    """Returns a bias, which is zeros by default and uninitialized if ``size`` is None. Returns None
    if ``nobias`` is True.

    >>> bias_parameter(False, None, 2).array
    array([0., 0.], dtype=float32)
    >>> bias_parameter(True, None) is None
    True
    """
    if nobias:
        return None
    return Parameter(get_initializer(0 if initial_bias is None else initial_bias), size)


def layer_sizes(link: Link, in_size: int | None, out_size: int | None) -> tuple[int | None, int]:
    """Returns the input and output sizes of a layer after checks. If ``out_size`` is None,
    ``in_size`` is the output size, and the input size is None.

    >>> layer_sizes(L.Linear(3, 2), 4, None)
    (None, 4)
    """
    if out_size is None:
        in_size, out_size = None, in_size
    check_sizes(link, **{} if in_size is None else {"in_size": in_size}, out_size=out_size)
    return in_size, cast(int, out_size)


def check_sizes(link: Link, **sizes: Any) -> None:
    """Raises TypeError or ValueError unless each size is a positive int.

    >>> check_sizes(L.Linear(3, 2), out_size=2)
    """
    for name, size in sizes.items():
        if not isinstance(size, numbers.Integral):
            kind = type(size).__name__
            raise TypeError(f"{type(link).__name__}: {name} must be an int, not {size!r} ({kind})")
        if size <= 0:
            raise ValueError(f"{type(link).__name__}: {name} must be positive, but is {size}")
