"""Keyword arguments that a function takes through ``**kwargs``."""

import inspect


def check_unexpected_kwargs(kwargs, **unexpected):
    """Raises ValueError with its message for each name of ``unexpected`` that is in ``kwargs``."""
    for name, message in unexpected.items():
        if name in kwargs:
            raise ValueError(message)


def parse_kwargs(kwargs, *name_and_values, **unexpected):
    """Takes arguments out of ``kwargs``.

    Args:
        kwargs (dict): keyword arguments.
        name_and_values: pairs of a name and its default.
        unexpected: messages for names that must not be there.

    Returns:
        tuple of the values.

    Raises:
        ValueError: a name of ``unexpected`` is there.
        TypeError: any other name is there.
    """
    check_unexpected_kwargs(kwargs, **unexpected)
    known = {name for name, _ in name_and_values}
    _refuse({name for name in kwargs if name not in known}, inspect.stack()[1].function)
    return tuple(kwargs.get(name, default) for name, default in name_and_values)


def assert_kwargs_empty(kwargs):
    """Raises TypeError, naming them, if any arguments are left in ``kwargs``."""
    _refuse(kwargs, inspect.stack()[1].function)


def _refuse(names, function):
    if names:
        listed = ", ".join(repr(name) for name in sorted(names))
        raise TypeError(f"{function}() got unexpected keyword argument(s) {listed}")
