"""Compiled loops that replace an operation's reference for small arrays.

For a few hundred elements, NumPy's calls take many times as long as the arithmetic. The loops
compute the bits of the reference, so they can take over in the middle of a program: they do so when
the reference has taken about as long as the compilation. Both are compared once for each shape and
dtype; where they differ, the reference stays.
"""

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain.kernels import thresholds
from mpchain.kernels.cpu import numpy_functions
from mpchain.kernels.cpu.compiler import (
    Switch,
    compile_called,
    compile_written_loop,
    compiled,
    why_not_compiled,
)
from mpchain.kernels.operation import MOST, SINGLE_OR_DOUBLE, Operation

WAITING = "NumPy has not yet taken as long as a compilation"
"""The reason against a loop that may take over later."""

_CALL = 1 << 9  # a call of NumPy takes as long as this number of elements of a formula


def replaces(
    operation: Operation,
    n_calls: int,
    text: Callable,
    refuse: Callable,
    dtypes: Sequence[str] = SINGLE_OR_DOUBLE,
) -> Callable:
    """Decorator: adds a kernel that replaces an operation's reference when it pays.

    Args:
        operation: the operation.
        n_calls: the number of NumPy's calls in the reference.
        text: a function of the operation's arguments that returns the kernel's loop: a text, which
            :func:`compiled_with_sums` compiles, or a Python function.
        refuse: see :meth:`Operation.kernel`. Of the arrays that it accepts, the shape and dtype of
            the first, and the last argument, must determine all others.
        dtypes: the names of the dtypes that the first array may have.

    Example:
        >>> @Operation
        ... def twice(x):
        ...     return x + x
        >>> @replaces(twice, 1, lambda x: "", lambda x: None)
        ... def twice_in_a_loop(x):
        ...     return 2 * x
        >>> twice(np.ones(2))
        array([2., 2.])
        >>> print(twice.explain(np.ones(2)))
        twice: numba_small: no: NumPy has not yet taken as long as a compilation
        twice: reference: runs
    """

    def add(compute):
        _Replacement(operation, n_calls, text, refuse, dtypes, compute)
        return compute

    return add


class _Replacement:
    """Decides when a kernel replaces a reference; see :func:`replaces`."""

    def __init__(self, operation, n_calls, text, refuse, dtypes, compute):
        self._n_elements, self._text, self._refuse = n_calls * _CALL, text, refuse
        self._reference, self._compute = operation.kernels[-1].compute, compute
        # These dictionaries have a key for each loop, or for each shape, and dtype.
        self._switches: dict = {}
        self._reasons: dict = {}
        self._are_same: dict = {}
        operation.kernel("numba_small", self._why_not, dtypes, self._compared)(compute)
        (self._kernel,) = (k for k in operation.kernels if k.compute is compute)
        operation.replace_reference(self)

    def _reason(self, args):
        if self._are_same.get(_layout(args)) is False:
            return "NumPy's results differ on this machine"
        return self._reasons.get((self._text(*args), args[0].dtype), WAITING)

    def _why_not(self, *args):
        return self._refuse(*args) or self._reason(args)

    def plan(self, *args):
        return self._count if self._kernel.refuse(*args) == WAITING else None

    def steady(self, kernel, args):
        """Returns a kernel that stays the same when the loop takes over, for recorded steps."""
        is_one = kernel.compute in (self._reference, self._compute)
        suits = is_one and self._kernel.refuse(*args) in (None, self._reason(args))
        return kernel._replace(compute=self._run) if suits else kernel

    def _run(self, *args):
        return (self._count if self._reason(args) else self._compared(*args))(*args)

    def _compared(self, *args):
        """Returns the loop, or the reference if their results differ for arrays of such shapes."""
        key = _layout(args)
        if key not in self._are_same:
            if len(self._are_same) >= MOST:
                self._are_same.clear()
            self._are_same[key] = _are_same(self._compute(*args), self._reference(*args))
        return self._compute if self._are_same[key] else self._reference

    def _count(self, *args):
        """Computes the reference, and counts its time until the loop takes over."""
        if self._reason(args) == WAITING:
            text, _ = key = self._text(*args), args[0].dtype
            switch = self._switches.setdefault(key, Switch())
            n = max(args[0].size, self._n_elements)
            if switch.is_due(n, lambda: _compiled(text)):
                self._reasons[key] = _why_not_compiled(text)
                thresholds.forget()  # the operation chooses again
        return self._reference(*args)


def _layout(args):
    """Returns the shape and dtype of the first array, and the last argument if it is no array."""
    last = args[-1]
    return args[0].shape, args[0].dtype, None if isinstance(last, np.ndarray) else last


def _are_same(found, expected):
    if isinstance(expected, np.ndarray):
        return np.array_equal(found, expected, equal_nan=True)
    return all(map(_are_same, found, expected))


@functools.cache
def compiled_with_sums(text: str) -> Callable:
    """Compiles the text of a loop, which may call

    - ``pairwise(x, begin, n)``: the sum of n elements of a vector as NumPy computes it;
    - ``exp`` and ``log`` of single precision, see :mod:`mpchain.kernels.cpu.numpy_functions`.

    Example:
        >>> from mpchain.kernels.cpu.compiler import load_numba
        >>> text = "def add(x, y):\\n    y[0] = pairwise(x, 0, x.size)"
        >>> loop = compiled_with_sums(text) if load_numba() else None
    """
    known, digests = _pairwise(), str(_DIGEST)
    if _has_functions(text):
        known, digests = known | numpy_functions.functions(), f"{_DIGEST} {numpy_functions.DIGEST}"
    # caches are keyed by the text
    return compile_written_loop("small arrays", f"{text.strip()}\n    # {digests}", known)


def _compiled(loop):
    return compiled_with_sums(loop) if isinstance(loop, str) else compiled(loop)


def _has_functions(loop):
    return isinstance(loop, str) and ("exp(" in loop or "log(" in loop)


def _why_not_compiled(loop):
    return numpy_functions.why_not() if _has_functions(loop) else why_not_compiled()


@functools.cache
def _pairwise():
    """Returns the names that the texts of loops use."""
    known: dict[str, Any] = {"np": np}
    known |= {name: np.uintp(i) for i, name in enumerate(_NUMBERS.split(), 1)}
    for name, text in (("few", _FEW), ("pairwise", _MANY)):
        known[name] = compile_called(name, text, known, _DIGEST)
    return known


# numba compiles the texts below. Sums are pairwise, as in N. J. Higham, The accuracy of floating
# point summation, SIAM J. Sci. Comput. 14, 1993.

_NUMBERS = "ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT"  # unsigned
_FEW = """
def few(x, begin, n):
    if n < 8:
        total = x.dtype.type(0)
        for i in range(begin, begin + n):
            total += x[i]
        return total
    place = np.uintp(begin)  # an index without sign needs no test for negative numbers
    a, b, c, d = x[place], x[place + ONE], x[place + TWO], x[place + THREE]
    e, f, g, h = x[place + FOUR], x[place + FIVE], x[place + SIX], x[place + SEVEN]
    for i in range(1, n // 8):
        place += EIGHT
        a, b, c, d = a + x[place], b + x[place + ONE], c + x[place + TWO], d + x[place + THREE]
        e, f = e + x[place + FOUR], f + x[place + FIVE]
        g, h = g + x[place + SIX], h + x[place + SEVEN]
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(begin + n - n % 8, begin + n):
        total += x[i]
    return total
"""
# A recursive function would be shorter, but numba cannot load recursive functions from its cache.
_MANY = """
def pairwise(x, begin, n):
    if n <= 128:
        return few(x, begin, n)
    begins, sizes = np.empty(64, np.int64), np.empty(64, np.int64)
    sums, n_sums, n_left = np.empty(64, x.dtype), 0, 1
    begins[0], sizes[0] = begin, n
    while n_left:
        n_left -= 1
        first, size = begins[n_left], sizes[n_left]
        if size == 0:  # the sums of two halves are known
            n_sums -= 1
            sums[n_sums - 1] += sums[n_sums]
        elif size <= 128:
            sums[n_sums] = few(x, first, size)
            n_sums += 1
        else:
            half = size // 2 - size // 2 % 8
            sizes[n_left] = 0
            begins[n_left + 1], sizes[n_left + 1] = first + half, size - half
            begins[n_left + 2], sizes[n_left + 2] = first, half
            n_left += 3
    return sums[0]
"""
_DIGEST = zlib.crc32((_NUMBERS + _FEW + _MANY).encode())
