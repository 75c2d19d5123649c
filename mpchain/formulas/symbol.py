"""Traces formulas: an elementwise formula that is applied to symbols becomes a list of steps.

The symbols follow NumPy's dispatch protocols, as Variables do, so the same code that computes on
arrays can be traced. :mod:`mpchain.formulas.operators` has the table of operations that can be
traced.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from mpchain.formulas.operators import OPERATORS, PREDICATES, Operator

Mixin = np.lib.mixins.NDArrayOperatorsMixin


class UntraceableError(AttributeError):
    """Raised when a formula branches on a value, or uses an operation, operand or attribute that
    has no counterpart in an elementwise kernel.

    The class derives from AttributeError, so that ``hasattr`` returns False for attributes that a
    symbol lacks.

    Example:
        >>> trace(lambda x: np.sum(x), ["x"])
        Traceback (most recent call last):
            ...
        mpchain.formulas.symbol.UntraceableError: numpy.sum
    """


class Symbol(Mixin):
    """A value in a formula that is being traced. A symbol behaves like a 0-d array.

    Args:
        steps: the list to which every operation appends its result.
        name: the name that holds the value in the text.
        function, operands: the operation that computed the value; None and () for a parameter of
            the formula.
        is_constant: whether the value is computed only from constants.

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
        self.is_bool = function in PREDICATES

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if not all([isinstance(x, _OPERANDS) for x in inputs]):
            # The other operand, such as a Variable, may support this operation.
            return NotImplemented
        if method != "__call__" or kwargs or ufunc not in OPERATORS:
            raise UntraceableError(f"numpy.{ufunc.__name__}.{method}")
        return self._step(ufunc, inputs)

    def __array_function__(
        self, function: Callable, types: Iterable[type], args: tuple, kwargs: dict
    ) -> Any:
        if not all(issubclass(t, _OPERANDS) for t in types):
            return NotImplemented
        if function is not np.where or len(args) != 3:
            raise UntraceableError(f"numpy.{function.__name__}")
        return self._step(function, args)

    def _step(self, function, operands):
        """Appends an operation to the steps and returns its result; this symbol is one of the
        operands."""
        operands = tuple(map(_as_operand, operands))
        is_constant = self.is_constant and all([getattr(x, "is_constant", True) for x in operands])
        symbol = type(self)(self.steps, f"t{len(self.steps)}", function, operands, is_constant)
        self.steps.append(symbol)
        return symbol

    # A symbol never changes, so x += y makes a new symbol.
    __iadd__, __isub__ = Mixin.__add__, Mixin.__sub__
    __imul__, __itruediv__ = Mixin.__mul__, Mixin.__truediv__

    def __getattr__(self, name: str) -> Any:
        raise UntraceableError(f"attribute {name}")

    def __bool__(self) -> bool:
        raise UntraceableError("a branch on a value")

    def copy(self) -> "Symbol":
        """Returns the symbol itself, because a symbol never changes."""
        return self


class Whole(Symbol):
    """A symbol for which a call of a declared function is one step, regardless of the operations in
    the function's body.

    The step is differentiated with the function's declared derivative. The derivative of the
    function's body can differ: operations of the body may have kinks, and the declared derivative
    may differ on purpose.

    Example:
        >>> steps = []
        >>> y = F.softplus.on(Whole(steps, "x"), 2.0)
        >>> [(step.function.__name__, step.operands[1:]) for step in steps]
        [('softplus', (2.0,))]
    """

    def call(self, declaration: Any, arguments: Sequence) -> Any:
        """Appends a call of a declared elementwise function on symbols, including this one, and
        returns its result."""
        n = len(self.steps)
        result = declaration.body(*arguments)
        names = [getattr(step.function, "__name__", "").lstrip("_") for step in self.steps[n:]]
        # If the body is a single NumPy operation, the operation is the step, because NumPy calls
        # the declared function for Variables.
        is_operation = len(names) == 1 and declaration.name.startswith(names[0])
        if declaration.is_own and (is_operation or not names):
            return result
        del self.steps[n:]

        def call(*arguments):
            return declaration.on(*arguments)

        call.__name__ = declaration.name
        return self._step(call, arguments)


_OPERANDS = Symbol, np.ndarray, np.generic, int, float, complex


P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Written(Protocol[P, R]):
    """A function of arrays that has a counterpart in C; see :func:`written_as`."""

    declared: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


def written_as(text: str, special: str = "") -> Callable[[Callable[P, R]], Written[P, R]]:
    """Decorator: declares the counterpart in C of a function of arrays.

    The caller sets the result's attribute ``declared`` to the declared function that takes
    Variables. The function may have a keyword argument ``out``, like NumPy's functions, which saves
    memory.

    Args:
        text: an expression of the operands ``{0}``, ``{1}``, ..., over the type ``T``.
        special: the attribute ``special`` of :class:`mpchain.formulas.operators.Operator`.

    Example:
        >>> @written_as("erf({})")
        ... def erf(x):
        ...     return np.vectorize(math.erf)(x)
        >>> trace(erf, ["x"]).function is erf
        True
    """

    def decorate(function) -> Any:
        def wrapper(*operands, **keywords):
            for x in operands:
                if isinstance(x, Symbol):
                    return x._step(call, operands)
                if hasattr(x, "creator_node"):  # an object with creator_node is a Variable
                    return call.declared(*operands)
            return function(*operands, **keywords)

        call: Any = functools.wraps(function)(wrapper)
        parameters = inspect.signature(function).parameters
        call.on_arrays = function
        call.takes_out = "out" in parameters
        call.nin = len(parameters) - call.takes_out
        OPERATORS[call] = Operator(text, special=special)
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


def needed(*results: Any) -> set[str]:
    """Returns the names of the results, and of the symbols on which the results depend.

    Example:
        >>> sorted(needed(trace(lambda x, y: x + 1, ["x", "y"])))
        ['in_x', 't0']
    """
    symbols = [r for r in results if isinstance(r, Symbol)]
    names = {r.name for r in symbols}
    for step in reversed(symbols[0].steps if symbols else []):
        if step.name in names:
            names.update([x.name for x in step.operands if isinstance(x, Symbol)])
    return names


def in_order(*results: Any) -> list[Symbol]:
    """Returns the operations that lead to the results, in the order in which they were traced.

    Example:
        >>> [step.name for step in in_order(trace(lambda x: np.exp(x) + 1, ["x"]))]
        ['t0', 't1']
    """
    names = needed(*results)
    steps = next((r.steps for r in results if isinstance(r, Symbol)), [])
    return [step for step in steps if step.name in names]


def trace(formula: Callable, parameters: Iterable[str]) -> Any:
    """Applies a formula to symbols named after its parameters; returns its result.

    Example:
        >>> trace(lambda x, y: x * y + 2, ["x", "y"]).operands[1]
        2
    """
    steps = []
    return formula(*(Symbol(steps, "in_" + name) for name in parameters))


def trace_operation(
    formula: Callable, names: Sequence[str], n_arrays: int, prefix: str = ""
) -> Symbol | None:
    """Applies a formula of arrays and then constants to symbols; returns its result.

    The result is None if the formula cannot be traced, or returns a number or a parameter.

    Args:
        formula: a function.
        names: the names of the function's parameters.
        n_arrays: the number of parameters that are arrays.
        prefix: a prefix for the names of arrays.

    Example:
        >>> y = trace_operation(lambda x, a: x * (a + 1), ["x", "a"], 1, "x_")
        >>> [(operand.name, operand.is_constant) for operand in y.operands]
        [('x_x', False), ('t0', True)]
    """
    steps = []
    symbols = [Symbol(steps, prefix + name) for name in names[:n_arrays]]
    symbols += [Symbol(steps, name, is_constant=True) for name in names[n_arrays:]]
    try:
        result = formula(*symbols)
    except UntraceableError:
        return None
    return result if isinstance(result, Symbol) and result.function is not None else None


class _Element(Symbol):
    """A symbol for an element of an array whose shape and dtype are not known."""

    def _refuse(self):
        raise UntraceableError("a property of the whole array")

    shape = ndim = size = dtype = property(_refuse)


class DecidesError(UntraceableError):
    """Raised when a number that was left open decides what the formula does.

    Args:
        symbol: the name of the number's symbol.

    Example:
        >>> trace_step(lambda p, g, lr: (p - lr * g if lr else p,), ["p"], {}, ["lr"])
        Traceback (most recent call last):
            ...
        mpchain.formulas.symbol.DecidesError: a branch on lr
    """

    def __init__(self, symbol: str):
        super().__init__(f"a branch on {symbol}")
        self.symbol = symbol


class _Number(_Element):
    """A number that the text of a step leaves open."""

    def __bool__(self) -> bool:
        raise DecidesError(self.name)


def trace_step(
    step: Callable, written: Sequence[str], scalars: dict[str, Any], free: Iterable[str] = ()
) -> tuple:
    """Applies an optimizer's step to symbols named x_NAME for arrays; returns the step's results.

    Args:
        step: see :class:`mpchain.UpdateRule`.
        written: the names of the parameter and the states; the name of the gradient is ``g``.
        scalars: further arguments of the step, by name.
        free: the names of further arguments that are left open, as constants of these names.

    Raises:
        DecidesError: what the step does depends on an argument that is left open.

    Example:
        >>> (p,) = trace_step(lambda p, g, lr: (p - lr * g,), ["p"], {"lr": 0.5})
        >>> [s.operands for s in in_order(p)][0][0]
        0.5
    """
    steps = []
    param, grad, *states = (_Element(steps, f"x_{n}") for n in (written[0], "g", *written[1:]))
    numbers = {name: _Number(steps, name, is_constant=True) for name in free}
    return step(param, grad, *states, **scalars, **numbers)
