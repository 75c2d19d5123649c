"""Derivatives of elementwise formulas, which are themselves traced as formulas.

A Variable can hold a symbol in place of an array. Backpropagation through a formula of such
Variables traces the formulas of its derivatives. Calls of declared functions remain calls.
"""

from collections.abc import Callable, Sequence

from mpchain import backprop
from mpchain.configuration import force_backprop_mode, using_config
from mpchain.formulas.symbol import Whole, needed
from mpchain.formulas.text import compile_text
from mpchain.formulas.writer import Python
from mpchain.variable import Variable


def differentiate(
    formula: Callable, names: Sequence[str], n_arrays: int
) -> list[Callable | None] | None:
    """Returns the derivatives of an elementwise formula as functions.

    Args:
        formula: the formula, a function of arrays, followed by constants.
        names: the formula's parameters; the first ``n_arrays`` are arrays.

    Returns:
        For each array parameter, a function of the output's gradient and of the parameters that it
        needs, in order; None if the gradient is zero. For a formula of at most one operation, the
        result is None, because a traced derivative would not be faster.

    Raises:
        UntraceableError: the formula cannot be traced.

    Example:
        >>> (by_x,) = differentiate(lambda x: x * x + x, ["x"], 1)
        >>> print(by_x.__doc__)
        def derivative(gx, x):
            t2 = gx * x
            t3 = gx * x
            t4 = gx + t2
            t5 = t4 + t3
            return t5
    """
    steps = []
    gradient = "g" + max(names, key=len)
    symbols = [Whole(steps, n, is_constant=i >= n_arrays) for i, n in enumerate(names)]
    xs, constants = [Variable(x) for x in symbols[:n_arrays]], symbols[n_arrays:]
    with using_config("debug", False), using_config("function_hooks", {}), force_backprop_mode():
        y = formula(*xs, *constants)
        if len(steps) < 2:
            return None
        # With False, unlike the default, no results are marked; each later backward would look for
        # marks.
        seeds = [Variable(Whole(steps, gradient))]
        gxs = backprop.grad([y], xs, seeds, enable_double_backprop=False)
    return [None if gx is None else _as_function(gx.array, gradient, names) for gx in gxs]


def _as_function(result, gradient, names):
    """Compiles a traced result into a Python function of the gradient and of those parameters that
    the result needs."""
    parameters = [gradient, *(name for name in names if name in needed(result))]
    writer = Python()
    lines = [f"def derivative({', '.join(parameters)}):", *writer.lines(result)]
    text = "\n    ".join([*lines, f"return {result.name}"])
    function = compile_text("derivative", text, writer.known)
    function.__doc__ = text
    return function
