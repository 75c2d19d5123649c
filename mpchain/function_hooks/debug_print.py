"""A hook that prints the inputs and output gradients of functions."""

from typing import IO

from mpchain.function_hook import FunctionHook
from mpchain.function_node import FunctionNode
from mpchain.typing import Arrays
from mpchain.variable import Variable


class PrintHook(FunctionHook):
    """Prints the label and the inputs of functions before they compute, and before backward
    computations also the gradients of the outputs.

    Args:
        sep, end, file, flush: arguments of :func:`print`; None means the default of :func:`print`.

    Example:
        >>> x = Variable(np.array([1.0]))
        >>> with PrintHook():  # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
        ...     y = x * 2
        function multiply_by_constant
        input data
        <variable (1), float64>
        ...
    """

    name = "PrintHook"

    def __init__(
        self,
        sep: str | None = None,
        end: str = "\n",
        file: IO[str] | None = None,
        flush: bool = True,
    ) -> None:
        self.sep, self.end, self.file, self.flush = sep, end, file, flush

    def forward_preprocess(self, function: FunctionNode, in_data: Arrays) -> None:
        self._print(f"function\t{function.label}")
        self._print_arrays("input data", in_data)

    def backward_preprocess(
        self, function: FunctionNode, in_data: Arrays, out_grad: Arrays
    ) -> None:
        self.forward_preprocess(function, in_data)
        self._print_arrays("output gradient", out_grad)

    def _print_arrays(self, title, arrays):
        self._print(title)
        for array in arrays:
            self._print("(removed)" if array is None else Variable(array).debug_print())

    def _print(self, text):
        print(text, sep=self.sep, end=self.end, file=self.file, flush=self.flush)
