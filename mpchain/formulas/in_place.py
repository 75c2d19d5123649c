"""Rewrites elementwise formulas for NumPy arrays, so that small arrays take less time.

NumPy takes about 0.4 microseconds to convert a Python number to an array and 0.2 microseconds to
allocate memory for a result of a few kilobytes; the operation itself takes about as long. A formula
that can be traced is therefore rewritten: numbers in it become arrays, which are made once for each
dtype; intermediate results reuse the memory of results that are no longer needed; results of
comparisons are converted to numbers before arithmetic. The values are bitwise the same.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from mpchain.formulas.symbol import Symbol, in_order, trace_operation
from mpchain.formulas.text import compile_text
from mpchain.formulas.writer import Python

_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_WORTH_REUSING = 1 << 12
"""The least number of elements for which another test and call take less time than new memory."""


def program(
    formula: Callable,
    names: Sequence[str],
    n_arrays: int,
    full: Collection[str],
    loop: Callable | None = None,
    large: int = 0,
    whole: int = 0,
) -> Callable:
    """Returns a function that computes ``formula`` on NumPy arrays; ``formula`` itself if it cannot
    be traced, or if its text would not change.

    Args:
        formula: an elementwise function of arrays, followed by constants.
        names: the names of the formula's parameters.
        n_arrays: the number of parameters that are arrays.
        full: the parameters that certainly have the shape of the result.
        loop: a function that is called first if arrays have at least ``large`` elements; if it
            returns None, NumPy computes the formula.
        large: the least number of elements for which ``loop`` is called.
        whole: the least number of elements for which ``loop`` is called for arrays of the same
            shape and strides.

    Example:
        >>> y = program(lambda x: 1 - x * x, ["x"], 1, ["x"])
        >>> y(np.array([0.5, 2.0]))
        array([ 0.75, -3.  ])
    """
    result = trace_operation(formula, names, n_arrays)
    if result is None:
        return formula
    alike = None
    if not set(names[:n_arrays]).issubset(full):
        writer = _Writer(names, n_arrays, names[:n_arrays], result)
        of_one_shape = writer.function(formula, None)
        alike = of_one_shape if writer.has_reused else None
    writer = _Writer(names, n_arrays, full, result)
    return writer.function(formula, alike, loop, large, whole)


class _Writer(Python):
    def __init__(self, names, n_arrays, full, result):
        super().__init__()
        self.names, self.arrays, self.result = names, names[:n_arrays], result
        self.steps = in_order(result)
        self.full, self.inputs_in_full = set(full), set(full)
        self.last_use = {x.name: s for s in self.steps for x in _symbols(s.operands)}
        self.numbers, self.written = [], []
        self.has_reused = False

    def function(self, formula, alike, loop=None, large=0, whole=0):
        """Returns the program, which calls ``alike``, if there is one, with arrays of one shape
        that are not small."""
        for step in self.steps:
            self.written.append(self.statement(step))
        is_shorter = any(hasattr(step.function, "on_arrays") for step in self.steps)
        is_short = not self.numbers and not self.has_reused and not is_shorter
        if is_short and loop is None and alike is None:
            return formula
        arguments, head = ", ".join(self.names), []
        if loop is not None:
            in_full = [x for x in self.arrays if x in self.inputs_in_full]
            sizes = [f"{x}.size >= {large}" for x in in_full[:1] or self.arrays]
            test = " or ".join(sizes)
            if whole > large and len(self.arrays) == 2:
                x, y = self.arrays
                alike_test = f"{x}.shape == {y}.shape and {x}.strides == {y}.strides"
                test = f"({test}) and ({x}.size >= {whole} or not ({alike_test}))"
            head += [f"if {test}:", f"    y_ = loop({arguments})"]
            head += ["    if y_ is not None:", "        return y_"]
            self.known["loop"] = loop
        if alike is not None:
            shapes = " == ".join([f"{x}.shape" for x in self.arrays])
            test = f"{self.arrays[0]}.size >= {_WORTH_REUSING} and {shapes}"
            head += [f"if {test}:", f"    return alike({arguments})"]
            self.known["alike"] = alike
        self.known["formula"] = formula
        if is_short:
            return self._compiled(formula, [*head, f"return formula({arguments})"])
        head.append(f"d = {self.arrays[0]}.dtype")
        unusual = [f"{x}.dtype is not d" for x in self.arrays[1:]]
        if self.has_reused:
            # Arrays without axes go to the formula itself, because operations on them return
            # scalars, whose memory cannot be reused.
            unusual.append(f"not {next(x for x in self.arrays if x in self.full)}.ndim")
        numbers = [f"n{i}" for i in range(len(self.numbers))]
        for i, dtype in enumerate(_DTYPES):
            self.known[f"d{i}"] = dtype
            self.known[f"numbers{i}"] = [np.array(n, dtype) for n in self.numbers]
            receive = f"{', '.join(numbers)}, = numbers{i}" if numbers else "pass"
            head += [f"{'el' if i else ''}if d is d{i}:", f"    {receive}"]
        head += ["else:", f"    return formula({arguments})"]
        if unusual:
            head += [f"if {' or '.join(unusual)}:", f"    return formula({arguments})"]
        return self._compiled(formula, [*head, *self.written, f"return {self.result.name}"])

    def _compiled(self, formula, lines):
        text = "\n    ".join([f"def function({', '.join(self.names)}):", *lines])
        return compile_text(f"{formula.__name__} in place", text, self.known)

    def statement(self, step):
        text = super().statement(step)
        if any(x.name in self.full for x in _symbols(step.operands)):
            self.full.add(step.name)
        return text

    def expression(self, step):
        if step.is_constant or step.function is np.power or not _takes_out(step.function):
            return super().expression(step)
        reusable = [x for x in step.operands if self._can_reuse(x, step)]
        texts = [self._array(x, step) for x in step.operands]
        if reusable and not step.is_bool:
            texts.append(f"out={reusable[0].name}")
            self.has_reused = True
        return self.call(step.function, texts)

    def call(self, function, texts):
        return super().call(getattr(function, "on_arrays", function), texts)

    def _array(self, x, step):
        if not isinstance(x, Symbol):
            if x not in self.numbers:
                self.numbers.append(x)
            return f"n{self.numbers.index(x)}"
        if x.is_bool and not step.is_bool:
            if x.name in self.full and self.last_use[x.name] is step:
                self.written.append(f"{x.name} = {x.name}.astype(d)")
            else:
                return f"{x.name}.astype(d)"
        return x.name

    def _can_reuse(self, x, step):
        return (
            isinstance(x, Symbol)
            and _takes_out(x.function)
            and not x.is_constant
            and x.name in self.full
            and self.last_use[x.name] is step
        )


def _takes_out(function):
    return isinstance(function, np.ufunc) or getattr(function, "takes_out", False)


def _symbols(operands):
    return [x for x in operands if isinstance(x, Symbol)]
