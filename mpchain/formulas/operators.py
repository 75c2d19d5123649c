"""The table of operators, which are the operations of formulas, with their text in each dialect."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Operator(NamedTuple):
    """The texts of an operation; its operands are ``{}``, or ``{0}``, ``{1}`` and so on.

    A new operator is a row of :data:`OPERATORS` and a row of the ONNX exporter's table.

    Attributes:
        c: an expression over the type ``T``.
        python: an expression of arrays, Variables and Python numbers. If empty, the function is
            called.
        numba: an expression in a loop over elements, which gives NumPy's values. Empty if no such
            expression is as fast as NumPy.
        kind: ``"number"``; ``"comparison"`` of numbers; ``"logic"`` of truth values; or
            ``"choice"`` of numbers by a truth value, the first operand.
        special: the expression in a loop that calls functions of
            :mod:`mpchain.kernels.cpu.special_loops`, whose values may differ from NumPy's in the
            last places.

    Example:
        >>> OPERATORS[np.greater].c.format("x", "y"), OPERATORS[np.where].takes_bool(0)
        ('x > y', True)
    """

    c: str
    python: str = ""
    numba: str = ""
    kind: str = "number"
    special: str = ""

    def takes_bool(self, i: int) -> bool:
        """Returns whether operand ``i`` is a truth value."""
        return self.kind == "logic" or (self.kind == "choice" and i == 0)


def _alike(text, kind="number"):
    return Operator(text, text, text, kind)


OPERATORS: dict[Callable, Operator] = {
    np.add: _alike("{} + {}"),
    np.subtract: _alike("{} - {}"),
    np.multiply: _alike("{} * {}"),
    np.divide: _alike("{} / {}"),
    np.negative: _alike("-{}"),
    np.positive: Operator("{}"),
    np.maximum: Operator(
        "({0} != {0} || {0} > {1}) ? {0} : {1}",
        numba="{0} if ({0} > {1}) | ({0} != {0}) else {1}",
    ),
    np.minimum: Operator(
        "({0} != {0} || {0} < {1}) ? {0} : {1}",
        numba="{0} if ({0} < {1}) | ({0} != {0}) else {1}",
    ),
    np.sign: Operator("{0} > (T)0 ? (T)1 : {0} < (T)0 ? (T)-1 : {0}", numba="np.sign({})"),
    np.square: Operator("{0} * {0}", numba="{0} * {0}"),
    np.reciprocal: Operator("(T)1 / {}"),
    np.power: Operator("pow({}, {})", "{} ** {}"),
    np.arctan2: Operator("atan2({}, {})"),
    np.fmod: Operator("fmod({}, {})"),
    np.absolute: Operator("fabs({})", numba="np.absolute({})"),
    np.arccos: Operator("acos({})", special="arccos({})"),
    np.arcsin: Operator("asin({})", special="arcsin({})"),
    np.arctan: Operator("atan({})", special="arctan({})"),
    np.arctanh: Operator("atanh({})", special="arctanh({})"),
    np.sqrt: Operator("sqrt({})", numba="np.sqrt({})"),
    **{
        getattr(np, name): Operator(name + "({})")
        for name in ("ceil", "floor", "log10", "log2", "trunc")
    },
    **{
        getattr(np, name): Operator(name + "({})", special=name + "({})")
        for name in "cos cosh exp expm1 log log1p sin sinh tan tanh".split()
    },
    np.where: Operator("{} ? {} : {}", numba="{1} if {0} else {2}", kind="choice"),
    np.greater: _alike("{} > {}", "comparison"),
    np.greater_equal: _alike("{} >= {}", "comparison"),
    np.less: _alike("{} < {}", "comparison"),
    np.less_equal: _alike("{} <= {}", "comparison"),
    np.equal: Operator("{} == {}", "{} == {}", kind="comparison"),
    np.not_equal: Operator("{} != {}", "{} != {}", kind="comparison"),
    np.logical_and: Operator("{} && {}", numba="{} & {}", kind="logic"),
    np.logical_or: Operator("{} || {}", numba="{} | {}", kind="logic"),
    np.logical_not: Operator("!{}", numba="not {}", kind="logic"),
}
"""The operations, by function; :func:`mpchain.formulas.symbol.written_as` adds further
operations."""

PREDICATES = {f for f, operator in OPERATORS.items() if operator.kind in ("comparison", "logic")}
"""The operations whose results are truth values."""
