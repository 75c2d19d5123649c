"""Optimizer steps on GPUs, by one kernel for the arrays of many parameters.

The kernel is CUDA C, written from the trace of the step's body. It does not fuse products with sums
(FMA), so that it computes the same bits as NumPy, except for single-precision numbers of magnitude
below 1.2e-38: CuPy compiles all kernels to treat these numbers as zero.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends import cuda
from mpchain.formulas.symbol import trace_step
from mpchain.formulas.writer import C, Numbers
from mpchain.observers import current
from mpchain.typing import Array

MOST_ROWS = 9
"""One more than the maximum number of steps whose outcomes the host does not know yet."""
_THREADS, _ELEMENTS = 256, 4096  # these are the numbers of threads and of elements per block
_C_TYPES = {"e": "float16", "f": "float", "d": "double", "E": "mpchain_bfloat16"}
_BFLOAT16 = """#ifndef __CUDACC__
#define __device__
#endif
struct mpchain_bfloat16 {
  unsigned short bits;
  union Word { float value; unsigned int bits; };
  __device__ operator float() const {
    Word word;
    word.bits = (unsigned int)bits << 16;
    return word.value;
  }
  __device__ mpchain_bfloat16(float x) {
    Word word;
    word.value = x;
    bits = x != x ? 0x7fc0 : (word.bits + 0x7fff + (word.bits >> 16 & 1)) >> 16;
  }
};
"""
_TEXT = """{headers}struct Arrays {{
{pointers}
  long long size[{capacity}];
  int first_block[{capacity}];
  int n;
}};
{types}extern "C" __global__ void {function}(const Arrays arrays{numbers}) {{
{first}
  int k = 0;  // the arrays that this block works on
  for (int end = arrays.n; end - k > 1;) {{
    int middle = (k + end) / 2;
    if (arrays.first_block[middle] <= (int)blockIdx.x) k = middle; else end = middle;
  }}
  long long i = (blockIdx.x - arrays.first_block[k]) * {elements}LL;
  long long end = i + {elements}LL < arrays.size[k] ? i + {elements}LL : arrays.size[k];
  for (i += threadIdx.x; i < end; i += blockDim.x) {{
{body}
  }}
}}
"""


class Guard(NamedTuple):
    """The flags and counts on the GPU by which kernels of steps decide whether to change
    parameters.

    Attributes:
        found: int32 array; if its first element is not 0, the kernels change nothing.
        n_left_out: int32 array, whose first element is the number of steps that were skipped.
        n_known: the number of skipped steps that the host knows about.
        n_rows: one more than the number of steps whose outcome the host does not know.
        now: a function that returns ``n_known`` and ``n_rows`` for the next replay of a captured
            step.

    Example:
        >>> guard = Guard(found, counts, 0, 1)  # doctest: +SKIP
    """

    found: Array
    n_left_out: Array
    n_known: int
    n_rows: int
    now: Callable[[], tuple[int, int]] | None = None

    def wait(self) -> int | None:
        """Waits for the GPU. Returns the number of skipped steps that the host did not know about;
        None if this step is skipped too."""
        return None if self.found[0] else int(self.n_left_out[0]) - self.n_known


class _Guarding(threading.local):
    guard: Guard | None = None


guarding = _Guarding()
"""The attribute ``guard`` is the guard of the steps that this thread takes, or None."""


@contextlib.contextmanager
def guarded(guard: Guard | None) -> Iterator[None]:
    """Context manager: steps on the current GPU are subject to ``guard``.

    Example:
        >>> with guarded(guard):  # doctest: +SKIP
        ...     update_all(params)
    """
    guarding.guard = guard
    try:
        yield
    finally:
        guarding.guard = None


def take_steps(
    step: Callable,
    written: Sequence[Sequence[Array]],
    grads: Sequence[Array],
    scalars: Callable[..., dict],
    halves: Sequence[Array] = (),
    inverse: Array | float | None = None,
) -> bool:
    """Takes a step for parameters on the current GPU, by one kernel unless there are too many
    parameters for its arguments.

    Args:
        step: as in :func:`mpchain.kernels.steps.take_step`.
        written: a list of the parameters; then, for each state of the step, a list of the states of
            the parameters. All arrays of a list have the same dtype; a parameter and its states
            have the same shape.
        grads: the gradients, all of the same dtype.
        scalars: a function that returns the scalars of ``step``. It is called again before each
            replay of a captured step. Within :func:`guarded`, it is called for each possible number
            of skipped updates, which is its argument unless it is 0.
        halves: the half-precision parameters of which ``written`` holds copies in higher precision.
            The step writes these parameters too. Where other code changed them, so that they differ
            from the rounded copies, the step starts from the values of these parameters.
        inverse: a factor on the gradients, a number or a float32 array (); None means 1.

    Returns:
        whether the step was taken. The result is False if the step cannot be written as a kernel,
        or if a parameter or a state is not contiguous.

    Example:
        >>> take_steps(step, [params, momenta], grads, lambda: {"lr": 0.1})  # doctest: +SKIP
        True
    """
    lists = [*written, *([halves] if halves else []), grads]
    dtypes = [arrays[0].dtype for arrays in lists]
    if any(dtype.char not in _C_TYPES for dtype in dtypes):
        return False
    grads = [g if g.flags.c_contiguous else g.copy("C") for g in grads]
    if not all(array.flags.c_contiguous for arrays in lists[:-1] for array in arrays):
        return False
    computed = np.result_type(np.float32, *dtypes)
    given = step, len(written), scalars, dtypes
    describe = functools.partial(_body, *given, is_scaled=inverse is not None)
    try:
        bodies, constants = zip(*map(describe, range(_n_rows())))
    # the step cannot be traced; if the step itself is wrong, the error is raised when it is
    # computed on arrays
    except Exception:
        return False
    if len(set(bodies)) > 1:
        return False
    names = [*(f"a{i}" for i in range(len(written))), *(["h"] if halves else []), "g"]
    lists, kind = [*lists[:-1], grads], _C_TYPES[computed.char]
    numbers, texts = _numbers(bodies[0], constants, computed, describe)
    numbers, texts = _with_factor(numbers, texts, inverse)
    _launch(_Function("mpchain_step", kind, *texts), names, lists, numbers)
    if current.foresees_graph:
        texts = _reading(bodies[0], len(constants[0]))
        numbers, texts = _with_factor([None] * len(texts[0]), texts, inverse)
        for kernel, _ in _kernels(_Function("mpchain_step", kind, *texts), names, lists, numbers):
            kernel.compile()
    return True


def _with_factor(numbers, texts, factor):
    """Adds a factor, named ``inverse`` in the kernel, to a step's numbers and texts, unless it is
    None."""
    if factor is None:
        return numbers, texts
    declared, body, first, types = (*texts, "", "")[:4]
    if cuda.is_gpu_array(factor):
        more, first = "const float* of_inverse", f"{first}\n  const T inverse = (T)*of_inverse;"
    else:
        more, factor = "float inverse", np.float32(factor)
    return [*numbers, factor], ([*declared, more], body, first, types)


def multiply_all(arrays: Sequence[Array], factor: Array | float) -> list[Array]:
    """See :func:`mpchain.kernels.steps.multiply_all`."""
    made = [cuda.cupy.empty_like(x) for x in arrays]
    texts = [], "    arrays.y[k][i] = arrays.g[k][i] * inverse;"
    numbers, texts = _with_factor([], texts, factor)
    _launch(_Function("mpchain_multiply", "float", *texts), ["y", "g"], [made, arrays], numbers)
    return made


def _n_rows():
    return 1 if guarding.guard is None else guarding.guard.n_rows


def _numbers(body, rows, computed, describe):
    """Returns the kernel arguments that hold the numbers of a step, and the texts of a
    :class:`_Function`."""
    n = len(rows[0])
    if guarding.guard is not None and current.graph is None:
        return _guarded_numbers(guarding.guard, body, rows, computed)
    if guarding.guard is not None:
        return _numbers_of_replays(current.graph, body, n, guarding.guard, describe)
    # a graph would contain constant numbers, so replays update them in memory
    if current.graph is not None:
        return [current.graph.numbers_of(describe)], _reading(body, n)
    return [computed.type(x) for x in rows[0]], ([f"T c{i}" for i in range(n)], body)


def _guarded_numbers(guard, body, rows, computed):
    n = len(rows[0])
    # The size is constant, because a kernel would have to be compiled for each size.
    table = np.zeros(1, np.dtype([("c", computed, (MOST_ROWS, max(n, 1)))]))
    table["c"][0, : len(rows), :n] = rows
    first = ["if (*found) return;", "const T* c = table.c[*left_out - n_known];"]
    first += [f"T c{i} = c[{i}];" for i in range(n)]
    declared = ["const Table table", "const int* found", "const int* left_out", "int n_known"]
    types = f"struct Table {{ T c[{MOST_ROWS}][{max(n, 1)}]; }};\n"
    texts = declared, body, "\n".join("  " + line for line in first), types
    return [table, guard.found, guard.n_left_out, np.int32(guard.n_known)], texts


def _numbers_of_replays(graph, body, n, guard, describe):
    """Returns what ``_guarded_numbers`` returns, for numbers in GPU memory that is updated before
    each replay."""

    def describe_all():
        n_known, n_rows = guard.now()
        bodies, rows = zip(*map(describe, range(n_rows)))
        rows = [*rows, *[rows[-1]] * (MOST_ROWS - n_rows)]
        text = bodies[0] if len(set(bodies)) == 1 else "\n".join(bodies)
        return text, [n_known, *(number for row in rows for number in row)]

    arguments = [graph.numbers_of(describe_all), guard.found, guard.n_left_out]
    return arguments, _reading(body, n)


def _reading(body, n):
    """Returns the texts of a kernel that reads its numbers from memory."""
    if guarding.guard is not None:
        return _reading_rows(body, n)
    lines = [f"    const T c{i} = (T)numbers[{i}];" for i in range(n)]
    return ["const double* numbers"], "\n".join([*lines, body])


def _reading_rows(body, n):
    """Returns the texts of a kernel that reads its row of numbers from memory."""
    first = ["if (*found) return;"]
    first += [f"const double* c = numbers + 1 + (*left_out - (int)numbers[0]) * {n};"]
    first += [f"T c{i} = (T)c[{i}];" for i in range(n)]
    declared = ["const double* numbers", "const int* found", "const int* left_out"]
    return declared, body, "\n".join("  " + line for line in first)


class _Function(NamedTuple):
    """A kernel without its arrays: its name, the C type of its computations, additional parameters,
    the statements for an element, the statements before the loop, and the definitions of the
    parameters' types."""

    name: str
    kind: str
    declared: Sequence[str]
    body: str
    first: str = ""
    types: str = ""


def _launch(function, names, lists, more):
    """Runs a kernel on lists of contiguous arrays, with further arguments."""
    for kernel, (table, n_blocks) in _kernels(function, names, lists, more):
        kernel((n_blocks,), (_THREADS,), (table, *more))


def _kernels(function, names, lists, more):
    """Yields kernels, each with the table of its arrays and the number of its blocks."""
    dtypes = [arrays[0].dtype for arrays in lists]
    places = [i for i, array in enumerate(lists[-1]) if array.size]
    most = _most(len(lists), more)
    for start in range(0, len(places), most):
        portion = places[start : start + most]
        # the capacity is rounded up to a power of two, which limits the number of kernels
        capacity = min(most, max(32, 1 << (len(portion) - 1).bit_length()))
        text = _text(function, names, dtypes, capacity)
        kernel = cuda.raw(text, function.name, ("--fmad=false",))
        yield kernel, _table(names, [[part[i] for i in portion] for part in lists], capacity)


def find_not_finite(named: Sequence[tuple[str, Array]]) -> tuple[list[str], Array]:
    """Finds arrays with elements that are not finite, with one kernel for each dtype unless there
    are too many arrays for its arguments.

    Args:
        named: names and arrays on the current GPU, of dtype float16, float32 or float64.

    Returns:
        The names of arrays that have elements, possibly reordered, and an int32 array on the GPU: a
        flag that is not 0 if an array has elements that are not finite, followed by a flag for each
        name.

    Example:
        >>> names, found = find_not_finite([("/l/W", grad)])  # doctest: +SKIP
    """
    groups: dict[Any, list] = {}
    for name, array in named:
        if array.size:
            groups.setdefault(array.dtype, []).append((name, array))
    names = [name for group in groups.values() for name, _ in group]
    found = cuda.cupy.zeros(1 + len(names), np.int32)
    first, most = 1, _most(1, [found, found])
    for dtype, group in groups.items():
        arrays = [x if x.flags.c_contiguous else x.copy("C") for _, x in group]
        for start in range(0, len(arrays), most):  # each kernel counts its arrays from 0
            portion = arrays[start : start + most]
            _launch(_not_finite(dtype), ["g"], [portion], [found, found[first:]])
            first += len(portion)
    return names, found


def _not_finite(dtype):
    body = """    T x = (T)arrays.g[k][i];
    if (!(x - x == 0)) { atomicOr(found, 1); atomicOr(places + k, 1); }"""
    kind = "double" if dtype.char == "d" else "float"
    return _Function("mpchain_not_finite", kind, ["int* found", "int* places"], body)


def _most(n_lists, more):
    """Returns the number of arrays of each list for which a kernel's arguments have space besides
    its other arguments."""
    n_bytes = sum(x.nbytes if isinstance(x, np.ndarray) else 8 for x in more)
    return (_argument_bytes() - n_bytes - 8) // (8 * n_lists + 12)


def _argument_bytes():
    """Returns the maximum size of a kernel's arguments in bytes."""
    runtime = cuda.cupy.cuda.runtime
    is_recent = min(runtime.runtimeGetVersion(), runtime.driverGetVersion()) >= 12010
    return 32764 if is_recent else 4096


def _body(step, n_written, scalars, dtypes, n_left_out=0, is_scaled=False):
    """Returns the statements for an element, and the numbers that the statements need."""
    names, constants = [f"a{i}" for i in range(n_written)], Numbers()
    writer = C(constants.name_of)
    results = trace_step(step, names, scalars(n_left_out) if n_left_out else scalars())
    lines = [f"T x_{name} = (T)arrays.{name}[k][i];" for name in (*names, "g")]
    if is_scaled:
        lines.append("x_g *= inverse;")
    half = _C_TYPES[dtypes[-2].char] if len(dtypes) > n_written + 1 else None
    if half:
        lines.append(f"if ((T)({half})x_a0 != (T)arrays.h[k][i]) x_a0 = (T)arrays.h[k][i];")
    lines += writer.lines(*results)
    for name, result, dtype in zip(names, results, dtypes):
        lines.append(f"arrays.{name}[k][i] = ({_C_TYPES[dtype.char]}){writer.operand(result)};")
    if half:
        lines.append(f"arrays.h[k][i] = ({half})(float)arrays.a0[k][i];")
    return "\n".join("    " + line for line in lines), constants


def _text(function, names, dtypes, capacity):
    pointers = [
        f"  {'const ' if name == 'g' else ''}{_C_TYPES[dtype.char]}* {name}[{capacity}];"
        for name, dtype in zip(names, dtypes, strict=True)
    ]
    headers = "#include <cupy/float16.cuh>\n" if any(d.char == "e" for d in dtypes) else ""
    headers += _BFLOAT16 if any(d.char == "E" for d in dtypes) else ""
    return _TEXT.format(
        headers=f"{headers}typedef {function.kind} T;\n",
        types=function.types,
        pointers="\n".join(pointers),
        capacity=capacity,
        function=function.name,
        numbers="".join(f", {parameter}" for parameter in function.declared),
        first=function.first,
        elements=_ELEMENTS,
        body=function.body,
    )


def _table(names, arrays, capacity):
    """Returns the first argument of the kernel, and the number of its blocks."""
    fields: list[Any] = [(name, np.uint64, capacity) for name in names]
    fields += [("size", np.int64, capacity), ("first_block", np.int32, capacity), ("n", np.int32)]
    table = np.zeros(1, np.dtype(fields, align=True))
    row, n = table[0], len(arrays[0])
    for name, part in zip(names, arrays, strict=True):
        row[name][:n] = [array.data.ptr for array in part]
    sizes = np.array([array.size for array in arrays[0]], np.int64)
    ends = np.cumsum(-(-sizes // _ELEMENTS))
    row["size"][:n], row["first_block"][1:n], row["n"] = sizes, ends[:-1], n
    return table, int(ends[-1])
