"""Fusing elementwise formulas: a formula applied to symbols writes itself down as statements of C.

The symbols follow NumPy's dispatch protocols, as Variables do, so the very text that computes on arrays is traced.
"""

import inspect

import numpy as np

from mpchain.backends import cuda

_OPERATORS = {
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
    **{
        getattr(np, name): name + "({})"
        for name in (
            "ceil cos cosh exp expm1 floor log log10 log1p log2 sin sinh sqrt tan tanh trunc"
        ).split()
    },
}
_PREDICATES = {
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


class UntraceableError(Exception):
    """The formula uses something that has no counterpart in an elementwise kernel."""


class Symbol(np.lib.mixins.NDArrayOperatorsMixin):
    """A value of a formula that is being written down.

    Args:
        statements (list of str): where every operation appends its line.
        name (str): the variable of C that holds the value.
        is_bool (bool): whether it is a truth value.
    """

    def __init__(self, statements, name, is_bool=False):
        self.statements, self.name, self.is_bool = statements, name, is_bool

    def _operand(self, value, as_bool=False):
        if isinstance(value, Symbol):
            return f"(T){value.name}" if value.is_bool and not as_bool else value.name
        if isinstance(value, (bool, int, float, np.floating, np.integer, np.bool_)):
            return f"(T){float(value)!r}"
        raise UntraceableError(f"operand {value!r}")

    def _assign(self, expression, is_bool=False):
        name = f"t{len(self.statements)}"
        self.statements.append(f"{'bool' if is_bool else 'T'} {name} = {expression};")
        return Symbol(self.statements, name, is_bool)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if method != "__call__" or kwargs:
            raise UntraceableError(f"{ufunc.__name__}.{method} with {sorted(kwargs)}")
        if ufunc in _OPERATORS:
            return self._assign(_OPERATORS[ufunc].format(*map(self._operand, inputs)))
        if ufunc in _PREDICATES:
            logical = ufunc.__name__.startswith("logical")
            operands = [self._operand(x, as_bool=logical) for x in inputs]
            return self._assign(_PREDICATES[ufunc].format(*operands), is_bool=True)
        raise UntraceableError(f"numpy.{ufunc.__name__}")

    def __array_function__(self, function, types, args, kwargs):
        if function is np.where and len(args) == 3:
            condition, x, y = args
            if not isinstance(condition, Symbol):
                raise UntraceableError("numpy.where with a condition that is no symbol")
            return self._assign(f"{condition.name} ? {self._operand(x)} : {self._operand(y)}")
        raise UntraceableError(f"numpy.{function.__name__}")

    def __getattr__(self, name):
        raise UntraceableError(f"attribute {name}")

    def __bool__(self):
        raise UntraceableError("a branch")


def trace(formula, parameters):
    """Writes a formula down.

    Args:
        formula: a function of arrays and numbers.
        parameters: the names of its parameters.

    Returns:
        str: statements of C over the type ``T`` that compute ``out`` from ``in_<parameter>``.

    Raises:
        UntraceableError: the formula cannot be fused.
    """
    statements = []
    result = formula(*(Symbol(statements, f"in_{name}") for name in parameters))
    if not isinstance(result, Symbol):
        result = Symbol(statements, "")._assign(Symbol(statements, "")._operand(result))
    return "\n".join([*statements, f"out = {result._operand(result)};"])


def kernel(name, formula):
    """Returns the fused ``cupy.ElementwiseKernel`` of a formula; None if it cannot be fused."""
    parameters = list(inspect.signature(formula).parameters)
    try:
        code = trace(formula, parameters)
    except UntraceableError:
        return None
    declared = ", ".join(f"T in_{parameter}" for parameter in parameters)
    return cuda.elementwise(declared, "T out", code, f"mpchain_{name}")
