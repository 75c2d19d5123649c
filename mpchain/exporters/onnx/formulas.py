"""Converts elementwise formulas to nodes: one converter handles all declared functions of elements.

A few functions use an operator of ONNX instead, which runtimes compute faster than the formula.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain.exporters.onnx.graph import Graph, Untraceable, Value
from mpchain.exporters.onnx.tracing import Dim
from mpchain.formulas.operators import OPERATORS
from mpchain.formulas.symbol import Symbol, UntraceableError, in_order
from mpchain.functions import activation, mathematics, special
from mpchain.functions.declaring.declaration import Declaration

_OPERATORS: dict[Any, str] = {
    np.add: "Add",
    np.subtract: "Sub",
    np.multiply: "Mul",
    np.divide: "Div",
    np.negative: "Neg",
    np.maximum: "Max",
    np.minimum: "Min",
    np.power: "Pow",
    np.absolute: "Abs",
    np.arccos: "Acos",
    np.arcsin: "Asin",
    np.arctan: "Atan",
    np.where: "Where",
    special._erf: "Erf",
    activation._logistic: "Sigmoid",
    **{getattr(np, name.lower()): name for name in "Ceil Cos Exp Floor Log Sign".split()},
    **{getattr(np, name.lower()): name for name in "Sin Sqrt Tan Tanh Reciprocal".split()},
    np.logical_and: "And",
    np.logical_or: "Or",
    np.logical_not: "Not",
    np.greater: "Greater",
    np.greater_equal: "GreaterOrEqual",
    np.less: "Less",
    np.less_equal: "LessOrEqual",
    np.equal: "Equal",
}
_NAMED: dict[str, Callable[..., tuple[str, dict[str, Any]]]] = {
    "relu": lambda: ("Relu", {}),
    "sigmoid": lambda: ("Sigmoid", {}),
    "leaky_relu": lambda slope: ("LeakyRelu", {"alpha": float(slope)}),
    "elu": lambda alpha: ("Elu", {"alpha": float(alpha)}),
    "gelu": lambda: ("Gelu", {}),
    "gelu_tanh": lambda: ("Gelu", {"approximate": "tanh"}),
}


class _Formula:
    """Nodes for operations on operands of one dtype."""

    def __init__(self, graph, dtype):
        self.graph, self.dtype = graph, np.dtype(dtype)

    def number(self, x):
        return self.graph.constant(x, self.dtype)

    def __call__(self, function, *names):
        """Adds the nodes of an operation; its operands are names or scalars."""
        names = [x if isinstance(x, str) else self.number(x) for x in names]
        if function in _OPERATORS:
            return self.graph.add(_OPERATORS[function], *names)
        if function not in _COMPOSED:
            raise Untraceable(f"there is no operator for {function.__name__}")
        return _COMPOSED[function](self, *names)


def _log1p(f, x):
    """Computes log1p accurately for small x, where log(1 + x) is inaccurate."""
    y = f(np.add, x, 1)
    rest = f(np.subtract, y, 1)
    is_one = f(np.equal, rest, 0)
    quotient = f(np.divide, x, f(np.where, is_one, f.number(1), rest))
    # The result is log(y) x / (y - 1), or log(y) where x is large or infinite, or x where y is 1.
    is_large = f(np.greater, x, 1e30)
    quotient = f(np.where, is_large, f.number(1), quotient)
    return f(np.where, is_one, x, f(np.multiply, f(np.log, y), quotient))


def _expm1(f, x):
    """Computes expm1: for small x as tanh(x / 2) (exp(x) + 1), which is accurate there; else as
    exp(x) - 1."""
    y = f(np.exp, x)
    small = f(np.multiply, f(np.tanh, f(np.multiply, x, 0.5)), f(np.add, y, 1))
    return f(np.where, f(np.less, f(np.absolute, x), 1), small, f(np.subtract, y, 1))


def _sinh(f, x):
    y = _expm1(f, x)
    return f(np.multiply, f(np.add, y, f(np.divide, y, f(np.add, y, 1))), 0.5)


def _cosh(f, x):
    y = f(np.exp, f(np.absolute, x))
    return f(np.multiply, f(np.add, y, f(np.reciprocal, y)), 0.5)


def _arctanh(f, x):
    difference = f(np.subtract, _log1p(f, x), _log1p(f, f(np.negative, x)))
    return f(np.multiply, difference, 0.5)


def _arctan2(f, y, x):
    """Divides the smaller coordinate by the larger; rotates the arctangent to the right octant."""
    is_steep = f(np.greater, f(np.absolute, y), f(np.absolute, x))
    larger = f(np.where, is_steep, y, x)
    zero = f(np.equal, larger, 0)
    quotient = f(np.divide, f(np.where, is_steep, x, y), f(np.where, zero, f.number(1), larger))
    angle = f(np.arctan, quotient)
    side = f(np.where, f(np.less, y, 0), f.number(-1), f.number(1))
    turned = f(np.subtract, f(np.multiply, side, math.pi / 2), angle)
    behind = f(np.where, f(np.less, x, 0), f(np.multiply, side, math.pi), f.number(0))
    return f(np.where, is_steep, turned, f(np.add, angle, behind))


def _slope_of_gelu(f, x):
    x = f(mathematics._limited, x, -40, 40)
    density = f(np.multiply, f(np.exp, f(np.multiply, f(np.square, x), -0.5)), _DENSITY)
    return f(np.add, f(special._ndtr, x), f(np.multiply, x, density))


_DENSITY = 1 / math.sqrt(2 * math.pi)
_COMPOSED: dict[Any, Callable[..., str]] = {
    activation._slope_of_gelu: _slope_of_gelu,
    np.arctan2: _arctan2,
    np.arctanh: _arctanh,
    np.cosh: _cosh,
    np.expm1: _expm1,
    np.log1p: _log1p,
    np.sinh: _sinh,
    np.positive: lambda f, x: x,
    np.square: lambda f, x: f(np.multiply, x, x),
    np.log2: lambda f, x: f(np.multiply, f(np.log, x), 1 / math.log(2)),
    np.log10: lambda f, x: f(np.multiply, f(np.log, x), 1 / math.log(10)),
    np.trunc: lambda f, x: f(np.multiply, f(np.sign, x), f(np.floor, f(np.absolute, x))),
    np.fmod: lambda f, x, y: f.graph.add("Mod", x, y, fmod=1),
    np.not_equal: lambda f, x, y: f(np.logical_not, f(np.equal, x, y)),
    mathematics._limited: lambda f, x, low, high: f(np.minimum, f(np.maximum, x, low), high),
    special._erfc: lambda f, x: f(np.subtract, 1, f(special._erf, x)),
    special._ndtr: lambda f, x: f(
        np.multiply, f(np.add, f(special._erf, f(np.multiply, x, math.sqrt(0.5))), 1), 0.5
    ),
}


def converted(
    graph: Graph, declaration: Declaration, values: Sequence[Value], constants: Sequence[Any]
) -> str:
    """Adds the nodes of a declared elementwise function, and returns the name of its output.

    Args:
        graph: receives the nodes.
        declaration: the function.
        values: its array arguments.
        constants: its other arguments: scalars or Dims.

    Raises:
        Untraceable: the formula uses an operation that ONNX lacks, computes floating-point numbers
            from integers, or does not depend on its arguments.

    Example:
        >>> graph, x = Graph(), Value(None, "x", (2,), np.float32)
        >>> _ = converted(graph, F.softplus.declaration, [x], [1.0])
        >>> [node[0] for node in graph.nodes][:4]
        ['Mul', 'Max', 'Abs', 'Neg']
    """
    if declaration.is_own and declaration.name in _NAMED:
        operator, attributes = _NAMED[declaration.name](*constants)
        return graph.add(operator, *values, **attributes)
    numbers = [x.dtype for x in values if x.dtype != bool] or [bool]
    dtype = np.result_type(*numbers)
    steps: list[Symbol] = []
    symbols = [Symbol(steps, f"in{i}") for i in range(len(values))]
    names = {
        symbol.name: graph.name_of(x) if x.dtype in (dtype, bool) else graph.cast(x, dtype)
        for symbol, x in zip(symbols, values)
    }
    bools = {symbol.name for symbol, x in zip(symbols, values) if x.dtype == bool}
    arguments = []
    for i, constant in enumerate(constants):
        if isinstance(constant, Dim):
            symbol = Symbol(steps, f"dim{i}")
            names[symbol.name] = graph.squeeze(graph.number(constant, dtype), 0)
            constant = symbol
        arguments.append(constant)
    try:
        result = declaration.body(*symbols, *arguments)
    except UntraceableError as error:
        raise Untraceable(f"there is no operator for {error}") from None
    f = _Formula(graph, dtype)
    for step in in_order(result):
        operands = [
            _operand(f, step.function, i, x, names, bools) for i, x in enumerate(step.operands)
        ]
        names[step.name] = f(step.function, *operands)
        if step.is_bool:
            bools.add(step.name)
    if not isinstance(result, Symbol):
        raise Untraceable("its result does not depend on its arguments")
    return graph.cast(names[result.name], dtype) if result.name in bools else names[result.name]


def _operand(f, function, i, x, names, bools):
    """Returns the name of an operand, converted from or to bool if the operation needs it."""
    wants_bool = OPERATORS[function].takes_bool(i)
    if not isinstance(x, Symbol):
        if f.dtype.kind in "iu" and float(x) != int(x):
            raise Untraceable("it computes floating point numbers from integers")
        return f.graph.constant(x, bool if wants_bool else f.dtype)
    if wants_bool and x.name not in bools:
        return f.graph.cast(names[x.name], bool)
    if not wants_bool and x.name in bools:
        return f.graph.cast(names[x.name], f.dtype)
    return names[x.name]


def of_integers(
    graph: Graph, function: Callable, values: Sequence[Value], constants: Sequence[Any]
) -> str:
    """Adds the nodes of a NumPy function of an integer input; see :class:`IntegerInput`.

    >>> graph, x = Graph(), Value(None, "x", (2,), np.int64)
    >>> _ = of_integers(graph, np.equal, [x, Value(graph, "n", (), np.int64, np.array(3))], ())
    >>> [node[:2] for node in graph.nodes]
    [('Equal', ['x', 'n'])]
    """
    if function == "astype":
        return graph.cast(values[0], constants[0])
    if function is np.where:
        condition, x, y = values
        fill = condition.array if condition.fill is None else condition.fill
        if fill is not None and fill.size and (fill == fill.flat[0]).all():
            chosen = x if fill.flat[0] else y
            if chosen.shape == condition.shape:
                return graph.name_of(chosen)
    operands = values[1:] if function is np.where else values
    dtype = np.result_type(*(x.dtype for x in operands))
    names = [graph.name_of(x) if x.dtype == dtype else graph.cast(x, dtype) for x in operands]
    if function is np.where:
        condition = values[0]
        is_bool = condition.dtype == bool
        names.insert(0, graph.name_of(condition) if is_bool else graph.cast(condition, bool))
    return _Formula(graph, dtype)(function, *names)
