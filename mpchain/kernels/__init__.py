"""Kernels: arrays in, arrays out.

An operation has one reference kernel, which runs anywhere, and may have others: of a vendor's
library, or our own for particular sizes. The first that accepts the arguments runs, in the order:
libraries named in ``config.kernels``, vendors' libraries, our own (compiled ones first), the
reference. With ``config.autotune``, those that accept NumPy arrays are measured once for each kind
of arguments, and the fastest runs; results can then differ in rounding from run to run.
"""

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import numpy as np

from mpchain.configuration import config

_ORDER = {name: i for i, name in enumerate(("onednn", "cudnn", "numba_cpu", "numpy_cpu"))}
_registry = {}
_fastest = {}


class Kernel(NamedTuple):
    """One way to compute an operation.

    Attributes:
        operation (str): what is computed.
        library (str): the file that it stands in; ``reference`` is the specification.
        compute: the function of arrays.
        refuse: a function of the same arguments that returns why the kernel does not take them, or
            None; None takes all.
    """

    operation: str
    library: str
    compute: Callable
    refuse: Callable | None


def register(library, refuse=None):
    """Decorator: enters a function as kernel of the operation that it is named after."""

    def enter(function):
        kernel = Kernel(function.__name__, library, function, refuse)
        kernels = _registry.setdefault(kernel.operation, [])
        kernels.append(kernel)
        kernels.sort(key=_precedence)
        return function

    return enter


def _precedence(kernel):
    return _ORDER.get(kernel.library, len(_ORDER) + (kernel.library == "reference"))


def kernels_of(operation):
    """Returns the kernels of an operation in the order in which they are asked."""
    try:
        kernels = _registry[operation]
    except KeyError:
        raise LookupError(f"kernels: there is no operation {operation!r}") from None
    preferred = config.kernels
    if preferred:
        named = [k for name in preferred for k in kernels if k.library == name]
        return named + [k for k in kernels if k not in named]
    return kernels


def select(operation, *args):
    """Returns the kernel that will compute ``operation`` for these arguments."""
    if config.autotune and isinstance(args[0], np.ndarray):
        return _select_fastest(operation, args)
    for kernel in kernels_of(operation):
        if kernel.refuse is None or kernel.refuse(*args) is None:
            return kernel
    raise LookupError(f"kernels.select: no kernel of {operation} takes these arguments")


def _select_fastest(operation, args):
    kinds = [(x.shape, x.dtype.char) if isinstance(x, np.ndarray) else x for x in args]
    key = (operation, *kinds)
    if key not in _fastest:
        taking = [k for k in kernels_of(operation) if k.refuse is None or not k.refuse(*args)]
        _fastest[key] = min(taking, key=lambda k: _seconds(k, args)) if taking[1:] else taking[0]
    return _fastest[key]


def _seconds(kernel, args):
    kernel.compute(*args)  # the first time makes what is needed every time
    begin = perf_counter()
    kernel.compute(*args)
    return perf_counter() - begin


def call(operation, *args):
    """Computes ``operation`` by the kernel that :func:`select` chooses."""
    return select(operation, *args).compute(*args)


def explain(operation, *args):
    """Says, a line per kernel, which one runs and why each before it does not."""
    lines, chosen = [], False
    for kernel in kernels_of(operation):
        reason = kernel.refuse and kernel.refuse(*args)
        verdict = f"no: {reason}" if reason else "not needed" if chosen else "runs"
        chosen = chosen or not reason
        lines.append(f"{operation}: {kernel.library}: {verdict}")
    return "\n".join(lines)


from mpchain.kernels import (  # noqa: E402  (they enter their kernels)
    numba_cpu,
    numpy_cpu,
    onednn,
    philox,
    reference,
)
