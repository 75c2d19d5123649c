"""Optimizer steps, which apply an elementwise function to arrays in place, as fast as possible.

All implementations return the same bits: NumPy on whole arrays, NumPy on blocks that stay in the
cache, a fused loop that numba compiles from the trace of the function, and one kernel on a GPU (but
for numbers that GPUs treat as zero; see :mod:`mpchain.kernels.gpu.cuda_steps`).

For many parameters, the arrays are gathered, the step is taken once, and the results are scattered.
On the host, small arrays are copied into flat arrays, because calls take longer than copies. On a
GPU, only pointers are copied (:mod:`mpchain.kernels.gpu.cuda_steps`).
"""

import functools
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain import annexes
from mpchain.backends import cuda
from mpchain.backends.cuda import get_array_module, is_gpu_array, reduce
from mpchain.backends.dtypes import is_half
from mpchain.formulas.symbol import Symbol, UntraceableError, in_order, trace_step
from mpchain.formulas.text import compile_text
from mpchain.formulas.writer import Numba, Python, number_in_python
from mpchain.kernels import thresholds
from mpchain.kernels.cpu.compiler import Switch, compile_written_loop, load_numba
from mpchain.kernels.cpu.numba_threads import run_elements
from mpchain.observers import current
from mpchain.typing import Array

_on_gpu = annexes.find("gpu_kernels", "kernels.gpu.cuda_steps")

_switches = {}  # this maps steps to what decides when a compiled loop takes them


def take_step(
    step: Callable,
    param: Array,
    grad: Array,
    states: list[Array],
    scalars: Callable[..., dict[str, Any]],
) -> None:
    """Applies an elementwise step to arrays in place.

    Args:
        step: function of ``param``, ``grad``, the states and, by name, the scalars. It may
            overwrite the arrays except ``grad``, and returns the new values of ``param`` and the
            states.
        param, grad: the arrays, of the same shape and on the same device; ``grad`` is not changed.
        states: further arrays of the same shape.
        scalars: a function that returns further arguments of ``step``, Python numbers. It is called
            again before each replay of a captured step.

    Example:
        >>> p = np.array([1.0, 2.0])
        >>> take_step(lambda p, g, lr: (p - lr * g,), p, np.ones(2), [], lambda: {"lr": 0.5})
        >>> p
        array([0.5, 1.5])
    """
    if isinstance(param, np.ndarray):
        _step_on_host(step, [param, *states], grad, dict(scalars()))
    else:
        take_steps(step, [[array] for array in (param, *states)], [grad], scalars)


def take_steps(
    step: Callable,
    written: Sequence[Sequence[Array]],
    grads: Sequence[Array],
    scalars: Callable[..., dict[str, Any]],
    halves: Sequence[Array] = (),
    inverse: Array | float | None = None,
) -> None:
    """Takes a step for many parameters on one device, which is faster than a call of
    :func:`take_step` for each.

    Args:
        step, scalars: see :func:`take_step`.
        written: a list of the parameters; then, for each state of the step, a list of the states of
            the parameters. All arrays of a list have the same dtype; a parameter and its states
            have the same shape.
        grads: the gradients, all of the same dtype.
        halves: on a GPU, the half-precision parameters of which ``written`` holds copies in higher
            precision. The step writes these parameters too. Where other code changed them, so that
            they differ from the rounded copies, the step starts from the values of these
            parameters.
        inverse: on a GPU, a factor on the gradients: a number or a float32 array (); None means 1.

    Example:
        >>> p, q = np.ones(1), np.zeros((2, 2))
        >>> take_steps(lambda p, g: (p - g,), [[p, q]], [np.ones(1), np.ones((2, 2))], dict)
        >>> p, q[0]
        (array([0.]), array([-1., -1.]))
    """
    if isinstance(grads[0], np.ndarray):
        _steps_on_host(step, written, grads, dict(scalars()))
    elif _on_gpu is not None and _on_gpu.take_steps(step, written, grads, scalars, halves, inverse):
        return
    elif inverse is not None:
        grads = [g.astype(np.float32) * inverse for g in grads]
        take_steps(step, written, grads, scalars, halves)
    elif len(grads) == 1:
        _step_without_kernel(step, [array for (array,) in written], grads[0], scalars, halves)
    else:  # this path also serves arrays that are not contiguous
        for i in range(len(grads)):
            one = slice(i, i + 1)
            take_steps(step, [x[one] for x in written], grads[one], scalars, halves[one])


def is_plain_on_gpu(x: Array | None) -> bool:
    """Returns whether :func:`multiply_all` accepts an array, which must be float32, contiguous and
    on the current GPU.

    Example:
        >>> is_plain_on_gpu(np.ones(2, np.float32))
        False
    """
    if x is None or not is_gpu_array(x) or x.dtype.char != "f":
        return False
    return bool(x.flags.c_contiguous) and x.device == cuda.cupy.cuda.Device()


def multiply_all(arrays: Sequence[Array], factor: Array | float) -> list[Array]:
    """Returns the products of arrays and a factor; on GPUs, one kernel computes all products.

    Args:
        arrays: arrays for which :func:`is_plain_on_gpu` is True.
        factor: a number or a float32 array ().

    Example:
        >>> multiply_all([], 2.0)
        []
    """
    assert _on_gpu is not None or not arrays  # without kernels for GPUs, no array is accepted
    return _on_gpu.multiply_all(arrays, factor) if _on_gpu is not None and arrays else []


def _step_without_kernel(step, written, grad, scalars, halves):
    if current.graph is not None:
        current.graph.refuse(f"the numbers of {step.__qualname__} would be frozen in the graph")
    guard = None if _on_gpu is None else _on_gpu.guarding.guard
    n_left_out = 0 if guard is None else guard.wait()
    if n_left_out is None:
        return
    for half in halves:
        is_current = written[0].astype(half.dtype) == half
        written[0][...] = get_array_module(half).where(is_current, written[0], half)
    _step_once(step, written, grad, scalars(n_left_out) if n_left_out else scalars())
    for half in halves:
        half[...] = written[0]


def _steps_on_host(step, written, grads, scalars):
    rows, small = zip(*written, grads), []
    for row in rows:
        if row[0].size <= thresholds.small:
            small.append(row)
        else:
            _step_on_host(step, row[:-1], row[-1], scalars)
    with_states, without = thresholds.worth_gathering
    if len(small) >= (with_states if written[1:] else without):
        for portion in _portions(small):
            _step_gathered(step, portion, scalars)
    else:
        for row in small:
            _step_once(step, row[:-1], row[-1], scalars)


def _portions(rows):
    """Yields rows in lists of at most ``thresholds.gathered`` elements."""
    portion, size = [], 0
    for row in rows:
        n = row[0].size
        if size + n > thresholds.gathered:
            yield portion
            portion, size = [], 0
        portion.append(row)
        size += n
    yield portion


def _step_gathered(step, rows, scalars):
    """Takes a step on small arrays, which are concatenated into flat arrays."""
    lists = [*zip(*rows)]
    shapes = tuple([array.shape for array in lists[0]])
    flat, views = _rooms.of(shapes, tuple([arrays[0].dtype for arrays in lists]))
    for arrays, values in zip(lists, flat):
        np.concatenate(arrays, axis=None, out=values)
    _step_on_host(step, flat[:-1], flat[-1], scalars)
    for arrays, values in zip(lists[:-1], views):
        for array, value in zip(arrays, values):
            array[...] = value


class _Rooms(threading.local):
    """The memory of a thread for gathered arrays. The memory is cached, because making its views
    takes longer than the copies."""

    def __init__(self):
        self.of = functools.lru_cache(maxsize=8)(self._make)

    @staticmethod
    def _make(shapes, dtypes):
        """Returns a flat array for each dtype, and lists of views of its parts in the given
        shapes."""
        stops = [*itertools.accumulate(map(math.prod, shapes))]
        flat = [np.empty(stops[-1], dtype) for dtype in dtypes]
        places = [*zip(shapes, [0, *stops], stops)]
        return flat, [[x[i:j].reshape(shape) for shape, i, j in places] for x in flat]


_rooms = _Rooms()


def _step_on_host(step, written, grad, scalars):
    is_small = written[0].size <= thresholds.small
    if is_small or not all([a.flags.c_contiguous for a in written]):
        _step_once(step, written, grad, scalars)
        return
    flat = [array.reshape(-1) for array in written]
    grad = grad.reshape(-1)
    if _step_fused(step, flat, grad, scalars):
        return
    if written[0].nbytes <= thresholds.step_block:
        _step_once(step, flat, grad, scalars)
        return
    n = thresholds.step_block // written[0].itemsize
    for start in range(0, grad.size, n):
        block = slice(start, start + n)
        _step_once(step, [array[block] for array in flat], grad[block], scalars)


def _step_once(step, written, grad, scalars):
    param, *states = written
    if is_half(grad.dtype):
        grad = grad.astype(np.float32)
    for array, value in zip(written, step(param, grad, *states, **scalars), strict=True):
        if value is not array:
            array[...] = value


def _step_fused(step, written, grad, scalars):
    """Takes the step by a compiled loop if this is possible and faster; returns whether the step
    was taken."""
    dtype = grad.dtype
    if dtype not in (np.float32, np.float64) or any(array.dtype != dtype for array in written):
        return False
    switch = _switches.get(step) or _switches.setdefault(step, Switch())

    def find():
        return _latest.of(step, len(written), scalars, dtype)

    try:
        is_due = switch.is_due(grad.size, lambda: find()[0], thresholds.compiled_step)
        if not is_due or load_numba() is None:
            return False
        loop, constants = find()
    # the step cannot be traced; if the step itself is wrong, the error is raised when it is
    # computed on arrays
    except Exception:
        return False
    if not all(x.flags.writeable for x in written):
        raise ValueError(
            "an optimizer's step: a parameter or its state is read-only, but the step must write "
            "into it: use a writable copy"
        )
    run_elements(loop, grad.size, constants, grad, *written)
    return True


class _Latest(threading.local):
    """The last loop of a thread and its constants, which all parameters of an update share.

    Each update has a dict of its own, even if the rule returns the same dict, changed, each time.
    """

    scalars: Any = None
    known: Any = None

    def of(self, step, n_written, scalars, dtype):
        if self.scalars is not scalars or self.known[:3] != (step, n_written, dtype):
            text, constants = _text_and_constants(step, n_written, scalars)
            self.known = step, n_written, dtype, _compiled(text), np.array(constants, dtype)
            self.scalars = scalars
        return self.known[3:]


_latest = _Latest()


def square_sum(array: Array) -> float:
    """Returns the sum of the squares of an array as a Python number. The squares of float16
    elements do not overflow.

    Example:
        >>> square_sum(np.array([3.0, 4.0]))
        25.0
    """
    return float(_square_sum(array))


def square_sums(arrays: Sequence[Array]) -> Array:
    """Returns the sums of the squares of arrays as a float64 array (n,), which is on the arrays'
    GPU if all are on the same GPU.

    Example:
        >>> square_sums([np.array([3.0, 4.0]), np.ones(2, np.float16)])
        array([25.,  2.])
    """
    if not share_gpu(arrays):
        return np.array([square_sum(array) for array in arrays])
    xp = get_array_module(arrays[0])
    first: Any = arrays[0]
    with first.device:
        return xp.stack([_square_sum(array) for array in arrays], dtype=np.float64)


def share_gpu(arrays: Sequence[Array]) -> bool:
    """Returns whether all arrays are on the same GPU; False without arrays.

    Example:
        >>> share_gpu([np.ones(2)])
        False
    """
    return all(map(is_gpu_array, arrays)) and len({array.device for array in arrays}) == 1


def _square_sum(array):
    flat = array.reshape(-1).astype(np.promote_types(array.dtype, np.float32), copy=False)
    if isinstance(flat, np.ndarray):
        return np.vdot(flat, flat)
    square_sum = reduce("T x", "T y", "x * x", "a + b", "y = a", "0", "mpchain_square_sum")
    # this sum is not computed by CuPy's vdot, because a captured step cannot contain vdot
    return square_sum(flat)


# This maps a step, its number of arrays and the names of its scalars to the names of those scalars
# that its text leaves open.
_open = {}


def _text_and_constants(step, n_written, scalars):
    """Returns the Python text of a loop that takes the step, and the constants that the loop needs.

    The text leaves open all numbers on which it does not depend, so that another learning rate
    needs no new text.
    """
    key = step, n_written, tuple(scalars)
    free = _open.get(key)
    if free is None:
        free = tuple([name for name, value in scalars.items() if type(value) in (int, float)])
    while True:
        fixed = tuple([(name, value) for name, value in scalars.items() if name not in free])
        try:
            text, constants_of = _write_down(step, n_written, fixed, free)
            break
        except Exception as error:
            if not free:
                raise
            decides = getattr(error, "symbol", None)
            free = tuple([x for x in free if x != decides]) if decides in free else ()
    _open[key] = free
    constants = constants_of(*[scalars[name] for name in free])
    if not all(map(math.isfinite, constants)):
        raise UntraceableError("a constant that is not finite")
    return text, constants


@functools.lru_cache(maxsize=16)  # all parameters of an update share one entry
def _write_down(step, n_written, fixed, free):
    """Returns the text of a loop, and a function of the scalars ``free`` that returns constants."""
    arrays = [f"a{i}" for i in range(n_written)]
    results = trace_step(step, arrays, dict(fixed), free)
    if any([not isinstance(r, Symbol) or r.is_constant for r in results]):
        raise UntraceableError("a result that is a number")
    steps, numbers = in_order(*results), {}
    of_numbers = [s for s in steps if s.is_constant]
    if free and any(map(_is_power_of_numbers, steps)):
        raise UntraceableError("NumPy's and Python's powers of numbers differ")
    write = Numba(lambda x: numbers.setdefault(number_in_python(x), f"c{len(numbers)}"))
    body = [f"x_{name} = {name}[i]" for name in ("g", *arrays)]
    body += [write.statement(s) for s in steps if not s.is_constant]
    body += [f"{x}[i] = {r.name}" for x, r in zip(arrays, results, strict=True)]
    text = [f"def run(c, g, {', '.join(arrays)}):"]
    text += [f"    c{i} = c[{i}]" for i in range(len(numbers))]
    text += ["    for i in range(g.size):", *("        " + line for line in body)]
    own = Python()
    lines = [own.statement(s) for s in of_numbers] + [f"return [{', '.join(numbers)}]"]
    lines = [f"def constants({', '.join(free)}):", *lines]
    return "\n".join(text), compile_text("constants of a step", "\n    ".join(lines), own.known)


def _is_power_of_numbers(step):
    return step.function is np.power and any(
        isinstance(x, Symbol) and x.is_constant for x in step.operands
    )


@functools.cache
def _compiled(text):
    return compile_written_loop("an optimizer's step", text)
