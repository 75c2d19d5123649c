"""Detects from the graph of a loss that it is not a sum of the losses of a rank's samples."""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from mpchain.distributed.optimizers.sample_graph import SampleGraph, State
from mpchain.distributed.optimizers.scales import Scales, scales_of
from mpchain.distributed.watch.call_sites import describe, is_of_library
from mpchain.functions.declaring.linearity import LINEAR, PRODUCTS
from mpchain.observers import Observer
from mpchain.parameter_tree import is_array
from mpchain.typing import Array
from mpchain.variable import Variable

_LINEAR = LINEAR | frozenset(
    "negative add subtract add_constant subtract_from_constant multiply_by_constant where identity "
    "divide_by_constant pad_with_constants pad_sequence".split()
)
"""Labels of functions that are linear in all their arguments together, except for constants that
they add. All other functions, except ``divide`` and those in ``_PRODUCTS``, are taken for
nonlinear."""

_PRODUCTS = PRODUCTS | frozenset(
    "multiply linear_with_bias convolution_with_bias shifted_and_scaled linear_interpolate".split()
)
"""Labels of functions that are taken for nonlinear only if several of their arguments depend on the
samples."""

_COUPLED = frozenset("max min prod logsumexp".split())
"""Labels of functions that combine elements in another way than by a sum over samples."""

REMEDY = (
    "Training minimizes the mean of the ranks' values, not the value for the whole batch: compute "
    "the mean, or the sums, by mpchain.batch_mean, batch_sum and batch_count"
)
"""The end of a warning about a loss."""

REMEDY_WITHOUT_NUMBERS = (
    f"{REMEDY}. Ranks have equal weights, because their numbers of samples are unknown: use "
    "comm.batch"
)
"""The end of the warning if ranks are not weighted by samples."""


def watched(
    compute_loss: Callable[[], Any],
    n: int,
    tell: Callable[[str | None, str], None],
    take: Callable[[str | None, Scales], None],
    in_shards: bool = False,
) -> Callable[[], Any]:
    """Wraps a loss function so that it reports a loss that ranks cannot average.

    Args:
        compute_loss: the loss function.
        n: the number of its samples.
        tell: function to call with the program's line, or None if it is unknown, and the reason.
        take: function to call with the line that computes the loss, or None if it is unknown, and
            with the result of :func:`~mpchain.distributed.optimizers.scales.scales_of`.
        in_shards: whether any number of ranks computes the same parts of a batch, so that
            statistics of a part are intended.

    Example:
        >>> x, W = np.ones((5, 2)), mpchain.Parameter(np.ones((3, 2)))
        >>> tell = lambda place, reason: print(f"{place}: {reason[:41]}")
        >>> take = lambda place, scales: print(f"{scales.factors[0]:.4f}")
        >>> loss = watched(lambda: F.sqrt(F.mean(F.linear(x, W) ** 2)) / 2, 5, tell, take)()
        <doctest ...>:1 in <lambda>: the loss is a nonlinear function (sqrt) o
        0.5000
    """

    def compute():
        with _Lines() as lines:
            loss = compute_loss()
        if isinstance(loss, Variable) and loss.shape == () and n > 1:
            graph = SampleGraph(loss, n, batches_of(compute_loss))
            function, reason = find_cause(graph, in_shards)
            if function is not None:
                tell(lines.of(function), reason)
            take(lines.of(loss.creator_node), scales_of(loss, graph))
        return loss

    return compute


class _Lines(Observer):
    """Records the line of the program that called each function in the graph of a loss."""

    def __enter__(self):
        self._found, self._begin = {}, sys._getframe(1)
        return super().__enter__()

    def forward_preprocess(self, function, in_data):
        frame = sys._getframe(1)
        while frame is not self._begin and frame is not None and is_of_library(frame):
            frame = frame.f_back
        is_known = frame is not self._begin and frame is not None
        # A later function may reuse the id of a function that is no longer in the graph.
        self._found[id(function)] = describe(frame, None) if is_known else None

    def of(self, function):
        """Returns the line that called a function; None if mpchain itself computes the loss."""
        return self._found.get(id(function))


def why_not_averaged(graph: SampleGraph, in_shards: bool = False) -> str | None:
    """Returns the reason that :func:`find_cause` finds, or None.

    Example:
        >>> x, W = np.ones((5, 2)), mpchain.Parameter(np.ones((3, 2)))
        >>> y = F.linear(x, W)
        >>> why_not_averaged(SampleGraph(F.mean(y) / F.sum(y), 5))[:42]
        'the loss is a nonlinear function (divide) '
        >>> why_not_averaged(SampleGraph(F.mean(y) * F.exp(F.sum(W)), 5)) is None
        True
    """
    return find_cause(graph, in_shards)[1] or None


def find_cause(graph: SampleGraph, in_shards: bool = False) -> tuple[Any, str]:
    """Finds the function because of which the mean of several ranks' losses is not the mean over
    their samples.

    A function that occurs at least as often as there are samples may be called once for each
    sample, and is ignored. Functions are also ignored if their values depend only on parameters, or
    were computed by all ranks together.

    Args:
        graph: the graph of a loss.
        in_shards: see :func:`watched`.

    Returns:
        The node of the function that is the cause, and the reason; None and "" if there is none.

    Example:
        >>> x, W = np.ones((5, 2)), mpchain.Parameter(np.ones((3, 2)))
        >>> loss = F.sqrt(F.mean(F.linear(x, W) ** 2))
        >>> find_cause(SampleGraph(loss, 5))[0] is loss.creator_node
        True
    """
    found = {}
    for node in graph.nodes():
        function, state = node.creator_node, graph.state(node)
        states = [graph.state(x) for x in function.inputs if graph.depends(x)]
        label = function.label
        if label == "batch_normalization" and not in_shards:
            return function, (
                f"{label} takes the statistics of the samples of one rank, not of the whole batch: "
                "use the links of mpchain.distributed.links.create_mnbn_model(model, comm)"
            )
        if state is State.PAIRS and State.PAIRS not in states:
            return function, (
                f"the loss compares the samples of one rank with each other ({label}), not with "
                "samples of other ranks: get these by mpchain.distributed.functions.allgather"
            )
        if _is_nonlinear(function, graph, state, states):
            found.setdefault(label, []).append(function)
    few = next((functions for functions in found.values() if len(functions) < graph.n), None)
    if few is None:
        return None, ""
    return few[0], (
        f"the loss is a nonlinear function ({few[0].label}) of a mean or sum over the samples of "
        f"one rank, or part of a batch. {REMEDY}"
    )


def _is_nonlinear(function, graph, state, states):
    """Returns whether a function is nonlinear in inputs that depend on sums over samples."""
    label = function.label
    if label in _COUPLED and state is State.SUMS:
        return any(x.shape != () for x in function.inputs if graph.depends(x))
    if State.SUMS not in states and State.MIXED not in states:
        return False
    if label in _PRODUCTS:
        return len(states) > 1
    if label == "divide":
        return graph.depends(function.inputs[1])
    return label not in _LINEAR


def batches_of(value: Any) -> Iterator[Array]:
    """Yields the arrays among the arguments of a loss function.

    Args:
        value: the function, with its arguments bound by ``functools.partial``.

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
