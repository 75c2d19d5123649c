"""Results of ``grad`` whose graph was not asked for, which a loss takes for constants.

A program that forgets ``enable_double_backprop`` trains by a wrong gradient. So ``grad`` marks such
results here, functions of constants alone pass the mark on, and backpropagation looks for it once.
"""

import sys
import warnings
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpchain.variable import Variable

_REMEDY = (
    "call grad with enable_double_backprop=True to differentiate through it, or with "
    "enable_double_backprop=False to say that a constant is meant"
)


class _Marked:
    nodes = weakref.WeakSet()
    exist = False  # whether there may be any
    has_warned = False  # after which nothing is marked


marked = _Marked()


def mark(variables: "Iterable[Variable | None]") -> None:
    """Marks results of ``grad``.

    >>> x = Variable(np.array(3.0))
    >>> (gx,) = mpchain.grad([x**2], [x])
    >>> gx.node in marked.nodes
    True
    """
    for x in variables:
        if x is not None and not marked.has_warned:
            marked.nodes.add(x.node)
            marked.exist = True


def pass_on(inputs: "Iterable[Variable]", outputs: "Iterable[Variable]") -> None:
    """Marks outputs of a function that has no differentiable input if an input is marked."""
    if any(x._node is not None and x._node in marked.nodes for x in inputs):
        mark(outputs)


def look(function: str, outputs: "Iterable[Variable]") -> None:
    """Warns if outputs depend on a marked variable, once in a process.

    Args:
        function: the function that backpropagates from the outputs, for the message.
    """
    nodes = [y.node for y in outputs]
    seen = {node.creator_node for node in nodes} - {None}
    stack = list(seen)
    while stack:
        inputs = stack.pop().inputs
        nodes += inputs
        for node in inputs:
            creator = node.creator_node
            if creator is not None and creator not in seen:
                seen.add(creator)
                stack.append(creator)
    if not marked.nodes.isdisjoint(nodes):
        marked.exist, marked.has_warned = False, True
        marked.nodes.clear()
        warnings.warn(
            f"{function}: a result of grad without its graph counts as a constant here: {_REMEDY}",
            UserWarning,
            stacklevel=_levels_to_user(),
        )


def _levels_to_user():
    frame, levels = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("mpchain."):
        frame, levels = frame.f_back, levels + 1
    return levels
