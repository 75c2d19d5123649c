"""Checks of what functions are given."""


class InvalidType(Exception):
    """An argument has the wrong shape or dtype for a function; the message says which and why."""


def check(condition, function, rule, **arrays):
    """Raises InvalidType unless ``condition`` holds.

    Args:
        condition (bool): what must hold.
        function (str): the name of the function that checks.
        rule (str): what must hold, in words.
        arrays: the values concerned, by argument name; of arrays, shape and dtype are shown.
    """
    if not condition:
        shown = ", ".join(f"{name} is {_shown(value)}" for name, value in arrays.items())
        raise InvalidType(f"{function}: {rule}, but {shown}")


def _shown(value):
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"{value.dtype} of shape {tuple(shape)}"
