"""Compiles elementwise formulas to loops that compute large NumPy arrays in one pass, where NumPy
would make several.

A loop is made for a formula of additions, products, comparisons and similar operations. Numba
compiles the loop when NumPy's computation of the formula has taken about as long as the
compilation. The loop's values equal NumPy's values, except that the sign of a zero may differ,
because NumPy's maximum of two zeros depends on the processor.

A formula with a special function, such as the error function, or with an exponential among other
operations, is compiled at its first call for an array that is not small. So is a formula with a
function that NumPy does not vectorize on this processor, such as sinh without AVX-512; if some of
its values are not finite, NumPy computes it again and warns where it does so. Because the loop's
values differ from the values of SciPy and NumPy in the last digits, only the size of the array
decides which values a program gets.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from mpchain.configuration import config
from mpchain.formulas.operators import OPERATORS
from mpchain.formulas.symbol import Symbol, UntraceableError, in_order, trace_operation
from mpchain.formulas.text import compile_text, parameters_of
from mpchain.formulas.writer import Numba, Python, fused, number_in_python
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import channels_last, special_loops
from mpchain.kernels.cpu.compiler import Switch, as_writable, compile_written_loop, load_numba
from mpchain.kernels.cpu.numba_threads import run_elements, run_rows
from mpchain.kernels.cpu.threads import n_parts
from mpchain.observers import current
from mpchain.typing import Array

# A single one of these operations is already faster in a loop.
_FASTER_IN_A_LOOP = (np.maximum, np.minimum, np.sign)
# NumPy warns of zeros or negative numbers in the arguments of these functions
_WARNING = (np.divide, np.sqrt)
# a single one of these operations has NumPy's bits in a loop
_EXACT = (np.add, np.subtract, np.multiply, np.negative)
_NUMBERS, _DTYPES = (int, float, bool), (np.dtype(np.float32), np.dtype(np.float64))
# If a formula has at least this many operations, NumPy's passes through memory take longer than
# one exponential.
_AMONG = 4
_EXPONENTIALS = {"exp", "expm1", "log1p"}  # the logarithm log1p counts as an exponential
# a divisor is checked for zeros only if the result has at least this many times its size
_MUCH = 16
_MOST_PLANS = 256  # the maximum number of plans that a loop remembers
_CALLS = 1 << 10  # the number of elements that take as long as the calls of a formula
_LONG = 3  # the least number of operations for which NumPy's calls take longer than the loop's
_LARGE_SUM = 1 << 16  # the least number of elements of a sum that threads may share
_ROW = 1 << 10  # the assumed length of a row if the arrays do not determine the length


class _Text(NamedTuple):
    """The text of a loop: the names of its arrays, the lines before the loop, its statements and
    its result."""

    arrays: Sequence[str]
    before: Sequence[str]
    lines: Sequence[str]
    result: str

    def of_all(self, is_aligned: bool) -> str:
        """Returns the text of a loop over all elements of arrays of the same shape.

        With ``is_aligned``, the first few elements are computed apart from the others, so that
        vectors of 64 bytes are written at multiples of 64 bytes; NumPy aligns arrays to 16 bytes.
        """
        text = [f"def run(numbers, y_, {', '.join(self.arrays)}):", *self.before]
        if not is_aligned:
            return "\n    ".join([*text, *self._over("y_", self.arrays)])
        text.append("n_ = min((-y_.ctypes.data & 63) // y_.itemsize, y_.size)")
        text += ["begin_, end_ = 0, n_", "for _ in range(2):"]
        parts = ["of_y_ = y_[begin_:end_]", *(f"of_{x} = {x}[begin_:end_]" for x in self.arrays)]
        parts += [*self._over("of_y_", [f"of_{x}" for x in self.arrays])]
        parts += ["begin_, end_ = n_, y_.size"]
        return "\n    ".join([*text, *("    " + s for s in parts)])

    def _over(self, y, arrays):
        lines = [f"x_{x} = {part}[i]" for x, part in zip(self.arrays, arrays)]
        lines += [*self.lines, f"{y}[i] = {self.result}"]
        return [f"for i in range({y}.size):", *("    " + s for s in lines)]

    def of_rows(self, moves: Sequence[bool]) -> str:
        """Returns the text of a loop over rows. An array whose entry in ``moves`` is False has one
        number per row."""
        rows, elements = ["out_ = y_[row_ * n_ : (row_ + 1) * n_]"], []
        for i, (x, does_move) in enumerate(zip(self.arrays, moves)):
            rows.append(f"p_ = row_ // m_ * sizes[{2 * i + 2}] + row_ % m_ * sizes[{2 * i + 3}]")
            rows.append(f"row_{x} = {x}[p_ : p_ + n_]" if does_move else f"x_{x} = {x}[p_]")
            elements += [f"x_{x} = row_{x}[i]"] if does_move else []
        elements += [*self.lines, f"out_[i] = {self.result}"]
        rows += ["for i in range(n_):", *("    " + s for s in elements)]
        text = [f"def run(begin, end, numbers, sizes, y_, {', '.join(self.arrays)}):"]
        text += [*self.before, "m_, n_ = sizes[0], sizes[1]", "for row_ in range(begin, end):"]
        return "\n    ".join([*text, *("    " + s for s in rows)])


class _Plan(NamedTuple):
    """A loop's plan for arrays of certain shapes, strides and dtypes.

    Attributes:
        text: the text to compile.
        shape, dtype: the shape and dtype of the result.
        is_last: whether the result has channels last.
        takes: for each array, a function that returns a vector of the array's elements, each
            element once, in memory order.
        sizes: the number of rows of an inner loop, the elements of a row, and the distances by
            which each array moves; None for arrays of the same shape.
        n_rows: the number of rows of the result.
        numbers: the array of numbers that the loop needs, if the numbers do not depend on the
            formula's constants; else None.
        pays: whether the arrays are so large that the loop is faster than NumPy.
    """

    text: str
    shape: tuple[int, ...]
    dtype: np.dtype
    is_last: bool
    takes: Sequence[Callable]
    sizes: Array | None
    n_rows: int
    numbers: Array | None
    pays: bool


class Loop:
    """A formula that is computed by one loop. A call with the formula's arguments returns an array.

    The result is None for arguments that the loop does not support, and as long as NumPy should
    compute the formula. If arrays broadcast, the loop computes the result row by row. A text is
    compiled for each pattern in which rows of the arrays repeat.

    Args:
        name: the name of the formula.
        text: the text of the loop.
        numbers: function that returns the numbers that the loop needs, given the constants.
        names: the parameters of the formula: arrays, followed by constants.
        is_special: whether the loop calls functions of :mod:`mpchain.kernels.cpu.special_loops`.
        is_slow: whether NumPy makes many calls, or one of these functions is slow in SciPy, so that
            small arrays gain, too.
        is_single: whether the formula is one operation, for which NumPy's pass is as fast, unless
            arrays broadcast or threads share the loop.
        divisors: the indices of numbers that must not be zero, because NumPy would warn of a
            division by zero.
        divides: whether the second array is a divisor, which must not contain zeros for the same
            reason.
        formula: the formula itself, if NumPy should compute it where a value is not finite; else
            None.

    Attributes:
        name: the name of the formula.
        is_single: see above.
        switches: for each text, what decides when its loop computes instead of NumPy.

    Example:
        >>> loop = loop_of(lambda x, a: np.maximum(x, 0) * a, ["x", "a"], 1)
        >>> loop(np.ones(3, np.float32), 0.5)  # too small
    """

    def __init__(
        self,
        name: str,
        text: _Text,
        numbers: Callable,
        names: Sequence[str],
        is_special: bool = False,
        is_slow: bool = False,
        is_single: bool = False,
        divisors: Sequence[int] = (),
        divides: bool = False,
        formula: Callable | None = None,
    ):
        self.name, self.switches = name, {}
        self._text, self._numbers, self._n_arrays = text, numbers, len(text.arrays)
        self._has_constants = len(names) > self._n_arrays
        self._is_special, self._is_slow, self.is_single = is_special, is_slow, is_single
        self._divisors, self._divides, self._formula = divisors, divides, formula
        self._plans: dict = {}
        self._quick: dict = {}  # maps layouts to functions that skip the checks
        self._of_constants: dict = {}
        thresholds.forgets(self._plans)
        thresholds.forgets(self._quick)

    @property
    def least(self) -> int:
        """The least number of elements of an array that the loop computes."""
        if self.is_single and self._n_arrays == 1:
            return self.least_of_whole
        if self._is_slow:
            return thresholds.special_loop
        is_early = self._is_special and "exp" in special_loops.slow_in_numpy()
        return thresholds.exponential_loop if is_early else thresholds.loop

    @property
    def least_of_whole(self) -> int:
        """The least number of elements that the loop computes if no array broadcasts."""
        return thresholds.threads * thresholds.light_loop if self.is_single else self.least

    def __call__(self, *arguments: Any) -> Array | None:
        if config.kernels or config.autotune:
            return None
        if self.is_single and _are_whole(*arguments[: self._n_arrays]):
            if not self._is_shared(arguments[0].size):
                return None
        key = self._key(arguments)
        quick = self._quick.get(key)
        if quick is not None and current.recorder is None:
            return quick(arguments)
        plan = self._plan_of(key, arguments)
        if plan is None or not plan.pays:
            return None
        if self._has_constants and not self._fits(arguments[self._n_arrays :]):
            return None
        if current.recorder is not None:
            return current.recorder.compute(self, arguments)
        if self._divides and not _divides_without_warning(arguments[1], plan.shape):
            return None
        if not self._is_special:
            switch = self.switches.get(plan.text) or self.switches.setdefault(plan.text, Switch())
            n = max(math.prod(plan.shape), _CALLS)
            if not switch.is_due(n, functools.partial(_compiled, plan.text)):
                return None
        if not plan.is_last:
            self._remember(key, plan)
        return self.compute(*arguments, plan=plan)

    def _remember(self, key, plan):
        """Remembers a function that computes arrays of these layouts on one thread."""
        text, shape, dtype, _, takes, sizes, n_rows, numbers, _ = plan
        if self._weight(math.prod(shape)) >= thresholds.threads:
            return
        run = _compiled_special(text, dtype) if self._is_special else _compiled(text)
        n, empty = self._n_arrays, np.empty
        before, after = ((), ()) if sizes is None else ((0, n_rows), (sizes,))

        def compute(arguments):
            own = numbers
            if own is None:
                own = self._numbers_in(dtype, arguments[n:])
                if own is None:
                    return None
            y = empty(shape, dtype)
            flat = [take(x) for take, x in zip(takes, arguments)]
            run(*before, own, *after, y.reshape(-1), *flat)
            return self._checked(y, arguments)

        def compute_whole(arguments):
            own = numbers
            if own is None:
                own = self._numbers_in(dtype, arguments[1:])
                if own is None:
                    return None
            y = empty(shape, dtype)
            run(own, y.reshape(-1), arguments[0].reshape(-1))
            return self._checked(y, arguments)

        def compute_quotient(arguments):
            is_safe = _divides_without_warning(arguments[1], shape)
            return compute(arguments) if is_safe else None

        is_whole = n == 1 and sizes is None and takes[0] is _flat
        if len(self._quick) >= _MOST_PLANS:
            self._quick.clear()
        own_way = compute_quotient if self._divides else compute
        self._quick[key] = compute_whole if is_whole else own_way

    def _numbers_in(self, dtype, constants):
        """Returns the numbers that the loop needs; None if it does not support the constants."""
        key = dtype, *map(type, constants), *constants
        try:
            return self._of_constants[key]
        except KeyError:
            pass
        except TypeError:  # a constant that is not even a number
            return None
        found = np.array(self._numbers(*constants), dtype) if self._fits(constants) else None
        if 0 not in constants:  # zeros of both signs have one key
            if len(self._of_constants) >= _MOST_PLANS:
                self._of_constants.clear()
            self._of_constants[key] = found
        return found

    def _fits(self, constants):
        if not all([type(x) in _NUMBERS for x in constants]):
            return False
        if not self._divisors:
            return True
        numbers = self._numbers(*constants)
        return all([numbers[i] for i in self._divisors])

    def or_else(self, formula: Callable) -> Callable:
        """Returns a function that calls the loop, and ``formula`` for arguments that the loop
        refuses."""

        def compute(*arguments):
            y = self(*arguments)
            return formula(*arguments) if y is None else y

        return compute

    def select(self, *arguments: Any) -> "Loop":
        """Returns the loop itself, because recorders call ``select`` of operations to get the
        object that computes."""
        return self

    def compute(
        self, *arguments: Any, out: Array | None = None, plan: _Plan | None = None
    ) -> Array:
        """Returns the result for arguments that the loop supports."""
        plan = plan or self._plan_of(self._key(arguments), arguments)
        text, shape, dtype, is_last, takes, sizes, n_rows, numbers, _ = cast(_Plan, plan)
        new = channels_last.result_last if is_last else channels_last.empty
        y = np.empty(shape, dtype) if out is None and not is_last else new(shape, dtype, out=out)
        if numbers is None:
            numbers = np.array(self._numbers(*arguments[self._n_arrays :]), dtype)
        flat = [channels_last.in_memory(y) if is_last else y.reshape(-1)]
        for take, x in zip(takes, arguments):
            flat.append(take(x))
        run = _compiled_special(text, dtype) if self._is_special else _compiled(text)
        if sizes is None:
            run_elements(run, self._weight(y.size), numbers, *flat)
        else:
            run_rows(run, n_rows, self._weight(y.size), numbers, sizes, *flat)
        return self._checked(y, arguments)

    def _checked(self, y, arguments):
        """Returns the result; lets NumPy compute it if some values are not finite."""
        if self._formula is not None and not np.isfinite(y).all():
            y[...] = self._formula(*arguments)
        return y

    def _is_shared(self, size):
        return n_parts(size, self._weight(size)) > 1

    def _weight(self, size):
        """Returns the number of elements that decides whether threads share an array."""
        return size if self._is_special else size // thresholds.light_loop

    def _key(self, arguments):
        """Returns the layouts of the arrays; None if one is no array."""
        x = arguments[0]
        if not isinstance(x, np.ndarray):
            return None
        if self._n_arrays == 1:
            return x.shape, x.strides, x.dtype
        y = arguments[1]
        if not isinstance(y, np.ndarray):
            return None
        if self._n_arrays == 2:
            return x.shape, x.strides, x.dtype, y.shape, y.strides, y.dtype
        rest = arguments[2 : self._n_arrays]
        if not all([isinstance(z, np.ndarray) for z in rest]):
            return None
        return tuple([(z.shape, z.strides, z.dtype) for z in arguments[: self._n_arrays]])

    def _plan_of(self, key, arguments):
        """Returns the plan for arrays of these layouts, remembered; None if the loop cannot
        compute them."""
        if key is None:
            return None
        try:
            return self._plans[key]
        except KeyError:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._new_plan(arguments[: self._n_arrays])
            return plan

    def _new_plan(self, arrays):
        dtype = arrays[0].dtype
        if dtype not in _DTYPES or any(x.dtype != dtype for x in arrays) or load_numba() is None:
            return None
        try:
            shape = np.broadcast_shapes(*[x.shape for x in arrays])
        # the error is raised again, with an explanation, when NumPy computes the formula
        except ValueError:
            return None
        is_last = any(x.shape == shape and channels_last.is_only_last(x) for x in arrays)
        ways = [_way(x, shape, is_last) for x in arrays]
        if None in ways:
            return None
        numbers = None if self._has_constants else np.array(self._numbers(), dtype)
        groups = _groups(_in_order(shape, is_last), [moves for moves, _ in ways])
        takes, sizes, n_rows = [take for _, take in ways], None, 1
        text = self._text.of_all(is_aligned=not self._is_special)
        pays = math.prod(shape) >= self.least
        if len(groups) > 1 or not all(groups[0][1]):
            if len(groups) == 1:  # threads need at least two groups, because they divide the rows
                n, moves = groups[0]
                each = next((m for m in range(_ROW, 2 * _ROW) if n % m == 0), n)
                groups = [(n // each, moves), (each, moves)]
            if len(groups) > 3:
                return None
            pays = pays and groups[-1][0] >= thresholds.loop_row
            sizes, n_rows = _sizes(groups)
            text = self._text.of_rows(groups[-1][1])
        elif self.is_single and not self._is_shared(math.prod(shape)):
            return None
        return _Plan(text, shape, dtype, is_last, takes, sizes, n_rows, numbers, pays)


def _are_whole(x, y=None):
    """Returns whether one or two arrays have the same shape and no gaps. For such arrays one
    operation of NumPy is as fast, and no plan is needed."""
    if x.__class__ is not np.ndarray or not x.flags.c_contiguous:
        return False
    if y is None:
        return True
    return y.__class__ is np.ndarray and x.shape == y.shape and y.flags.c_contiguous


def _divides_without_warning(y, shape):
    """Returns whether a divisor is known to have no zeros. Only small divisors are checked, because
    checks take time."""
    return _MUCH * y.size <= math.prod(shape) and bool(y.all())


def _in_order(values, is_last):
    """Returns the sizes or the strides of an array in the order of memory."""
    return [values[i] for i in channels_last.TO_LAST[len(values)]] if is_last else list(values)


def _way(x, shape, is_last):
    """Returns a flag for each axis of the result, True if the array moves along the axis, and a
    function that returns the array's elements as a vector.

    The axes are in memory order. The result is None for an array with gaps.
    """
    spread = np.broadcast_to(x, shape)
    sizes, strides = _in_order(shape, is_last), _in_order(spread.strides, is_last)
    moves, step = [stride != 0 for stride in strides], x.itemsize
    for n, stride in zip(reversed(sizes), reversed(strides)):
        if stride and n > 1:
            if stride != step:
                return _way_of_copy(x, shape, is_last)
            step *= n
    if x.flags.c_contiguous:
        return moves, _flat
    if x.shape == shape and 0 not in x.strides:
        return moves, channels_last.in_memory
    place = (*[slice(None) if stride else 0 for stride in x.strides], ...)
    once = x[place]  # this view has each element of a broadcast array once
    order = sorted(range(once.ndim), key=lambda i: -once.strides[i])
    return moves, lambda x: as_writable(x[place]).transpose(order).reshape(-1)


def _way_of_copy(x, shape, is_last):
    """Returns the result of :func:`_way` for an array of the other layout, whose elements must be
    copied."""
    if x.shape != shape or not (x.flags.c_contiguous or channels_last.is_last(x)):
        return None
    lay = channels_last.as_last if is_last else channels_last.as_plain
    return [True] * len(shape), lambda x: channels_last.in_memory(lay(x))


def _flat(x):
    return x.reshape(-1)


def _groups(sizes, moves):
    """Joins neighboring axes along which the same arrays move; returns a list of pairs: a size, and
    a flag for each array."""
    groups = []
    for n, *moving in zip(sizes, *moves):
        if n > 1 and groups and groups[-1][1] == moving:
            groups[-1][0] *= n
        elif n > 1:
            groups.append([n, moving])
    return groups or [[1, [True] * len(moves)]]


def _sizes(groups):
    """Returns the sizes that loops over rows read, and the number of rows."""
    n_arrays = len(groups[0][1])
    (a, by_a), (b, by_b), (c, by_c) = [[1, [False] * n_arrays]] * (3 - len(groups)) + groups
    sizes = [b, c]
    for i in range(n_arrays):
        row = c if by_c[i] else 1
        sizes += [row * (b if by_b[i] else 1) * by_a[i], row * by_b[i]]
    return np.array(sizes), a * b


def loop_of(formula: Callable, names: Sequence[str], n_arrays: int) -> Loop | None:
    """Returns the loop of a formula; None if the formula cannot be written as a loop, or if the
    loop would not be faster than NumPy.

    Args:
        formula: an elementwise function of arrays, followed by constants.
        names: the names of the formula's parameters.
        n_arrays: the number of parameters that are arrays.

    Example:
        >>> loop_of(lambda x: np.sqrt(x), ["x"], 1)  # NumPy's square root is as fast
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
    is_worth_it = is_slow or not special.isdisjoint(worth_it)
    is_special = is_worth_it or not special.isdisjoint(special_loops.slow_in_numpy())
    has_angles = not special.isdisjoint(special_loops.ANGLES)
    if has_angles and any(OPERATORS[step.function].kind != "number" for step in of_arrays):
        return None  # a comparison would hide NaN, which lets NumPy compute large angles
    is_faster = is_special or len(of_arrays) > 1 or of_arrays[0].function in _FASTER_IN_A_LOOP
    is_quotient = (
        result.function is np.divide
        and [x.name for x in result.operands if not _is_number(x)] == ["x_" + x for x in arrays]
        and n_arrays == 2
    )
    if (
        result.is_bool
        or not (is_faster or n_arrays > 1 or of_arrays[0].function in _EXACT)
        or (not is_quotient and any(map(_warns, of_arrays)))
    ):
        return None
    numbers = {}  # this maps the text of a number to its name
    writer = Numba(
        lambda x: numbers.setdefault(number_in_python(x), f"c{len(numbers)}"), is_special
    )
    try:
        lines = [writer.statement(s) for s in of_arrays]
    except UntraceableError:
        return None
    divisors = [s.operands[1] for s in of_arrays if s.function is np.divide]
    own = Python()
    of_numbers = [own.statement(s) for s in steps if s.is_constant]
    of_numbers.append(f"return ({', '.join(numbers)}{',' if numbers else ''})")
    of_numbers = [f"def numbers({', '.join(names[n_arrays:])}):", *of_numbers]
    before = [f"{name} = numbers[{i}]" for i, name in enumerate(numbers.values())]
    return Loop(
        formula.__name__,
        _Text(arrays, before, lines, result.name),
        compile_text(f"numbers of {formula.__name__}", "\n    ".join(of_numbers), own.known),
        names,
        is_special,
        is_slow or (not is_special and len(of_arrays) >= _LONG),
        not is_faster,
        [list(numbers).index(number_in_python(x)) for x in divisors if _is_number(x)],
        is_quotient,
        formula if is_special and (has_angles or not is_worth_it) else None,
    )


def in_one_pass(formula: Callable, *arrays: Array) -> Any:
    """Computes an elementwise formula, with a loop for large NumPy arrays.

    Example:
        >>> in_one_pass(lambda x, y: x * y + 1, np.ones(2), np.ones(2))
        array([2., 2.])
    """
    loop = _loop_of_arrays(formula) if isinstance(arrays[0], np.ndarray) else None
    y = None if loop is None else loop(*arrays)
    return formula(*arrays) if y is None else y


def add_arrays(x: Any, y: Any) -> Any:
    """Returns the sum of two arrays. On GPUs, the sum of arrays with channels last has channels
    last too.

    Example:
        >>> add_arrays(np.ones(2), np.ones(2))
        array([2., 2.])
    """
    is_large = type(x) is np.ndarray and x.size >= _LARGE_SUM
    return in_one_pass(_sum, x, y) if is_large else _fused_sum(x, y)


def _sum(x, y):
    return x + y


_fused_sum = fused(_sum)


@functools.cache
def _loop_of_arrays(formula):
    names = parameters_of(formula)
    return loop_of(formula, names, len(names))


@functools.cache
def loop_of_special(name: str) -> Loop:
    """Returns the loop of a function of :mod:`mpchain.kernels.cpu.special_loops`.

    Example:
        >>> loop_of_special("erfinv")(np.ones(3, np.float32))  # too small
    """
    text = _Text(["x"], [], [f"y = {name}(x_x)"], "y")
    return Loop(name, text, tuple, ["x"], is_special=True, is_slow=True)


def _is_number(x):
    return not isinstance(x, Symbol) or x.is_constant


def _warns(step):
    """Returns whether NumPy may warn of an operation, which is not the case if the divisor is a
    number."""
    by_number = step.function is np.divide and _is_number(step.operands[1])
    return step.function in _WARNING and not by_number


def _special(step):
    """Returns the name of the function of :mod:`special_loops` that computes a step; an empty
    string if there is none."""
    return OPERATORS[step.function].special.partition("(")[0]


@functools.cache
def _compiled(text):
    # Rows are too short to be aligned, and unaligned vectors of 512 bits are slower.
    return compile_written_loop("a loop", text, is_wide="of_y_" in text)


@functools.cache
def _compiled_special(text, dtype):
    head, _, rest = text.partition("\n")
    text = f"{head}\n    # {special_loops.fingerprint(dtype)}\n{rest}"
    known = special_loops.functions(dtype, load_numba().njit)
    return compile_written_loop("a loop", text, known, is_wide=True, fastmath={"contract"})
