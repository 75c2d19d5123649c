"""A hook that measures the time of functions."""

from mpchain.backends.cuda import is_gpu_array
from mpchain.function_hook import FunctionHook
from mpchain.function_hooks.report import Stopwatch
from mpchain.function_node import FunctionNode
from mpchain.typing import Arrays


class TimerHook(Stopwatch, FunctionHook):
    """Measures the time of each forward and backward computation of functions.

    Attributes:
        call_history: list of (label of the function, seconds).

    Example:
        >>> x = Variable(np.array([1.0]))
        >>> with TimerHook() as hook:
        ...     (x * x).backward()
        >>> hook.summary()["multiply"]["occurrence"]
        2
    """

    name = "TimerHook"
    name_title = "FunctionName"

    def forward_preprocess(self, function: FunctionNode, in_data: Arrays) -> None:
        self.start(id(function), any(map(is_gpu_array, in_data)))

    def forward_postprocess(self, function: FunctionNode, in_data: Arrays) -> None:
        self.stop(id(function), function._impl_name)

    def backward_preprocess(
        self, function: FunctionNode, in_data: Arrays, out_grad: Arrays
    ) -> None:
        self.start(id(function), any(map(is_gpu_array, out_grad)))

    def backward_postprocess(
        self, function: FunctionNode, in_data: Arrays, out_grad: Arrays
    ) -> None:
        self.stop(id(function), function._impl_name)
