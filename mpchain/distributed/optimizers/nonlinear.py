"""Seeing in the graph of a loss that it is a nonlinear function of a mean over a rank's samples."""

import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from mpchain.variable import Parameter, Variable, VariableNode

_CURVED = frozenset(
    "sqrt rsqrt exp expm1 log log1p log2 log10 square cube power power_of_constant_base clip "
    "power_of_constant_exponent divide_constant tanh sigmoid softplus relu absolute maximum "
    "minimum".split()
)
"""Labels of functions of scalars that are not linear in any of them."""

_MOST_STEPS = 10000
"""Steps from a loss to its sums, after which these are not looked for."""

_COUPLED = frozenset("max min prod logsumexp".split())
"""Labels of functions of arrays whose scalar result is no sum over samples."""


def watched(
    compute_loss: Callable[[], Any],
    n: int,
    tell: Callable[[str], None],
    take: Callable[[list[float]], None],
) -> Callable[[], Any]:
    """Returns a loss function that tells of a loss that ranks cannot average.

    Args:
        compute_loss: the loss function.
        n: the number of its samples.
        tell: is called with the reason.
        take: is called with what :func:`factors` returns.

    Example:
        >>> x, W = np.ones((5, 2)), mpchain.Parameter(np.ones((3, 2)))
        >>> loss = watched(lambda: F.sqrt(F.mean(F.linear(x, W) ** 2)) / 2, 5, print, print)()
        [0.5]
        the loss is a nonlinear function (sqrt) of a mean or sum over the samples of one rank
    """

    def compute():
        loss = compute_loss()
        if isinstance(loss, Variable):
            take(factors(loss, n))
        label = nonlinear(loss, n) if isinstance(loss, Variable) else None
        if label is not None:
            tell(
                f"the loss is a nonlinear function ({label}) of a mean or sum over the samples of "
                "one rank"
            )
        return loss

    return compute


def nonlinear(loss: Variable, n: int) -> str | None:
    """Returns the label of a function by which a loss depends on a sum over samples, but is no sum.

    Only scalars are looked at: from the loss up to the first arrays. A function that occurs at
    least as often as there are samples may belong to one of them each, and is ignored, as are
    scalars that depend on parameters alone, or were computed by all ranks together.

    Args:
        loss: the loss of some samples.
        n: their number; of one alone nothing is known.

    Returns:
        None if there is none.

    Example:
        >>> x, W = np.ones((5, 2)), mpchain.Parameter(np.ones((3, 2)))
        >>> y = F.linear(x, W)
        >>> nonlinear(F.mean(y) / F.sum(y), 5), nonlinear(F.mean(y) * F.exp(F.sum(W)), 5)
        ('divide', None)
    """
    if n < 2 or loss.shape != ():
        return None
    graph, found = _Graph(loss), {}
    stack, seen = [loss.node], set()
    while stack:
        node = stack.pop()
        function = node.creator_node
        if node.shape != () or function is None or id(function) in seen:
            continue
        seen.add(id(function))
        if graph.depends(node):
            depending = [x for x in function.inputs if graph.depends(x)]
            if _is_nonlinear(function, depending):
                found[function.label] = found.get(function.label, 0) + 1
            stack += depending
    return next((label for label, n_found in found.items() if n_found < n), None)


def _is_nonlinear(function, depending):
    label = function.label
    if any(x.shape != () for x in function.inputs):
        return label in _COUPLED
    if label in _CURVED:
        return True
    if label == "multiply":
        return len(depending) > 1
    return label == "divide" and function.inputs[1] in depending


def factors(loss: Variable, n: int) -> list[float]:
    """Returns by what a loss multiplies each sum or mean over samples, without the signs.

    Numbers that the program has computed from its samples, such as those that a mask counts, differ
    between ranks, and so do the means that they make.

    Args:
        loss, n: as in :func:`nonlinear`. If there are as many sums as samples, they may belong to
            one of them each; then nothing is returned.

    Example:
        >>> x, W = np.ones((5, 2)), mpchain.Parameter(np.ones((3, 2)))
        >>> y = F.linear(x, W)
        >>> factors(F.sum(y) / 4 - 3 * (F.mean(y) + F.sum(W)), 5)
        [3.0, 0.25]
    """
    if n < 2 or loss.shape != ():
        return []
    graph, found, n_steps = _Graph(loss), [], 0
    stack = [(loss.node, 1.0)]
    while stack:
        node, factor = stack.pop()
        function, n_steps = node.creator_node, n_steps + 1
        if n_steps > _MOST_STEPS:
            return []
        if function is None or not graph.depends(node):
            continue
        if any(x.shape != () for x in function.inputs):
            found.append(factor)
            continue
        factor *= _factor(function, graph)
        stack += [(x, factor) for x in function.inputs if graph.depends(x)]
    return found if len(found) < n and all(map(math.isfinite, found)) else []


def _factor(function, graph):
    """Returns the magnitude of what a function of scalars multiplies by; NaN if it is unknown."""
    if function.label == "multiply_by_constant":
        return abs(float(function.constants[0]))
    if function.label == "divide_by_constant":
        constant = abs(float(function.constants[0]))
        return 1 / constant if constant else math.nan
    if function.label not in ("multiply", "divide"):
        return 1.0
    others = [x for x in function.inputs if not graph.depends(x)]
    if len(others) != 1 or isinstance(others[0].get_variable_or_none(), Parameter):
        return 1.0
    if others[0].creator_node is not None:
        return 1.0  # computed from parameters, or by all ranks
    value = math.nan if others[0].data is None else abs(float(others[0].data))
    if function.label == "divide" and function.inputs[1] is others[0]:
        return 1 / value if value else math.nan
    return value


def differ(parts: Sequence[tuple[float, Sequence[float]]], tolerance: float) -> list[float] | None:
    """Returns factors that differ between the parts of a batch, as no mean over samples has them.

    Args:
        parts: the weight of each part, and its factors.
        tolerance: the relative difference that rounding makes.

    Example:
        >>> differ([(2, [0.5, 0.1]), (3, [0.5, 0.2])], 1e-6)  # 1 / n would be 0.1 and 0.0667
        [0.1, 0.2]
        >>> differ([(2, [1 / 2]), (4, [1 / 4])], 1e-6) is None
        True
    """
    parts = [(weight, held) for weight, held in parts if held and weight]
    if len({len(held) for _, held in parts}) != 1:
        return None
    for own in zip(*[held for _, held in parts]):
        shares = [weight * factor for (weight, _), factor in zip(parts, own)]
        if all(max(v) - min(v) > tolerance * max(v) for v in (own, shares)):
            return [*own]
    return None


class _Graph:
    """What depends on samples, among the nodes that a loss depends on."""

    def __init__(self, loss: Variable):
        self._known: dict[int, bool] = {}  # keyed by the id of a node, which the loss keeps alive
        self._lengths = set()  # lengths of axes of parameters; constants of their size share them
        order = self._nodes(loss.node)
        for node in order:
            if isinstance(node.get_variable_or_none(), Parameter):
                self._lengths.update(node.shape)
        for node in reversed(order):
            self._known[id(node)] = self._find(node)

    def depends(self, node: VariableNode) -> bool:
        return self._known[id(node)]

    def _nodes(self, root):
        """Returns the nodes below a node, each before those that it was computed from."""
        order, state = [], {}
        stack = [root]
        while stack:
            node = stack[-1]
            if state.get(id(node)) is None:
                state[id(node)] = False
                function = node.creator_node
                inputs = () if function is None or _is_of_all_ranks(function) else function.inputs
                stack += [x for x in inputs if id(x) not in state]
            else:
                stack.pop()
                if not state[id(node)]:
                    state[id(node)] = True
                    order.append(node)
        return order[::-1]

    def _find(self, node):
        function = node.creator_node
        if function is None:
            is_parameter = isinstance(node.get_variable_or_none(), Parameter)
            return bool(node.shape) and not is_parameter and node.shape[0] not in self._lengths
        if _is_of_all_ranks(function):
            return False
        return any(self._known[id(x)] for x in function.inputs)


def _is_of_all_ranks(function):
    return hasattr(function, "comm")


def place_of(compute_loss: object) -> str | None:
    """Returns the line of a program's loss function; None if it is one of mpchain.

    Example:
        >>> place_of(functools.partial(lambda: None))
        '<doctest ...>:1 in <lambda>'
    """
    while isinstance(compute_loss, functools.partial):
        compute_loss = compute_loss.func
    function = getattr(compute_loss, "forward", compute_loss)
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename.startswith(_PACKAGE):
        return None
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"


_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
