"""Compiles functions from text, and returns the names of a function's parameters."""

import functools
import inspect
import itertools
import linecache
from collections.abc import Callable
from typing import Any

_numbers = itertools.count(1)


def compile_text(
    name: str, text: str, namespace: dict[str, Any], file: str | None = None
) -> Callable:
    """Compiles the text of a function and returns the function. All generated text is executed by
    this function.

    Tracebacks, debuggers and profilers show the lines of the text.

    Args:
        name: the name that tracebacks show instead of a file name.
        text: a ``def`` statement.
        namespace: the global names that the function uses; the function keeps this dictionary.
        file: a file that has the text, if there is one.

    Example:
        >>> double = compile_text("example", "def double(x):\\n    return f * x", {"f": 2})
        >>> double(4)
        8
    """
    text = text.strip() + "\n"
    file = file or f"<mpchain: {name}, {next(_numbers)}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    namespace.setdefault("__name__", __name__)  # the function gets this module as its __module__
    exec(compile(text, file, "exec"), namespace)
    return namespace.pop(text.partition("(")[0].removeprefix("def "))


@functools.cache
def parameters_of(function: Callable | None) -> tuple[str, ...]:
    """Returns the names of a function's parameters; for None, an empty tuple.

    Example:
        >>> parameters_of(lambda g, x_shape: np.reshape(g, x_shape))
        ('g', 'x_shape')
    """
    if function is None:
        return ()
    # reading the code object is many times faster than inspect.signature
    if inspect.isfunction(function):
        code = function.__code__
        return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return tuple(inspect.signature(function).parameters)
