"""Seeing in the graph of a loss that it is no sum of the losses of a rank's samples."""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from mpchain.distributed.optimizers.sample_graph import SampleGraph, State
from mpchain.distributed.optimizers.scales import Scales, scales_of
from mpchain.parameter_tree import is_array
from mpchain.typing import Array
from mpchain.variable import Variable

_CURVED = frozenset(
    "sqrt rsqrt exp expm1 log log1p log2 log10 square cube power power_of_constant_base clip "
    "power_of_constant_exponent divide_constant tanh sigmoid softplus relu absolute maximum "
    "minimum elu selu gelu silu leaky_relu softmax log_softmax normalize sin cos".split()
)
"""Labels of functions that are not linear in any of what they take."""

_PRODUCTS = frozenset("multiply matrix_product squared_difference contract".split())
"""Labels of functions that are linear in each argument, but not in several at once."""

_COUPLED = frozenset("max min prod logsumexp".split())
"""Labels of functions of arrays whose result is no sum over samples."""

REMEDY = (
    "The mean of their values is minimized, which is not that of the whole batch: take the mean, "
    "or the sums, by mpchain.batch_mean, batch_sum and batch_count"
)
"""What a warning of a loss ends with."""

REMEDY_WITHOUT_NUMBERS = (
    f"{REMEDY}. Ranks count equally, as their numbers of samples are unknown: comm.batch says them"
)
"""The same where ranks are not weighted by samples."""


def watched(
    compute_loss: Callable[[], Any],
    n: int,
    tell: Callable[[str], None],
    take: Callable[[Scales], None],
    in_shards: bool = False,
) -> Callable[[], Any]:
    """Returns a loss function that tells of a loss that ranks cannot average.

    Args:
        compute_loss: the loss function.
        n: the number of its samples.
        tell: is called with the reason.
        take: is called with what :func:`~mpchain.distributed.optimizers.scales.scales_of` returns.
        in_shards: whether any number of ranks computes the same parts of a batch, so that their
            statistics are declared.

    Example:
        >>> x, W = np.ones((5, 2)), mpchain.Parameter(np.ones((3, 2)))
        >>> tell = lambda reason: print(reason.split(",")[0])
        >>> take = lambda scales: print(f"{scales.factors[0]:.4f}")
        >>> loss = watched(lambda: F.sqrt(F.mean(F.linear(x, W) ** 2)) / 2, 5, tell, take)()
        the loss is a nonlinear function (sqrt) of a mean or sum over the samples of one rank
        0.5000
    """

    def compute():
        loss = compute_loss()
        if isinstance(loss, Variable) and loss.shape == () and n > 1:
            graph = SampleGraph(loss, n, batches_of(compute_loss))
            reason = why_not_averaged(graph, in_shards)
            if reason is not None:
                tell(reason)
            take(scales_of(loss, graph))
        return loss

    return compute


def why_not_averaged(graph: SampleGraph, in_shards: bool = False) -> str | None:
    """Returns why the mean of the losses of several ranks is not that of their samples.

    A function that occurs at least as often as there are samples may belong to one of them each,
    and is ignored, as are functions of what depends on parameters alone, or was computed by all
    ranks together.

    Args:
        graph: of a loss.
        in_shards: see :func:`watched`.

    Returns:
        None if no reason is seen.

    Example:
        >>> x, W = np.ones((5, 2)), mpchain.Parameter(np.ones((3, 2)))
        >>> y = F.linear(x, W)
        >>> why_not_averaged(SampleGraph(F.mean(y) / F.sum(y), 5))[:42]
        'the loss is a nonlinear function (divide) '
        >>> why_not_averaged(SampleGraph(F.mean(y) * F.exp(F.sum(W)), 5)) is None
        True
    """
    found = {}
    for node in graph.nodes():
        function, state = node.creator_node, graph.state(node)
        states = [graph.state(x) for x in function.inputs if graph.depends(x)]
        label = function.label
        if label == "batch_normalization" and not in_shards:
            return (
                f"{label} takes the statistics of the samples of one rank, not those of the whole "
                "batch, which the links of mpchain.distributed.links.create_mnbn_model(model, "
                "comm) take"
            )
        if state is State.PAIRS and State.PAIRS not in states:
            return (
                f"the loss compares the samples of one rank with each other ({label}), not with "
                "those of other ranks, which mpchain.distributed.functions.allgather brings"
            )
        if _is_nonlinear(function, graph, state, states):
            found[label] = found.get(label, 0) + 1
    label = next((label for label, n_found in found.items() if n_found < graph.n), None)
    if label is None:
        return None
    return (
        f"the loss is a nonlinear function ({label}) of a mean or sum over the samples of one "
        f"rank, or part of a batch. {REMEDY}"
    )


def _is_nonlinear(function, graph, state, states):
    """Whether a function is nonlinear in sums over samples, on which its inputs depend so."""
    label = function.label
    if label in _COUPLED and state is State.SUMS:
        return any(x.shape != () for x in function.inputs if graph.depends(x))
    if State.SUMS not in states and State.MIXED not in states:
        return False
    if label in _PRODUCTS:
        return len(states) > 1
    return label in _CURVED or (label == "divide" and graph.depends(function.inputs[1]))


def batches_of(value: Any) -> Iterator[Array]:
    """Yields the arrays that a loss function was given as arguments.

    Args:
        value: the function, with its arguments by ``functools.partial``.

    Example:
        >>> [x.shape for x in batches_of(functools.partial(F.mean, np.ones((3, 2))))]
        [(3, 2)]
    """
    if isinstance(value, functools.partial):
        value = [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from batches_of(item)
    elif isinstance(value, Variable):
        yield value.array
    elif is_array(value):
        yield value


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
