"""Functions that check the keyword arguments that a function gets as ``**kwargs``."""

import inspect
from typing import Any


def check_unexpected_kwargs(kwargs: dict[str, Any], **unexpected: str) -> None:
    """Raises ValueError if ``kwargs`` contains a name in ``unexpected``; the value in
    ``unexpected`` is the message.

    Example:
        >>> check_unexpected_kwargs({"test": True}, test="use using_config('train', False) instead")
        Traceback (most recent call last):
        ValueError: use using_config('train', False) instead
    """
    for name, message in unexpected.items():
        if name in kwargs:
            raise ValueError(message)


def parse_kwargs(
    kwargs: dict[str, Any], *name_and_values: tuple[str, Any], **unexpected: str
) -> tuple:
    """Returns the values of arguments in ``kwargs``, or their defaults.

    Args:
        kwargs: keyword arguments.
        name_and_values: pairs of a name and its default.
        unexpected: messages for names that must not be given.

    Returns:
        tuple of the values.

    Raises:
        ValueError: a name in ``unexpected`` is given.
        TypeError: ``kwargs`` contains any other name.

    Example:
        >>> parse_kwargs({"ratio": 0.2}, ("ratio", 0.5), ("mask", None))
        (0.2, None)
    """
    check_unexpected_kwargs(kwargs, **unexpected)
    known = {name for name, _ in name_and_values}
    _refuse({name for name in kwargs if name not in known}, inspect.stack()[1].function)
    return tuple(kwargs.get(name, default) for name, default in name_and_values)


def assert_kwargs_empty(kwargs: dict[str, Any]) -> None:
    """Raises TypeError if ``kwargs`` is not empty; the message lists its names.

    Example:
        >>> def f(**kwargs):
        ...     assert_kwargs_empty(kwargs)
        >>> f(x=1)
        Traceback (most recent call last):
        TypeError: f() got unexpected keyword argument(s) 'x'
    """
    _refuse(kwargs, inspect.stack()[1].function)


def _refuse(names, function):
    if names:
        listed = ", ".join(repr(name) for name in sorted(names))
        raise TypeError(f"{function}() got unexpected keyword argument(s) {listed}")
