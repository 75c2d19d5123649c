"""Optimizer steps: one elementwise body on arrays, in place, by the fastest way that is there.

All ways compute the same, to the bit: NumPy on the whole arrays, NumPy on blocks that stay in the
cache, and one fused loop that numba compiles from what the body writes down when it is called with
symbols.
"""

import functools

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.kernels.numba_cpu import compile_loop, load_numba

_BLOCK_BYTES = 1 << 17
"""A step works through larger host arrays in blocks of this size, which stay in the cache."""

_ELEMENTS_WORTH_COMPILING = 1 << 26
"""A step is compiled after that many elements: when it has cost about what compiling costs."""

_elements_seen = {}


def take_step(step, param, grad, states, scalars):
    """Applies an elementwise step to arrays in place.

    Args:
        step: function of ``param``, ``grad``, the states and, by name, the scalars. It may
            overwrite the arrays except ``grad``, and returns the new values of all but ``grad``.
        param, grad: the arrays, of one shape and on one device; ``grad`` is not changed.
        states (list): further arrays of that shape.
        scalars (dict): further arguments of ``step``, Python numbers.
    """
    written = [param, *states]
    n = _BLOCK_BYTES // param.itemsize
    if (
        not isinstance(param, np.ndarray)
        or param.size <= n
        or not all(array.flags.c_contiguous for array in written)
    ):
        _step_once(step, written, grad, scalars)
        return
    flat = [array.reshape(-1) for array in written]
    grad = grad.reshape(-1)
    if _step_fused(step, flat, grad, scalars):
        return
    for start in range(0, param.size, n):
        block = slice(start, start + n)
        _step_once(step, [array[block] for array in flat], grad[block], scalars)


def _step_once(step, written, grad, scalars):
    param, *states = written
    if grad.dtype == np.float16:
        grad = grad.astype(np.float32)
    for array, value in zip(written, step(param, grad, *states, **scalars), strict=True):
        if value is not array:
            array[...] = value


def _step_fused(step, written, grad, scalars):
    """Takes the step by a compiled loop, if it pays and can be done; returns whether it did."""
    dtype = grad.dtype
    if dtype not in (np.float32, np.float64) or any(array.dtype != dtype for array in written):
        return False
    _elements_seen[step] = seen = _elements_seen.get(step, 0) + grad.size
    if seen <= _ELEMENTS_WORTH_COMPILING or load_numba() is None:
        return False
    try:
        text, constants = _write_down(step, len(written), scalars)
    except Exception:  # it needs arrays; what else is wrong with it shows when it gets them
        return False
    _compiled(text)(np.array(constants, dtype), grad, *written)
    return True


def square_sum(array):
    """Returns the sum of the squares of an array as a Python number; float16 does not overflow."""
    xp = get_array_module(array)
    flat = array.reshape(-1).astype(np.promote_types(array.dtype, np.float32), copy=False)
    return float(xp.vdot(flat, flat))


class _NoFormulaError(TypeError):
    """The step uses something else than arithmetic on its arguments."""


_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}
_FUNCTIONS = {np.sqrt, np.maximum, np.minimum, np.sign, np.abs, np.negative}
_UFUNC_OPERATORS = {np.add: "+", np.subtract: "-", np.multiply: "*", np.divide: "/"}


class _Symbol:
    """A value of a step that is being written down: each operation appends a line.

    Numbers are written as elements of an array of constants: another learning rate, the same text.
    """

    __array_priority__ = 1

    def __init__(self, name, lines, constants):
        self._name, self._lines, self._constants = name, lines, constants

    def _write(self, form, *operands):
        names = []
        for operand in operands:
            if isinstance(operand, _Symbol):
                names.append(operand._name)
            elif isinstance(operand, (int, float)):
                names.append(f"c{len(self._constants)}")
                self._constants.append(operand)
            else:
                raise _NoFormulaError(f"an operand of type {type(operand).__name__}")
        name = f"t{len(self._lines)}"
        self._lines.append(f"{name} = {form.format(*names)}")
        return _Symbol(name, self._lines, self._constants)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if method != "__call__" or kwargs:
            raise _NoFormulaError(f"numpy.{ufunc.__name__}.{method}")
        if ufunc in _UFUNC_OPERATORS:
            return self._write(f"{{}} {_UFUNC_OPERATORS[ufunc]} {{}}", *inputs)
        if ufunc not in _FUNCTIONS:
            raise _NoFormulaError(f"numpy.{ufunc.__name__}")
        places = ", ".join("{}" for _ in inputs)
        return self._write(f"np.{ufunc.__name__}({places})", *inputs)

    def __neg__(self):
        return self._write("-{}", self)

    def __bool__(self):
        raise _NoFormulaError("a branch on a value")


def _define_operators():
    for name, sign in _OPERATORS.items():
        form = f"{{}} {sign} {{}}"
        setattr(_Symbol, f"__{name}__", lambda x, y, form=form: x._write(form, x, y))
        setattr(_Symbol, f"__r{name}__", lambda x, y, form=form: x._write(form, y, x))


_define_operators()


def _write_down(step, n_written, scalars):
    """Returns Python text of a loop that takes the step, and the constants that it needs."""
    lines, constants = [], []
    arrays = [f"a{i}" for i in range(n_written)]
    param, grad, *states = (
        _Symbol(f"x_{name}", lines, constants) for name in ("a0", "g", *arrays[1:])
    )
    results = step(param, grad, *states, **scalars)
    if not all(isinstance(result, _Symbol) for result in results):
        raise _NoFormulaError("a result that does not depend on the arguments")
    text = [f"def run(c, g, {', '.join(arrays)}):"]
    text += [f"    c{i} = c[{i}]" for i in range(len(constants))]
    text += ["    for i in range(g.size):"]
    body = [f"x_{name} = {name}[i]" for name in ("g", *arrays)] + lines
    body += [f"{name}[i] = {r._name}" for name, r in zip(arrays, results, strict=True)]
    return "\n".join(text + ["        " + line for line in body]), constants


@functools.cache
def _compiled(text):
    namespace = {"np": np}
    exec(text, namespace)
    return compile_loop(namespace["run"])
