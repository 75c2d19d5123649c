"""Writers of formulas, which turn each traced operation into a statement.

Each dialect is a class. :mod:`mpchain.formulas.in_place` has another dialect, for NumPy arrays, and
the ONNX exporter writes nodes.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mpchain import annexes
from mpchain.backends import cuda
from mpchain.formulas.operators import OPERATORS, Operator
from mpchain.formulas.symbol import Symbol, UntraceableError, in_order, trace

_on_gpu = annexes.find("gpu_kernels", "kernels.gpu.cuda_wide")


class Writer:
    """Base of writers, which write operations by columns of the table of operators.

    Args:
        number: function that returns the text of a number.

    Example:
        >>> C(repr).lines(trace(lambda x: np.exp(x) + 1, ["x"]))
        ['T t0 = exp(in_x);', 'T t1 = t0 + 1;']
    """

    def __init__(self, number: Callable[[Any], str]):
        self.number = number

    def lines(self, *results: Any) -> list[str]:
        """Returns the statements of the operations that lead to the results."""
        return [self.statement(step) for step in in_order(*results)]

    def statement(self, step: Symbol) -> str:
        """Returns the statement that computes a symbol."""
        return f"{step.name} = {self.expression(step)}"

    def expression(self, step: Symbol) -> str:
        """Returns the expression of a symbol."""
        operator, texts = OPERATORS[step.function], map(self.operand, step.operands)
        if operator.kind in ("logic", "choice"):
            texts = [self.operand(x, operator.takes_bool(i)) for i, x in enumerate(step.operands)]
        return self.text(operator, step.operands).format(*texts)

    def text(self, operator: Operator, operands: Sequence) -> str:
        """Returns the dialect's text of an operator."""
        raise NotImplementedError

    def operand(self, x: object, as_bool: bool = False) -> str:
        """Returns the text of a symbol or a number. Unless ``as_bool`` is True, a truth value is
        converted to a number."""
        if not isinstance(x, Symbol) or x.is_constant:
            return self.number(x)
        return self.as_number(x.name) if x.is_bool and not as_bool else x.name

    def as_number(self, name: str) -> str:
        """Returns the text that converts a truth value to 0 or 1."""
        raise NotImplementedError


class C(Writer):
    """Writes C, where ``T`` is the type of numbers, for GPU kernels."""

    def statement(self, step: Symbol) -> str:
        """Returns the declaration of a symbol."""
        return f"{'bool' if step.is_bool else 'T'} {super().statement(step)};"

    def text(self, operator: Operator, operands: Sequence) -> str:
        """Returns the text of an operator in C."""
        return operator.c

    def as_number(self, name: str) -> str:
        """Returns the text of a cast."""
        return f"(T){name}"


class Numba(Writer):
    """Writes Python for elements of arrays, which numba compiles. Symbols that are computed only
    from constants are numbers.

    Args:
        number: the argument of :class:`Writer`.
        is_special: whether the loop has functions of :mod:`mpchain.kernels.cpu.special_loops`.

    Raises:
        UntraceableError: an operation has no text for numba, or its values would differ from
            NumPy's.

    Example:
        >>> Numba(repr).lines(trace(lambda x: x * np.greater(x, 0), ["x"]))
        ['t0 = in_x > 0', 't1 = in_x * (1 if t0 else 0)']
    """

    def __init__(self, number: Callable[[Any], str], is_special: bool = False):
        super().__init__(number)
        self.is_special = is_special

    def text(self, operator: Operator, operands: Sequence) -> str:
        """Returns the text of an operator. Raises UntraceableError if the operator has no text, or
        if NumPy would treat its truth values as numbers."""
        bools = [x for x in operands if isinstance(x, Symbol) and x.is_bool]
        if operator.kind == "number":
            fits = len(bools) < len(operands)
        elif operator.kind == "comparison":
            fits = not bools
        else:
            taken = [x for i, x in enumerate(operands) if operator.takes_bool(i)]
            fits = all(isinstance(x, Symbol) and x.is_bool and not x.is_constant for x in taken)
        text = operator.numba or (operator.special if self.is_special else "")
        if not fits or not text:
            raise UntraceableError(f"no loop has {operator}")
        return text

    def as_number(self, name: str) -> str:
        """Returns the text that chooses between two numbers."""
        return f"({self.number(1)} if {name} else {self.number(0)})"


class Python(Writer):
    """Writes Python for arrays, Variables or numbers, where truth values count as numbers.

    Attributes:
        known: the functions that the text calls, by their names in the text.

    Example:
        >>> writer = Python()
        >>> writer.lines(trace(lambda x: np.exp(x) + 1, ["x"])), writer.known
        (['t0 = f_exp(in_x)', 't1 = t0 + 1'], {'f_exp': <ufunc 'exp'>})
    """

    def __init__(self):
        super().__init__(number_in_python)
        self.known: dict[str, Any] = {}

    def expression(self, step: Symbol) -> str:
        """Returns the expression of a symbol."""
        operator = OPERATORS.get(step.function)
        texts = [self.operand(x, as_bool=True) for x in step.operands]
        # Python's operators are used for Python numbers, because NumPy's functions return NumPy
        # scalars, which would widen float32 arrays. Comparisons are function calls, because
        # Variables have no comparison operators.
        if operator and operator.python and (step.is_constant or not step.is_bool):
            return operator.python.format(*texts)
        return self.call(step.function, texts)

    def call(self, function: Callable, texts: list[str]) -> str:
        """Returns a call of a function."""
        name = f"f_{function.__name__}"
        self.known[name] = function
        return f"{name}({', '.join(texts)})"


def number_in_python(x: float) -> str:
    """Returns the text of a number in an expression; for a symbol, its name.

    Example:
        >>> number_in_python(-0.5)
        '(-0.5)'
    """
    if isinstance(x, Symbol):
        return x.name
    return f"({x!r})" if x < 0 else repr(x)


class Numbers(list):
    """The list of numbers that a text reads from an array or from parameters, so that other numbers
    need no new text.

    Example:
        >>> numbers = Numbers()
        >>> numbers.name_of(0.5), numbers.name_of(0.5), numbers
        ('c0', 'c1', [0.5, 0.5])
    """

    def name_of(self, x: float) -> str:
        """Appends a number, and returns its name."""
        self.append(x)
        return f"c{len(self) - 1}"


def render_c(*results: Any) -> str:
    """Returns C statements over the type ``T`` that compute ``out`` from the parameters.

    If there are several results, they are ``out``, ``out1``, ``out2`` and so on.

    Example:
        >>> print(render_c(trace(lambda g, y: g * np.greater(y, 0), ["g", "y"])))
        bool t0 = in_y > (T)0.0;
        T t1 = in_g * (T)t0;
        out = t1;
    """
    writer = C(lambda x: f"(T){float(x)!r}")
    outs = [f"out{i or ''} = {writer.operand(result)};" for i, result in enumerate(results)]
    return "\n".join([*writer.lines(*results), *outs])


def fused_kernel(name: str, formula: Callable) -> Any:
    """Returns the fused ``cupy.ElementwiseKernel`` of a formula.

    Returns None if the formula cannot be fused, or returns a parameter, which needs no kernel.

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
    return _kernel(
        [f"in_{parameter}" for parameter in parameters], ["out"], code, f"mpchain_{name}"
    )


def _kernel(ins, outs, code, name, **options):
    """Returns the kernel for arrays and numbers of one type. If the annex gpu_kernels is installed,
    the kernel loads 128 bits at once."""
    if _on_gpu is not None:
        return _on_gpu.wide(ins, outs, code, name, **options)
    declared = [", ".join(f"T {name}" for name in names) for names in (ins, outs)]
    return cuda.elementwise(*declared, code, name, **options)


def fused(formula: Callable) -> Callable:
    """Decorator: computes an elementwise formula by one kernel if its arguments are CuPy arrays of
    the same shape and of one dtype other than bfloat16.

    Arguments and results are arrays, or lists and tuples of them. For all other arguments, such as
    NumPy arrays and Variables, the formula itself runs.

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
        outs = [f"out{i or ''}" for i in range(len(leaves))]
        ins = [f"in_{i}" for i in range(n)]
        name = f"mpchain{formula.__name__}"
        compiled = _kernel(ins, outs, render_c(*leaves), name, return_tuple=True)
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
        # CuPy has operators for bfloat16 arrays, but no elementwise kernels
        if first.dtype.kind == "V":
            return formula(*args)
        compiled, structure = kernel(_structure(args), len(arrays))
        return _filled(structure, iter(compiled(*arrays)))

    return call


def _leaves(tree):
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in _leaves(item)]
    return [tree]


def _structure(tree):
    """Returns the structure of a tree, as nested tuples."""
    return tuple(map(_structure, tree)) if isinstance(tree, (list, tuple)) else None


def _filled(structure, leaves):
    if structure is None:
        return next(leaves)
    return tuple([_filled(item, leaves) for item in structure])
