"""Formulas written down: an elementwise formula applied to symbols becomes statements.

The symbols follow NumPy's dispatch protocols, as Variables do, so the very text that computes on
arrays is traced. What was written down is rendered as C, for one fused kernel, or as Python; and,
since a Variable can hold a symbol as it holds an array, backpropagation through a formula writes
down its derivatives.
"""

import functools
import inspect
import math

import numpy as np

from mpchain import backprop
from mpchain.backends import cuda
from mpchain.configuration import force_backprop_mode, using_config
from mpchain.variable import Variable

_C = {
    np.add: "{} + {}",
    np.subtract: "{} - {}",
    np.multiply: "{} * {}",
    np.divide: "{} / {}",
    np.negative: "-{}",
    np.positive: "{}",
    np.maximum: "({0} != {0} || {0} > {1}) ? {0} : {1}",
    np.minimum: "({0} != {0} || {0} < {1}) ? {0} : {1}",
    np.sign: "{0} > (T)0 ? (T)1 : {0} < (T)0 ? (T)-1 : {0}",
    np.square: "{0} * {0}",
    np.reciprocal: "(T)1 / {}",
    np.power: "pow({}, {})",
    np.arctan2: "atan2({}, {})",
    np.fmod: "fmod({}, {})",
    np.absolute: "fabs({})",
    np.arccos: "acos({})",
    np.arcsin: "asin({})",
    np.arctan: "atan({})",
    np.arctanh: "atanh({})",
    np.where: "{} ? {} : {}",
    **{
        getattr(np, name): name + "({})"
        for name in (
            "ceil cos cosh exp expm1 floor log log10 log1p log2 sin sinh sqrt tan tanh trunc"
        ).split()
    },
}
_C_PREDICATES = {
    np.greater: "{} > {}",
    np.greater_equal: "{} >= {}",
    np.less: "{} < {}",
    np.less_equal: "{} <= {}",
    np.equal: "{} == {}",
    np.not_equal: "{} != {}",
    np.logical_and: "{} && {}",
    np.logical_or: "{} || {}",
    np.logical_not: "!{}",
}
_PYTHON = {f: _C[f] for f in (np.add, np.subtract, np.multiply, np.divide, np.negative)}
_PYTHON |= {np.power: "{} ** {}"}
# Of Python's numbers, operators make Python's numbers; NumPy's would widen float32 arrays.
# Variables have no comparison operators.
CONSTANT_OPERATORS = _PYTHON | {
    f: text for f, text in _C_PREDICATES.items() if not f.__name__.startswith("logical")
}


class UntraceableError(AttributeError):
    """The formula uses something that has no counterpart in an elementwise kernel.

    An AttributeError, because ``hasattr`` must be able to ask a symbol for what it lacks.
    """


class Symbol(np.lib.mixins.NDArrayOperatorsMixin):
    """A value of a formula that is being written down; it passes for a 0-d array.

    Args:
        steps (list of Symbol): where every operation appends its result.
        name (str): the variable that holds the value in the rendered text.
        function, operands: how it was computed; None for a parameter of the formula.
        is_constant (bool): whether it is made of constants alone.
    """

    is_symbol = True
    shape = ()
    ndim = 0
    size = 1
    dtype = np.dtype(np.float64)
    base = None

    def __init__(self, steps, name, function=None, operands=(), is_constant=False):
        self.steps, self.name, self.function, self.operands = steps, name, function, operands
        self.is_constant = is_constant
        self.is_bool = function in _C_PREDICATES

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if any(isinstance(x, Variable) for x in inputs):
            return NotImplemented
        if method != "__call__" or kwargs or (ufunc not in _C and ufunc not in _C_PREDICATES):
            raise UntraceableError(f"numpy.{ufunc.__name__}.{method}")
        return self._step(ufunc, inputs)

    def __array_function__(self, function, types, args, kwargs):
        if any(issubclass(t, Variable) for t in types):
            return NotImplemented
        if function is not np.where or len(args) != 3:
            raise UntraceableError(f"numpy.{function.__name__}")
        return self._step(function, args)

    def _step(self, function, operands):
        operands = tuple(map(_as_operand, operands))
        is_constant = all(getattr(x, "is_constant", True) for x in operands)
        symbol = Symbol(self.steps, f"t{len(self.steps)}", function, operands, is_constant)
        self.steps.append(symbol)
        return symbol

    def __iadd__(self, other):
        return self + other

    def __getattr__(self, name):
        raise UntraceableError(f"attribute {name}")

    def __bool__(self):
        raise UntraceableError("a branch on a value")

    def copy(self):
        """Returns the symbol itself: nothing changes it."""
        return self


def written_as(text):
    """Decorator: gives a function of arrays its counterpart in C.

    Its attribute ``declared``, to be set, is the declared function that Variables are given to.

    Args:
        text (str): an expression of the operands ``{0}``, ``{1}``, ..., over the type ``T``.
    """

    def decorate(function):
        @functools.wraps(function)
        def call(*operands):
            for x in operands:
                if isinstance(x, Symbol):
                    return x._step(call, operands)
                if isinstance(x, Variable):
                    return call.declared(*operands)
            return function(*operands)

        call.nin = len(inspect.signature(function).parameters)
        _C[call] = text
        return call

    return decorate


def _as_operand(value):
    if isinstance(value, Symbol):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, (bool, int, float)) or not math.isfinite(value):
        raise UntraceableError(f"operand {value!r}")
    return value


def _needed(results):
    """The steps that the results depend on, in the order in which they were made."""
    needed, stack = {}, [r for r in results if isinstance(r, Symbol)]
    while stack:
        symbol = stack.pop()
        if symbol.name not in needed:
            needed[symbol.name] = symbol
            stack.extend(x for x in symbol.operands if isinstance(x, Symbol))
    return needed


def _in_c(operand, as_bool=False):
    if not isinstance(operand, Symbol):
        return f"(T){float(operand)!r}"
    return f"(T){operand.name}" if operand.is_bool and not as_bool else operand.name


def render_c(result):
    """Returns C statements over the type ``T`` that compute ``out`` from the parameters."""
    lines = []
    for symbol in in_order(result):
        function, operands = symbol.function, symbol.operands
        logical = function.__name__.startswith("logical")
        texts = [
            _in_c(x, logical or (function is np.where and i == 0)) for i, x in enumerate(operands)
        ]
        kind = "bool" if symbol.is_bool else "T"
        lines.append(f"{kind} {symbol.name} = {(_C | _C_PREDICATES)[function].format(*texts)};")
    return "\n".join([*lines, f"out = {_in_c(result)};"])


def in_order(result):
    """Returns the operations that lead to a result, in the order in which they were made."""
    needed = _needed([result])
    steps = next((s.steps for s in needed.values()), [])
    return [s for s in steps if s.function is not None and s.name in needed]


def trace(formula, parameters):
    """Applies a formula to symbols named after its parameters; returns its result."""
    steps = []
    return formula(*(Symbol(steps, "in_" + name) for name in parameters))


def kernel(name, formula):
    """Returns the fused ``cupy.ElementwiseKernel`` of a formula; None if it cannot be fused."""
    parameters = list(inspect.signature(formula).parameters)
    try:
        code = render_c(trace(formula, parameters))
    except UntraceableError:
        return None
    declared = ", ".join(f"T in_{parameter}" for parameter in parameters)
    return cuda.elementwise(declared, "T out", code, f"mpchain_{name}")


def differentiate(formula, names, n_arrays):
    """Writes down the derivatives of an elementwise formula.

    Args:
        formula: a function.
        names: its parameters; those of arrays are the first ``n_arrays``.

    Returns:
        list: for each array parameter a function of the output's gradient and of those parameters
        that it needs, in their order; None where the gradient is zero. None instead of the list for
        a formula of one operation or none: it is as well applied as it is.

    Raises:
        UntraceableError: the formula cannot be written down.
    """
    steps = []
    gradient = "g" + max(names, key=len)
    symbols = [Symbol(steps, n, is_constant=i >= n_arrays) for i, n in enumerate(names)]
    xs, constants = [Variable(x) for x in symbols[:n_arrays]], symbols[n_arrays:]
    with using_config("debug", False), using_config("function_hooks", {}), force_backprop_mode():
        y = formula(*xs, *constants)
        if len(steps) < 2:
            return None
        gxs = backprop.grad([y], xs, [Variable(Symbol(steps, gradient))])
    return [None if gx is None else _as_function(gx.array, gradient, names) for gx in gxs]


def _as_function(result, gradient, names):
    """Compiles a result into a Python function of the gradient and the values that it needs."""
    needed = _needed([result])
    parameters = [gradient, *(name for name in names if name in needed)]
    lines, namespace = [], {"np": np}
    for symbol in in_order(result):
        texts = [x.name if isinstance(x, Symbol) else repr(x) for x in symbol.operands]
        name = symbol.function.__name__
        if symbol.function is getattr(np, name, None):
            name = f"np.{name}"
        else:
            namespace[name] = symbol.function
        default = f"{name}({', '.join(texts)})"
        known = CONSTANT_OPERATORS if symbol.is_constant else _PYTHON
        lines.append(f"{symbol.name} = {known.get(symbol.function, default).format(*texts)}")
    lines.append(f"return {result.name}")
    text = f"def derivative({', '.join(parameters)}):\n    " + "\n    ".join(lines)
    exec(text, namespace)
    namespace["derivative"].__doc__ = text
    return namespace["derivative"]
