"""Elementwise formulas of large NumPy arrays as one loop, where NumPy would make several passes.

A loop takes a formula of additions, products, comparisons and the like. It is compiled by numba
when the formula has cost about what compiling costs. Its values are those of NumPy; only the sign
of a zero may differ, where NumPy's maximum of two zeros depends on the processor.

A formula with a special function, such as that of errors, or with an exponential among other
operations, is compiled when it is first called for an array that is not small: its values differ
from SciPy's and NumPy's in the last places, and the size alone decides which of both a program
gets.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain.configuration import config
from mpchain.formulas.operators import OPERATORS
from mpchain.formulas.symbol import UntraceableError, in_order, trace_operation
from mpchain.formulas.text import compile_text
from mpchain.formulas.writer import Numba, Python, number_in_python
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import channels_last, special_loops
from mpchain.kernels.cpu.numba_cpu import compile_written_loop, load_numba
from mpchain.kernels.cpu.threads import in_parts
from mpchain.observers import current
from mpchain.typing import Array

_FASTER_IN_A_LOOP = (np.maximum, np.minimum, np.sign)  # even one of them alone is faster in a loop
_WARNING = (np.divide, np.sqrt)  # NumPy warns of zeros and of negative numbers
_NUMBERS, _DTYPES = (int, float, bool), (np.dtype(np.float32), np.dtype(np.float64))
_AMONG = 4  # operations with an exponential: NumPy's passes through memory take longer than it
_EXPONENTIALS = {"exp", "expm1"}


class Loop:
    """A formula that is computed by one loop: called with its arguments, it returns an array.

    It returns None for arguments that it does not take, and while NumPy is to compute them.

    Args:
        name: of the formula.
        text: of the loop: a function of numbers, the result, and the arrays.
        numbers: function that returns the numbers that the loop needs, given the constants.
        n_arrays: how many of the first arguments are arrays.
        is_special: whether it has functions of :mod:`mpchain.kernels.cpu.special_loops`.
        is_slow: whether one of these is slow elsewhere, so that small arrays gain, too.

    Attributes:
        name: of the formula.
        n_elements: how many NumPy has computed.

    Example:
        >>> loop = loop_of(lambda x, a: np.maximum(x, 0) * a, ["x", "a"], 1)
        >>> loop(np.ones(3, np.float32), 0.5)  # too small
    """

    def __init__(
        self,
        name: str,
        text: str,
        numbers: Callable,
        n_arrays: int,
        is_special: bool = False,
        is_slow: bool = False,
    ):
        self.name, self.n_elements = name, 0
        self._text, self._numbers, self._n_arrays = text, numbers, n_arrays
        self._is_special, self._is_slow = is_special, is_slow

    @property
    def least(self) -> int:
        """The least elements of arrays that the loop takes."""
        return thresholds.special_loop if self._is_slow else thresholds.loop

    def __call__(self, *arguments: Any) -> Array | None:
        if not self._takes(arguments):
            return None
        if current.recorder is not None:
            return current.recorder.compute(self, arguments)
        if self._is_special:
            return self.compute(*arguments)
        self.n_elements += arguments[0].size
        return self.compute(*arguments) if self.n_elements > thresholds.compiled_loop else None

    def or_else(self, formula: Callable) -> Callable:
        """Returns a function: the loop, and ``formula`` for what the loop does not take."""

        def compute(*arguments):
            y = self(*arguments)
            return formula(*arguments) if y is None else y

        return compute

    def select(self, *arguments: Any) -> "Loop":
        """Returns what computes the formula, as operations of kernels do: the loop itself."""
        return self

    def compute(self, *arguments: Any, out: Array | None = None) -> Array:
        """Returns the result for arguments that the loop takes."""
        n = self._n_arrays
        arrays = arguments[:n]
        gaps = [any(x.strides) for x in arrays if not x.flags.c_contiguous]
        if gaps:  # gradients of sums repeat one number
            lay = channels_last.as_last if any(gaps) else np.ascontiguousarray
            arrays = [lay(x) for x in arrays]
        y = channels_last.result(arrays[0].shape, arrays[0].dtype, arrays[0], out=out)
        numbers = np.array(self._numbers(*arguments[n:]), y.dtype)
        flat = [channels_last.in_memory(x) for x in (y, *arrays)]
        if not self._is_special:
            _compiled(self._text)(numbers, *flat)
            return y
        run, flat = _compiled_special(self._text, y.dtype), [x.reshape(-1) for x in flat]
        in_parts(lambda i, j: run(numbers, *[x[i:j] for x in flat]), y.size, y.size)
        return y

    def _takes(self, arguments):
        first, n = arguments[0], self._n_arrays
        if not isinstance(first, np.ndarray) or first.size < self.least:
            return False
        dtype, shape = first.dtype, first.shape
        if dtype not in _DTYPES or config.kernels or config.autotune:
            return False
        for x in arguments[:n]:
            if not isinstance(x, np.ndarray) or x.dtype != dtype or x.shape != shape:
                return False
            if not x.flags.c_contiguous and any(x.strides) and not channels_last.is_last(x):
                return False
        return all([type(x) in _NUMBERS for x in arguments[n:]]) and load_numba() is not None


def loop_of(formula: Callable, names: Sequence[str], n_arrays: int) -> Loop | None:
    """Returns the loop of a formula, None where there is none, or where it would not be faster.

    Args:
        formula: elementwise, of arrays and then constants.
        names: its parameters.
        n_arrays: how many of them are arrays.

    Example:
        >>> loop_of(lambda x: np.exp(x) + 1, ["x"], 1)  # NumPy's exponential is faster
    """
    arrays = names[:n_arrays]
    result = trace_operation(formula, names, n_arrays, prefix="x_")
    if result is None or result.is_constant:
        return None
    steps = in_order(result)
    of_arrays = [s for s in steps if not s.is_constant]
    special = {_special(step) for step in of_arrays}
    is_slow = not special.isdisjoint(special_loops.SLOW)
    worth_it = special_loops.QUICK | (_EXPONENTIALS if len(of_arrays) >= _AMONG else set())
    is_special = is_slow or not special.isdisjoint(worth_it)
    is_faster = is_special or len(of_arrays) > 1 or of_arrays[0].function in _FASTER_IN_A_LOOP
    if result.is_bool or not is_faster or any(s.function in _WARNING for s in of_arrays):
        return None
    numbers = {}  # names by the texts
    writer = Numba(
        lambda x: numbers.setdefault(number_in_python(x), f"c{len(numbers)}"), is_special
    )
    try:
        lines = [writer.statement(s) for s in of_arrays]
    except UntraceableError:
        return None
    text = [f"def run(numbers, y_, {', '.join(arrays)}):"]
    text += [f"{name} = numbers[{i}]" for i, name in enumerate(numbers.values())]
    lines = [*(f"x_{name} = {name}[i]" for name in arrays), *lines, f"y_[i] = {result.name}"]
    text += ["for i in range(y_.size):", *("    " + line for line in lines)]
    own = Python()
    lines = [own.statement(s) for s in steps if s.is_constant]
    lines.append(f"return ({', '.join(numbers)}{',' if numbers else ''})")
    lines = [f"def numbers({', '.join(names[n_arrays:])}):", *lines]
    return Loop(
        formula.__name__,
        "\n    ".join(text),
        compile_text(f"numbers of {formula.__name__}", "\n    ".join(lines), own.known),
        n_arrays,
        is_special,
        is_slow,
    )


@functools.cache
def loop_of_special(name: str) -> Loop:
    """Returns the loop of a function of :mod:`mpchain.kernels.cpu.special_loops`.

    Example:
        >>> loop_of_special("erfinv")(np.ones(3, np.float32))  # too small
    """
    text = f"def run(numbers, y_, x):\n    for i in range(y_.size):\n        y_[i] = {name}(x[i])"
    return Loop(name, text, tuple, 1, is_special=True, is_slow=True)


def _special(step):
    """Returns the name of the function of special loops that computes a step, if any."""
    return OPERATORS[step.function].special.partition("(")[0]


@functools.cache
def _compiled(text):
    return compile_written_loop("a loop", text)


@functools.cache
def _compiled_special(text, dtype):
    head, _, rest = text.partition("\n")
    text = f"{head}\n    # {special_loops.fingerprint(dtype)}\n{rest}"
    known = special_loops.functions(dtype, load_numba().njit)
    return compile_written_loop("a loop", text, known, fastmath={"contract"})
