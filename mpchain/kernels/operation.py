"""Operations on arrays, each with a reference kernel and perhaps faster ones."""

import functools
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from mpchain import observers
from mpchain.configuration import config
from mpchain.observers import current

_LIBRARIES = "pointwise", "winograd", "onednn", "cudnn", "numba_cpu", "numpy_cpu"
_LIBRARIES += "cuda_joining", "cuda_random", "cuda_reductions", "cuda_rows", "cuda_windows"
_ORDER = {name: i for i, name in enumerate(_LIBRARIES)}


class Kernel(NamedTuple):
    """One way to compute an operation.

    Attributes:
        operation: the name of the operation.
        library: the file that defines the kernel; ``reference`` is the specification.
        compute: the function of arrays.
        refuse: a function of the same arguments that returns why the kernel does not take them, or
            None; None takes all.

    Example:
        >>> mpchain.kernels.linear.kernels[-1].library
        'reference'
    """

    operation: str
    library: str
    compute: Callable
    refuse: Callable[..., str | None] | None


class Operation:
    """An operation: called with arrays, it runs the first kernel that does not refuse them.

    Args:
        reference: the kernel that runs anywhere; name and docstring are those of the operation.

    Example:
        >>> from mpchain.kernels.operation import Operation
        >>> @Operation
        ... def total(x):
        ...     return x.sum()
        ...
        >>> @total.kernel("numpy_cpu", lambda x: None if x.size > 9 else "too small")
        ... def total_of_many(x):
        ...     return np.add.reduce(x, axis=None)
        ...
        >>> print(total.explain(np.arange(3)))
        total: numpy_cpu: no: too small
        total: reference: runs
    """

    def __init__(self, reference: Callable):
        functools.update_wrapper(self, reference)
        self.name = reference.__name__
        self._fastest: dict = {}
        self._kernels = [Kernel(self.name, "reference", reference, None)]

    def kernel(
        self, library: str, refuse: Callable[..., str | None] | None = None
    ) -> Callable[[Callable], Callable]:
        """Decorator: adds a kernel; see :class:`Kernel` for the arguments."""

        def add(compute):
            self._kernels.append(Kernel(self.name, library, compute, refuse))
            self._kernels.sort(key=lambda k: _ORDER.get(k.library, len(_ORDER)))
            return compute

        return add

    @property
    def kernels(self) -> Sequence[Kernel]:
        """The kernels in the order in which they are tried."""
        preferred = config.kernels
        if not preferred:
            return self._kernels
        named = [k for name in preferred for k in self._kernels if k.library == name]
        return named + [k for k in self._kernels if k not in named]

    def select(self, *args: Any) -> Kernel:
        """Returns the kernel that computes the operation for these arguments."""
        if config.autotune and isinstance(args[0], np.ndarray):
            return self._select_fastest(args)
        for kernel in self.kernels:
            if kernel.refuse is None or kernel.refuse(*args) is None:
                return kernel
        raise AssertionError("the reference refuses nothing")

    def _select_fastest(self, args):
        key = tuple([(x.shape, x.dtype.char) if isinstance(x, np.ndarray) else x for x in args])
        if key not in self._fastest:
            taking = [k for k in self.kernels if k.refuse is None or not k.refuse(*args)]
            fastest = min(taking, key=lambda k: _seconds(k, args)) if taking[1:] else taking[0]
            self._fastest[key] = fastest
        return self._fastest[key]

    def __call__(self, *args: Any) -> Any:
        if current.observers is not None:
            return observers.compute(self, args)
        if config.autotune or config.kernels:
            return self.select(*args).compute(*args)
        for _, _, compute, refuse in self._kernels:  # as select does, in half the time
            if refuse is None or refuse(*args) is None:
                return compute(*args)
        raise AssertionError("the reference refuses nothing")

    def explain(self, *args: Any) -> str:
        """Says, in one line per kernel, which one runs and why each before it does not."""
        lines, chosen = [], False
        for kernel in self.kernels:
            reason = kernel.refuse and kernel.refuse(*args)
            verdict = f"no: {reason}" if reason else "not needed" if chosen else "runs"
            chosen = chosen or not reason
            lines.append(f"{self.name}: {kernel.library}: {verdict}")
        return "\n".join(lines)


def _seconds(kernel, args):
    kernel.compute(*args)  # the first call prepares what all calls need
    begin = perf_counter()
    kernel.compute(*args)
    return perf_counter() - begin
