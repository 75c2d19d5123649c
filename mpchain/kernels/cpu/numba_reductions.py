"""Softmax, extrema, sums, products and cumulative sums of rows, in loops for numba.

Rows are contiguous in memory. Softmax makes all its passes through a row while the row is in the
cache, uses the exponential of :mod:`mpchain.kernels.cpu.special_loops`, and sums single precision
in double precision. Cumulative sums are added in NumPy's order, four rows at a time.
"""

import functools
import math

import numpy as np

from mpchain.configuration import config
from mpchain.kernels import reference, thresholds
from mpchain.kernels.cpu import special_loops
from mpchain.kernels.cpu.channels_last import empty
from mpchain.kernels.cpu.compiler import (
    Switch,
    compile_loop,
    compile_written_loop,
    compiled,
    load_numba,
    why_not_compiled,
)
from mpchain.kernels.cpu.numba_cpu import TOO_SMALL
from mpchain.kernels.cpu.numba_threads import in_parts_of, run_rows
from mpchain.kernels.operation import SINGLE_OR_DOUBLE
from mpchain.typing import Array

# If the sign is handled separately, the bits of floating-point numbers, read as integers, sort like
# the numbers; a flag records NaN.
_SOFTMAX = """
def run(begin, end, x, scale, y):
    for row in range(begin, end):
        n, best, has_nan = x.shape[1], LEAST, False
        for i in range(n):
            value = x[row, i] * scale
            bits = np.FLOAT(value).view(INT)
            best = INT(max(best, INT(bits ^ INT(INT(bits >> SIGN) & REST))))
            has_nan |= value != value
        most = INT(best ^ INT(INT(best >> SIGN) & REST)).view(np.FLOAT)
        most = np.FLOAT(np.nan) if has_nan else most
        total = 0.0
        {lines}
"""
# Sums are in double precision. They have loops of their own, because LLVM would compute all of a
# loop with the few lanes of its widest numbers.
_TIMES = """
        for i in range(n):
            y[row, i] = exp(x[row, i] * scale - most)
        for i in range(n):
            total += y[row, i]
        inverse = np.FLOAT(1 / total)
        for i in range(n):
            y[row, i] *= inverse
"""
_MINUS = """
        for i in range(n):
            y[row, i] = exp(x[row, i] - most)
        for i in range(n):
            total += y[row, i]
        logarithm = np.FLOAT(math.log(total))
        for i in range(n):
            y[row, i] = subtract_both(x[row, i], most, logarithm)
"""
_NOTED = """
        for i in range(n):
            y[row, i] = exp(x[row, i] * scale - most)
        for i in range(n):
            total += y[row, i]
        totals[row], largest[row] = total, most
"""
_LOG_SOFTMAX_GRADIENT = """
def run(begin, end, g, y, scale, gx):
    for row in range(begin, end):
        total = 0.0
        for i in range(g.shape[1]):
            total += g[row, i]
        part = np.FLOAT(total)
        for i in range(g.shape[1]):
            gx[row, i] = g[row, i] - exp(y[row, i]) * part
"""
_TEXTS = {
    "softmax": _SOFTMAX.format(lines=_TIMES.strip()),
    "log_softmax": _SOFTMAX.format(lines=_MINUS.strip()),
    "exponentials": _SOFTMAX.format(lines=_NOTED.strip()).replace(" y)", " y, totals, largest)"),
    "log_softmax_gradient": _LOG_SOFTMAX_GRADIENT,
}


@functools.cache
def _compiled(name, dtype):
    is_single = dtype == np.float32
    text = _TEXTS[name].strip().replace("FLOAT", "float32" if is_single else "float64")
    int_type, bits = ("np.int32", 31) if is_single else ("np.int64", 63)
    for word, value in (
        ("LEAST", f"{int_type}({-(1 << bits)})"),
        ("REST", f"{int_type}({(1 << bits) - 1})"),
        ("SIGN", f"{int_type}({bits})"),
        ("INT", int_type),
    ):
        text = text.replace(word, value)
    head, _, rest = text.partition("\n")
    text = f"{head}\n    # {special_loops.fingerprint(dtype)}\n{rest}"
    njit = load_numba().njit
    # The function has options of its own, because numba would compile it with the loop's options
    # otherwise.
    in_order = njit(fastmath={"contract"}, forceinline=True, nogil=True)(_subtract_both)
    known = special_loops.functions(dtype, njit) | {"math": math, "subtract_both": in_order}
    # The options allow numba to reorder sums. The exponential and the differences are compiled
    # separately: if products and differences were contracted, the difference of the largest scaled
    # number and itself would not be zero.
    return compile_written_loop(name, text, known, is_wide=True, fastmath={"reassoc", "nsz"})


def _subtract_both(x, a, b):
    return x - a - b


def _refuse(x, axis, scale=1.0, other=None):
    if x.size < thresholds.compiled:
        return TOO_SMALL
    if axis % x.ndim != x.ndim - 1 or not x.flags.c_contiguous:
        return "not along the last axis of a contiguous array"
    if other is not None and not other.flags.c_contiguous:
        return "not contiguous arrays"
    return why_not_compiled()


@reference.exponentials.kernel(
    "numba_cpu",
    lambda x: "not a matrix" if x.ndim > 2 else _refuse(x, 1),
    SINGLE_OR_DOUBLE,
)
def _exponentials(x, out=None):
    """Computes the same as the reference, one row at a time."""
    y, run = empty(x.shape, x.dtype, out=out), _compiled("exponentials", x.dtype)
    total, most = np.empty((len(x), 1), x.dtype), np.empty((len(x), 1), x.dtype)
    results = y, total.reshape(-1), most.reshape(-1)
    run_rows(run, len(x), x.size, x, x.dtype.type(1), *results)
    return y, total, most


def _plan(run, x, shape, of_x, of_y):
    """Returns a function that reduces arrays like ``x`` to arrays of a shape by ``run``, given the
    shapes in which it sees them; None for large arrays, which threads share."""
    if x.size // thresholds.light_loop >= thresholds.threads:
        return None
    n, dtype = of_x[0], x.dtype

    def compute(x, *constants):
        y = np.empty(shape, dtype)
        run(0, n, x.reshape(of_x), y.reshape(of_y))
        return y

    return compute


def _by_rows(name, scale, out, *arrays):
    first = arrays[0]
    y = empty(first.shape, first.dtype, out=out)
    rows = [x.reshape(-1, first.shape[-1]) for x in arrays]
    run, result, scale = _compiled(name, y.dtype), y.reshape(rows[0].shape), y.dtype.type(scale)
    run_rows(run, len(result), y.size, *rows, scale, result)
    return y


@reference.softmax.kernel("numba_cpu", _refuse, SINGLE_OR_DOUBLE)
def _softmax(x, axis, scale=1.0, out=None):
    """Computes the same as the reference, one row at a time."""
    return _by_rows("softmax", scale, out, x)


@reference.log_softmax.kernel("numba_cpu", _refuse, SINGLE_OR_DOUBLE)
def _log_softmax(x, axis, out=None):
    """Computes the same as the reference, one row at a time."""
    return _by_rows("log_softmax", 1, out, x)


@reference.softmax_gradient.kernel(
    "numba_cpu", lambda g, y, axis, scale=1.0: _refuse(g, axis, scale, y), SINGLE_OR_DOUBLE
)
def _softmax_gradient(g, y, axis, scale=1.0, out=None):
    """Computes the same as the reference, one row at a time."""
    gx = empty(g.shape, g.dtype, out=out)
    rows = [v.reshape(-1, g.shape[-1]) for v in (g, y, gx)]
    in_parts_of(_differentiate_softmax, len(rows[0]), g.size, *rows, g.dtype.type(scale))
    return gx


@reference.log_softmax_gradient.kernel(
    "numba_cpu", lambda g, y, axis: _refuse(g, axis, 1.0, y), SINGLE_OR_DOUBLE
)
def _log_softmax_gradient(g, y, axis, out=None):
    """Computes the same as the reference, one row at a time."""
    return _by_rows("log_softmax_gradient", 1, out, g, y)


def _differentiate_softmax(begin, end, g, y, gx, scale):
    for row in range(begin, end):
        total = 0.0
        for i in range(g.shape[1]):
            total += g[row, i] * y[row, i]
        part = g.dtype.type(total)
        for i in range(g.shape[1]):
            gx[row, i] = y[row, i] * (g[row, i] - part) * scale


# As integers, the bits of NaN are above the bits of infinity, or below the bits of minus infinity.
_EXTREMUM = """
def run(begin, end, x, y):
    for row in range(begin, end):
        most, least = LEAST, REST
        for i in range(x.shape[1]):
            bits = np.FLOAT(x[row, i]).view(INT)
            bits = INT(bits ^ INT(INT(bits >> SIGN) & REST))
            most, least = INT(max(most, bits)), INT(min(least, bits))
        first = INT({first} ^ INT(INT({first} >> SIGN) & REST)).view(np.FLOAT)
        second = INT({second} ^ INT(INT({second} >> SIGN) & REST)).view(np.FLOAT)
        y[row] = second if second != second else first
"""
# Two rows are compared at a time. With one row, LLVM would store only the elements that change,
# one by one.
_EXTREMUM_OF_COLUMNS = """
def run(begin, end, x, y):
    for matrix in range(begin, end):
        rows, best = x[matrix], y[matrix]
        for i in range(best.size):
            best[i] = rows[0, i]
        row = 1
        while row < rows.shape[0]:
            first, second = rows[row], rows[min(row + 1, rows.shape[0] - 1)]
            for i in range(best.size):
                a, b, c = first[i], second[i], best[i]
                c = a if (a {better} c) | (a != a) else c
                best[i] = b if (b {better} c) | (b != b) else c
            row += 2
"""
_TEXTS |= {
    "greatest": _EXTREMUM.format(first="most", second="least"),
    "least": _EXTREMUM.format(first="least", second="most"),
    "greatest of columns": _EXTREMUM_OF_COLUMNS.format(better=">"),
    "least of columns": _EXTREMUM_OF_COLUMNS.format(better="<"),
}


def _in_three(x, axes):
    """Returns the numbers of elements before, along and after the axes; None if the axes are not
    neighbors."""
    if axes != tuple(range(axes[0], axes[0] + len(axes))) if axes else True:
        return None
    before, after = x.shape[: axes[0]], x.shape[axes[-1] + 1 :]
    return tuple(map(math.prod, (before, x.shape[axes[0] : axes[-1] + 1], after)))


def _refuse_extremum(x, axes, is_least):
    sizes = _in_three(x, axes)
    if sizes is None:
        return "not along neighboring axes"
    if sizes[0] == sizes[2] == 1:
        return "one row, for which NumPy is as fast"
    if 1 < sizes[2] < thresholds.loop_row:
        return "few elements side by side"
    return _refuse_rows(x)


def _run_extremum(x, axes, is_least):
    """Returns the loop, the shape of the result, and the shapes in which the loop sees x and the
    result."""
    n, along, after = _in_three(x, axes)
    name, of_x, of_y = "least" if is_least else "greatest", (n, along), (n,)
    if after > 1:
        name, of_x, of_y = f"{name} of columns", (n, along, after), (n, after)
    shape = x.shape[: axes[0]] + x.shape[axes[-1] + 1 :]
    return _compiled(name, x.dtype), shape, of_x, of_y


def _plan_of_extremum(x, axes, is_least):
    run, *shapes = _run_extremum(x, axes, is_least)
    return _plan(run, x, *shapes)


@reference.extremum.kernel("numba_cpu", _refuse_extremum, SINGLE_OR_DOUBLE, _plan_of_extremum)
def _extremum(x, axes, is_least, out=None):
    """Computes the same as the reference; only the sign of zero may differ."""
    run, shape, of_x, of_y = _run_extremum(x, axes, is_least)
    y = empty(shape, x.dtype, out=out)
    rows, flat = x.reshape(of_x), y.reshape(of_y)
    run_rows(run, of_x[0], x.size // thresholds.light_loop, rows, flat)
    return y


def _refuse_sums(x):
    return "short rows" if x.shape[1] < thresholds.loop_row else _refuse_rows(x)


@reference.row_sums.kernel(
    "numba_cpu",
    _refuse_sums,
    SINGLE_OR_DOUBLE,
    lambda x: _plan(compiled(_add), x, x.shape[:1], x.shape, x.shape[:1]),
)
def _row_sums(x, out=None):
    """Computes what the reference computes, with instructions that add many elements of a row at a
    time."""
    y = empty(x.shape[:1], x.dtype, out=out)
    in_parts_of(_add, len(x), x.size // thresholds.light_loop, x, y)
    return y


def _add(begin, end, x, y):
    for row in range(begin, end):
        total = x.dtype.type(0)
        for i in range(x.shape[1]):
            total += x[row, i]
        y[row] = total


_switches = {np.dtype(name): Switch() for name in SINGLE_OR_DOUBLE}


def sum_columns(x: Array) -> Array | None:
    """Returns the sums of the columns of a matrix, with the bits of NumPy's sums; None if NumPy
    should compute them: for small matrices, and as long as it has taken less time than the
    compilation would take.

    Example:
        >>> sum_columns(np.ones((2, 3)))  # too small
    """
    switch = _switches.get(x.dtype)
    if switch is None or x.shape[1] < thresholds.loop_row or _refuse_rows(x) is not None:
        return None
    if config.kernels or config.autotune:
        return None
    if not switch.is_due(x.size, functools.partial(_compiled_in_order, _add_columns)):
        return None
    y = np.empty(x.shape[1:], x.dtype)
    _compiled_in_order(_add_columns)(x, y)
    return y


@functools.cache
def _compiled_in_order(function):
    return compile_loop(function)


def _add_columns(x, y):
    y[:] = 0  # NumPy starts from zero, too, which decides the sign of a sum of zeros
    row = 0
    while row + 8 <= x.shape[0]:
        for i in range(y.size):
            total = y[i] + x[row, i]
            total += x[row + 1, i]
            total += x[row + 2, i]
            total += x[row + 3, i]
            total += x[row + 4, i]
            total += x[row + 5, i]
            total += x[row + 6, i]
            total += x[row + 7, i]
            y[i] = total
        row += 8
    for rest in range(row, x.shape[0]):
        for i in range(y.size):
            y[i] += x[rest, i]


def _refuse_rows(x, is_backward=False):
    if x.size < thresholds.compiled:
        return TOO_SMALL
    return why_not_compiled() if x.flags.c_contiguous else "not a contiguous array"


def _refuse_rows_or_columns(x):
    return _refuse_rows(x.T if x.ndim == 2 and x.T.flags.c_contiguous else x)


@reference.running_sums.kernel("numba_cpu", _refuse_rows, SINGLE_OR_DOUBLE)
def _running_sums(x, is_backward, out=None):
    """Computes the same bits as the reference."""
    y = empty(x.shape, x.dtype, out=out)
    rows = [v.reshape(-1, x.shape[-1]) for v in (x, y)]
    if is_backward:
        rows = [v[:, ::-1] for v in rows]
    in_parts_of(_add_up, len(rows[0]), x.size, *rows)
    return y


@reference.products.kernel("numba_cpu", _refuse_rows, SINGLE_OR_DOUBLE)
def _products(x, out=None):
    """Computes the same as the reference; single precision is multiplied in double precision."""
    y = empty(x.shape[:-1], x.dtype, out=out)
    rows = x.reshape(-1, x.shape[-1])
    in_parts_of(_multiply, len(rows), x.size, rows, y.reshape(-1))
    return y


@reference.products_of_others.kernel("numba_cpu", _refuse_rows_or_columns, SINGLE_OR_DOUBLE)
def _products_of_others(x, out=None):
    """Computes the same bits as the reference."""
    if not x.flags.c_contiguous:
        y = np.empty(x.shape[::-1], x.dtype).T
        in_parts_of(_multiply_columns, len(x), x.size, x.T, y.T)
        return y
    y = empty(x.shape, x.dtype, out=out)
    rows = [v.reshape(-1, x.shape[-1]) for v in (x, y)]
    in_parts_of(_multiply_others, len(rows[0]), x.size, *rows)
    return y


def _add_up(begin, end, x, y):
    row = begin
    while row + 4 <= end:
        a = b = c = d = x.dtype.type(0)
        for i in range(x.shape[1]):
            a += x[row, i]
            b += x[row + 1, i]
            c += x[row + 2, i]
            d += x[row + 3, i]
            y[row, i], y[row + 1, i], y[row + 2, i], y[row + 3, i] = a, b, c, d
        row += 4
    for rest in range(row, end):
        a = x.dtype.type(0)
        for i in range(x.shape[1]):
            a += x[rest, i]
            y[rest, i] = a


def _multiply(begin, end, x, y):
    for row in range(begin, end):
        product = 1.0
        for i in range(x.shape[1]):
            product *= x[row, i]
        y[row] = product


def _multiply_others(begin, end, x, y):
    row, before = begin, np.empty((4, x.shape[1]))
    while row + 4 <= end:
        a = b = c = d = 1.0
        for i in range(x.shape[1]):
            before[0, i], before[1, i], before[2, i], before[3, i] = a, b, c, d
            a *= x[row, i]
            b *= x[row + 1, i]
            c *= x[row + 2, i]
            d *= x[row + 3, i]
        a = b = c = d = 1.0
        for i in range(x.shape[1] - 1, -1, -1):
            y[row, i] = before[0, i] * a
            y[row + 1, i] = before[1, i] * b
            y[row + 2, i] = before[2, i] * c
            y[row + 3, i] = before[3, i] * d
            a *= x[row, i]
            b *= x[row + 1, i]
            c *= x[row + 2, i]
            d *= x[row + 3, i]
        row += 4
    for rest in range(row, end):
        a = 1.0
        for i in range(x.shape[1]):
            before[0, i] = a
            a *= x[rest, i]
        a = 1.0
        for i in range(x.shape[1] - 1, -1, -1):
            y[rest, i] = before[0, i] * a
            a *= x[rest, i]


def _multiply_columns(begin, end, x, y):
    # The products of a block of columns stay in the cache.
    before, rest = np.empty((x.shape[0], 64)), np.empty(64)
    for first in range(begin, end, 64):
        n = min(64, end - first)
        before[0], rest[:] = 1, 1
        for i in range(1, x.shape[0]):
            for c in range(n):
                before[i, c] = before[i - 1, c] * x[i - 1, first + c]
        for i in range(x.shape[0] - 1, -1, -1):
            for c in range(n):
                y[i, first + c] = before[i, c] * rest[c]
                rest[c] *= x[i, first + c]
