"""Hooks that see each function before and after it computes outputs and gradients."""

from typing import TYPE_CHECKING, Any, Self

from mpchain.configuration import add_hook, config, remove_hook
from mpchain.typing import Arrays

if TYPE_CHECKING:
    from mpchain.function_node import FunctionNode


class FunctionHook:
    """An object whose methods run before and after functions compute outputs (forward) and
    gradients (backward).

    Subclass it and define some of the methods. ``with hook:`` makes the hook see all functions that
    this thread applies or differentiates in the block; :meth:`FunctionNode.add_hook` makes it see
    one function. Inactive hooks cost no time.

    Attributes:
        name: the name of the hook; two hooks of the same name cannot be active at the same time in
            ``with`` blocks of a thread.

    Example:
        >>> class Names(mpchain.FunctionHook):
        ...     def forward_preprocess(self, function, in_data):
        ...         print(function.label)
        >>> with Names():
        ...     y = F.tanh(F.exp(np.zeros(2)))
        exp
        tanh
    """

    name = "FunctionHook"

    def __enter__(self) -> Self:
        if self.name in config.function_hooks:
            raise KeyError(
                f"hook {self.name} already exists and is active in this thread: remove it, or give "
                "the new hook another name"
            )
        self.added(None)
        add_hook("function_hooks", self.name, self)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        remove_hook("function_hooks", self.name)
        self.deleted(None)

    def added(self, function: "FunctionNode | None") -> None:
        """Called when the hook is added to ``function``; None means that a ``with`` block adds the
        hook to all functions."""

    def deleted(self, function: "FunctionNode | None") -> None:
        """Called when the hook is removed from ``function``; None means from all functions."""

    def forward_preprocess(self, function: "FunctionNode", in_data: Arrays) -> None:
        """Called before a forward computation.

        Args:
            function: the function.
            in_data: tuple of the input arrays.
        """

    def forward_postprocess(self, function: "FunctionNode", in_data: Arrays) -> None:
        """Called after a forward computation; see :meth:`forward_preprocess`."""

    def backward_preprocess(
        self, function: "FunctionNode", in_data: Arrays, out_grad: Arrays
    ) -> None:
        """Called before a backward computation.

        Args:
            function: the function.
            in_data: tuple of the input arrays; None for arrays that were freed.
            out_grad: tuple of the gradient arrays of the outputs; None for an output without a
                gradient.
        """

    def backward_postprocess(
        self, function: "FunctionNode", in_data: Arrays, out_grad: Arrays
    ) -> None:
        """Called after a backward computation; see :meth:`backward_preprocess`."""


def get_function_hooks() -> dict[str, FunctionHook]:
    """Returns the hooks that see all functions of this thread, a dict by name.

    Example:
        >>> mpchain.get_function_hooks()
        {}
    """
    return config.function_hooks
