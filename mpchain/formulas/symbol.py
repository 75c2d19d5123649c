"""Formulas traced: an elementwise formula applied to symbols becomes a list of steps.

The symbols follow NumPy's dispatch protocols, as Variables do, so the very text that computes on
arrays is traced. The steps can be written as C, for one fused GPU kernel, or as Python.
"""

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mpchain.backends import cuda

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
PYTHON = {f: _C[f] for f in (np.add, np.subtract, np.multiply, np.divide, np.negative)}
PYTHON |= {np.power: "{} ** {}"}
# Of Python's numbers, operators make Python's numbers; NumPy's would widen float32 arrays.
# Variables have no comparison operators.
CONSTANT_OPERATORS = PYTHON | {
    f: text for f, text in _C_PREDICATES.items() if not f.__name__.startswith("logical")
}


Mixin = np.lib.mixins.NDArrayOperatorsMixin


class UntraceableError(AttributeError):
    """The formula uses something that has no counterpart in an elementwise kernel.

    An AttributeError, because ``hasattr`` must be able to ask a symbol for what it lacks.

    Example:
        >>> trace(lambda x: np.sum(x), ["x"])
        Traceback (most recent call last):
            ...
        mpchain.formulas.symbol.UntraceableError: numpy.sum
    """


class Symbol(Mixin):
    """A value of a formula that is being written down; it passes for a 0-d array.

    Args:
        steps: where every operation appends its result.
        name: the name that holds the value in the text.
        function, operands: how it was computed; None for a parameter of the formula.
        is_constant: whether it is made of constants alone.

    Example:
        >>> steps = []
        >>> y = np.exp(Symbol(steps, "x")) + 1
        >>> print(y.name, [step.function.__name__ for step in steps])
        t1 ['exp', 'add']
    """

    is_symbol = True
    shape = ()
    ndim = 0
    size = 1
    dtype = np.dtype(np.float64)
    base = None

    def __init__(
        self,
        steps: list["Symbol"],
        name: str,
        function: Callable | None = None,
        operands: Sequence = (),
        is_constant: bool = False,
    ):
        self.steps, self.name, self.function, self.operands = steps, name, function, operands
        self.is_constant = is_constant
        self.is_bool = function in _C_PREDICATES

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if not all(isinstance(x, _OPERANDS) for x in inputs):
            return NotImplemented  # a Variable, perhaps
        if method != "__call__" or kwargs or (ufunc not in _C and ufunc not in _C_PREDICATES):
            raise UntraceableError(f"numpy.{ufunc.__name__}.{method}")
        return self._step(ufunc, inputs)

    def __array_function__(self, function: Callable, types: Any, args: Any, kwargs: dict) -> Any:
        if not all(issubclass(t, _OPERANDS) for t in types):
            return NotImplemented
        if function is not np.where or len(args) != 3:
            raise UntraceableError(f"numpy.{function.__name__}")
        return self._step(function, args)

    def _step(self, function, operands):
        operands = tuple(map(_as_operand, operands))
        is_constant = all(getattr(x, "is_constant", True) for x in operands)
        symbol = type(self)(self.steps, f"t{len(self.steps)}", function, operands, is_constant)
        self.steps.append(symbol)
        return symbol

    # Nothing can change a symbol: x += y makes a new one.
    __iadd__, __isub__ = Mixin.__add__, Mixin.__sub__
    __imul__, __itruediv__ = Mixin.__mul__, Mixin.__truediv__

    def __getattr__(self, name: str) -> Any:
        raise UntraceableError(f"attribute {name}")

    def __bool__(self) -> bool:
        raise UntraceableError("a branch on a value")

    def copy(self) -> "Symbol":
        """Returns the symbol itself: nothing changes it."""
        return self


class Whole(Symbol):
    """A symbol of which a declared function makes one step, whatever operations its body has.

    The step is differentiated by the function's own derivative. That of its body is another one
    where operations of the body have kinks, or where the function declares what its body is not.

    Example:
        >>> steps = []
        >>> y = F.softplus.on(Whole(steps, "x"), 2.0)
        >>> [(step.function.__name__, step.operands[1:]) for step in steps]
        [('softplus', (2.0,))]
    """

    def call(self, declaration: Any, arguments: Sequence) -> Any:
        """Returns a declared elementwise function of symbols, of which this is one."""
        n = len(self.steps)
        result = declaration.body(*arguments)
        names = [step.function.__name__.lstrip("_") for step in self.steps[n:]]
        # One operation of NumPy is written as that, which leads to this function for Variables.
        is_operation = len(names) == 1 and declaration.name.startswith(names[0])
        if declaration.is_own and (is_operation or not names):
            return result
        del self.steps[n:]

        def call(*arguments):
            return declaration.on(*arguments)

        call.__name__ = declaration.name
        return self._step(call, arguments)


_OPERANDS = Symbol, np.ndarray, np.generic, int, float, complex


def written_as(text: str) -> Callable[[Callable], Callable]:
    """Decorator: gives a function of arrays its counterpart in C.

    Its attribute ``declared``, to be set, is the declared function that takes Variables. It may
    have a keyword ``out`` as NumPy's have, which saves memory.

    Args:
        text: an expression of the operands ``{0}``, ``{1}``, ..., over the type ``T``.

    Example:
        >>> @written_as("erf({})")
        ... def erf(x):
        ...     return np.vectorize(math.erf)(x)
        >>> print(render_c(trace(erf, ["x"])))
        T t0 = erf(in_x);
        out = t0;
    """

    def decorate(function):
        @functools.wraps(function)
        def call(*operands, **keywords):
            for x in operands:
                if isinstance(x, Symbol):
                    return x._step(call, operands)
                if hasattr(x, "creator_node"):  # a Variable
                    return call.declared(*operands)
            return function(*operands, **keywords)

        parameters = inspect.signature(function).parameters
        call.on_arrays = function
        call.takes_out = "out" in parameters
        call.nin = len(parameters) - call.takes_out
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


def needed(*results: Any) -> dict[str, Symbol]:
    """Returns the symbols that the results depend on, by name.

    Example:
        >>> sorted(needed(trace(lambda x, y: x + 1, ["x", "y"])))
        ['in_x', 't0']
    """
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


def operation_in_c(symbol: Symbol, texts: Iterable[str]) -> str:
    """Returns the C statement that computes a symbol over the type ``T`` from its operands.

    Example:
        >>> operation_in_c(trace(lambda x: x + 1, ["x"]), ["x", "one"])
        'T t0 = x + one;'
    """
    kind = "bool" if symbol.is_bool else "T"
    return f"{kind} {symbol.name} = {(_C | _C_PREDICATES)[symbol.function].format(*texts)};"


def render_c(*results: Any) -> str:
    """Returns C statements over the type ``T`` that compute ``out`` from the parameters.

    Several results are ``out``, ``out1``, ``out2`` and so on.

    Example:
        >>> print(render_c(trace(lambda g, y: g * np.greater(y, 0), ["g", "y"])))
        bool t0 = in_y > (T)0.0;
        T t1 = in_g * (T)t0;
        out = t1;
    """
    lines = []
    for symbol in in_order(*results):
        function, operands = symbol.function, symbol.operands
        logical = function.__name__.startswith("logical")
        texts = [
            _in_c(x, logical or (function is np.where and i == 0)) for i, x in enumerate(operands)
        ]
        lines.append(operation_in_c(symbol, texts))
    lines += [f"out{i or ''} = {_in_c(result)};" for i, result in enumerate(results)]
    return "\n".join(lines)


def in_order(*results: Any) -> list[Symbol]:
    """Returns the operations that lead to the results, in the order in which they were made.

    Example:
        >>> [step.name for step in in_order(trace(lambda x: np.exp(x) + 1, ["x"]))]
        ['t0', 't1']
    """
    found = needed(*results)
    steps = next((s.steps for s in found.values()), [])
    return [s for s in steps if s.function is not None and s.name in found]


def in_python(
    function: Callable, texts: Iterable[str], operators: dict[Callable, str], known: dict[str, Any]
) -> str:
    """Returns the Python expression of an operation.

    Args:
        function: the operation.
        texts: its operands.
        operators: operations that are written otherwise than as a call.
        known: receives the function by the name that the call uses.

    Example:
        >>> in_python(np.add, ["x", "1"], PYTHON, {}), in_python(np.exp, ["x"], PYTHON, {})
        ('x + 1', 'f_exp(x)')
    """
    if function in operators:
        return operators[function].format(*texts)
    name = f"f_{function.__name__}"
    known[name] = function
    return f"{name}({', '.join(texts)})"


def operand_in_python(operand: Any) -> str:
    """Returns the name of a symbol, or the number.

    Example:
        >>> operand_in_python(-0.5)
        '(-0.5)'
    """
    if isinstance(operand, Symbol):
        return operand.name
    return f"({operand!r})" if operand < 0 else repr(operand)


def trace(formula: Callable, parameters: Iterable[str]) -> Any:
    """Applies a formula to symbols named after its parameters; returns its result.

    Example:
        >>> print(render_c(trace(lambda x, y: x * y + 2, ["x", "y"])))
        T t0 = in_x * in_y;
        T t1 = t0 + (T)2.0;
        out = t1;
    """
    steps = []
    return formula(*(Symbol(steps, "in_" + name) for name in parameters))


class _Element(Symbol):
    """An element of arrays whose shape and dtype are not known."""

    def _refuse(self):
        raise UntraceableError("a property of the whole array")

    shape = ndim = size = dtype = property(_refuse)


def trace_step(step: Callable, written: Sequence[str], scalars: dict[str, Any]) -> tuple:
    """Applies the step of an optimizer to symbols x_NAME of arrays; returns its results.

    Args:
        step: see :class:`mpchain.UpdateRule`.
        written: the names of the parameter and the states; the gradient's is ``g``.
        scalars: further arguments.

    Example:
        >>> (p,) = trace_step(lambda p, g, lr: (p - lr * g,), ["p"], {"lr": 0.5})
        >>> [s.operands for s in in_order(p)][0][0]
        0.5
    """
    steps = []
    param, grad, *states = (_Element(steps, f"x_{n}") for n in (written[0], "g", *written[1:]))
    return step(param, grad, *states, **scalars)


def fused_kernel(name: str, formula: Callable) -> Any:
    """Returns the fused ``cupy.ElementwiseKernel`` of a formula.

    None if the formula cannot be fused, or returns a parameter: that needs no kernel.

    Example:
        >>> fused_kernel("of_sums", lambda x: np.sum(x)) is None  # it cannot be fused
        True
    """
    parameters = list(inspect.signature(formula).parameters)
    try:
        result = trace(formula, parameters)
        code = render_c(result)
    except UntraceableError:
        return None
    if isinstance(result, Symbol) and result.function is None:
        return None
    declared = ", ".join(f"T in_{parameter}" for parameter in parameters)
    return cuda.elementwise(declared, "T out", code, f"mpchain_{name}")


def fused(formula: Callable) -> Callable:
    """Decorator: for CuPy arrays of one dtype and shape, an elementwise formula is one kernel.

    Arguments and results are arrays, or lists and tuples of them. The formula itself runs for all
    others, such as NumPy arrays and Variables.

    Example:
        >>> @fused
        ... def swap_and_add(pair):
        ...     x, y = pair
        ...     return (y, x), x + y
        >>> swap_and_add((np.array([1.0]), np.array([2.0])))
        ((array([2.]), array([1.])), array([3.]))
    """

    @functools.cache
    def kernel(structure, n):
        steps = []
        symbols = [Symbol(steps, f"in_{i}") for i in range(n)]
        results = formula(*_filled(structure, iter(symbols)))
        leaves = _leaves(results)
        outs = ", ".join(f"T out{i or ''}" for i in range(len(leaves)))
        ins = ", ".join(f"T in_{i}" for i in range(n))
        name = f"mpchain{formula.__name__}"
        compiled = cuda.elementwise(ins, outs, render_c(*leaves), name, return_tuple=True)
        return compiled, _structure(results)

    @functools.wraps(formula)
    def call(*args):
        if "cupy" not in sys.modules:
            return formula(*args)
        arrays = _leaves(args)
        first = arrays[0]
        if not cuda.is_gpu_array(first) or any(
            not cuda.is_gpu_array(x) or x.dtype != first.dtype or x.shape != first.shape
            for x in arrays
        ):
            return formula(*args)
        compiled, structure = kernel(_structure(args), len(arrays))
        return _filled(structure, iter(compiled(*arrays)))

    return call


def _leaves(tree):
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in _leaves(item)]
    return [tree]


def _structure(tree):
    """The nesting of a tree, as tuples."""
    return tuple(map(_structure, tree)) if isinstance(tree, (list, tuple)) else None


def _filled(structure, leaves):
    if structure is None:
        return next(leaves)
    return tuple([_filled(item, leaves) for item in structure])
