"""Calls of a captured function on GPUs, by one rank or by several ranks together."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from mpchain.backends import cuda
from mpchain.captured.cuda_graph import CudaGraph, explain
from mpchain.captured.ranks import Ranks
from mpchain.captured.results import without_graph
from mpchain.captured.state import State
from mpchain.captured.surroundings import Surroundings, are_exactly_equal
from mpchain.link import Link
from mpchain.variable import Variable

_MOST_ATTEMPTS = 3

AS_ALWAYS = 0
"""The number that a rank passes to agree() to make all ranks run a call without capturing it."""

_CAPTURE, _COMPARE, _REPLAY = range(1, 4)


class GraphStep:
    """A function on GPUs, for arguments of certain shapes. It is captured, compared, and then
    replayed.

    Args:
        function: the function.
        links, params: the links and parameters that the function changes.
        ranks: the ranks that run the step together.
    """

    def __init__(self, function: Callable, links: list[Link], params: list, ranks: Ranks):
        self._function, self._links, self._params = function, links, params
        self._ranks = ranks
        self._graph: CudaGraph | None = None
        self._number = 0  # this counts the captures
        self._is_compared = False
        self._n_attempts = 0
        self._reason: str | None = None
        self._is_warned = False

    def __call__(self, arrays: Sequence[Any], args: tuple, kwargs: dict) -> tuple[str | None, Any]:
        """Calls the function. Returns the reason why the call was not replayed (None if it was
        replayed), and the function's result."""
        todo, why = self._next(arrays)
        graph = self._graph
        if not self._ranks.agree(todo + 2 * self._number if todo >= _COMPARE else todo):
            if graph is not None and todo >= _COMPARE:
                graph.cancel()
            todo, why = AS_ALWAYS, why or "another rank could not replay it"
        if todo == _CAPTURE:
            return self._capture(arrays, args, kwargs)
        if graph is not None and todo == _COMPARE:
            return self._compare(graph, arrays, args, kwargs)
        if graph is not None and todo == _REPLAY:
            return None, graph.replay(arrays)
        # The function runs before the warning: its own error may explain why the capture failed.
        result = self._eager(args, kwargs)
        self._warn()
        return self._reason or why, result

    def _next(self, arrays):
        """Returns the next action, and the reason if the step must run normally. If the next action
        is a launch, the launch is prepared."""
        if self._reason is None and any(not cuda.is_gpu_array(x) for x in arrays):
            self._refuse("an argument is on the host, but parameters are on a GPU")
        if self._reason is None and self._graph is None and self._n_attempts == _MOST_ATTEMPTS:
            self._refuse("parameters, persistent values or hooks are replaced in each step")
        if self._reason is not None:
            return AS_ALWAYS, self._reason
        graph = self._graph
        if graph is None:
            return _CAPTURE, None
        if graph.fits() and not graph.carries_the_same():
            return AS_ALWAYS, "links have state of other shapes than when it was captured"
        if graph.fits() and graph.prepare():
            return _REPLAY if self._is_compared else _COMPARE, None
        self._forget()
        # A normal step reconnects the ranks and restores the scale.
        if graph.is_released or graph.lacks_scale():
            return AS_ALWAYS, "it is being recorded"
        return self._next(arrays)

    def _forget(self):
        self._graph, self._is_compared = None, False

    def _eager(self, args, kwargs):
        return without_graph(self._function(*args, **kwargs))

    def _compare(self, graph, arrays, args, kwargs):
        result, reason = graph.compare(arrays, lambda: self._function(*args, **kwargs))
        self._is_compared, self._n_attempts = True, 0
        if reason := _joint(self._ranks.exchange(reason)):
            self._refuse(reason)
            self._warn()
        return self._reason or "it is being recorded", without_graph(result)

    def _capture(self, arrays, args, kwargs):
        self._n_attempts += 1
        self._number = self._ranks.begin_capture()
        grads = [(p, p._grad, p._grad_var) for p in State(self._links, self._params).params]
        parts = {id(part): part for link in self._links for part in link.links()}
        attributes = [(link, dict(vars(link))) for link in parts.values()]
        graph, reason = self._captured(arrays, args, kwargs)
        reason = reason or _attribute_that_was_set(attributes)
        unknown, alike = ([], []) if graph is None else (graph.unknown_params, graph.alike)
        reasons, are_unknown, told = zip(
            *self._ranks.exchange((reason, bool(unknown), alike)), strict=True
        )
        if any(reasons) and not all(reasons):
            self._ranks.give_up()
        reason = _joint(reasons)
        is_captured = reason is None and not any(are_unknown)
        if is_captured and any(values != alike for values in told):
            is_captured, reason = False, "ranks have gradients of different parameters"
        if graph is not None and not is_captured:
            graph.cancel()
            self._params += unknown
        for param, grad, grad_var in grads:
            param._grad, param._grad_var = grad, grad_var
        # The capture has run no kernel, so values of attributes, such as states, may not have been
        # computed.
        for link, before in attributes:
            vars(link).clear()
            vars(link).update(before)
        if is_captured and graph is not None:
            self._graph = graph
            graph.prepare_first()
            return self._compare(graph, arrays, args, kwargs)
        del graph
        if reason is not None:
            self._refuse(reason)
        # The function runs before the warning: its own error may explain why the capture failed.
        result = self._eager(args, kwargs)
        self._warn()
        return self._reason or "it is being recorded", result

    def _captured(self, arrays, args, kwargs):
        """Captures the function. Returns the graph and None, or None and the reason why the capture
        failed."""
        try:
            others = Surroundings(self._function).found(cuda.ndarray)
            graph = CudaGraph(State(self._links, self._params), arrays, others)
            graph.capture(self._function, args, kwargs)
        except Exception as error:
            return None, explain(error)
        return graph, None

    def _refuse(self, reason):
        self._forget()
        self._reason = reason

    def _warn(self):
        if self._reason is None or self._is_warned:
            return
        self._is_warned = True
        name = getattr(self._function, "__name__", type(self._function).__name__)
        warnings.warn(f"capture: {name} is not replayed: {self._reason}", stacklevel=6)


def _attribute_that_was_set(attributes):
    """Returns the reason not to use a graph if the step sets an attribute of a link, because
    launches would not set the attribute; else None."""
    for link, before in attributes:
        for name, value in vars(link).items():
            if isinstance(value, Variable) or are_exactly_equal(value, before.get(name)):
                continue
            if value is not None or not isinstance(before.get(name), Variable):
                return f"it sets {name} of a {type(link).__name__}"
    return None


def _joint(reasons):
    """Returns the first one of the ranks' reasons; None if no rank has a reason."""
    for rank, reason in enumerate(reasons):
        if reason is not None:
            return reason if all(reasons) else f"on rank {rank}, {reason}"
    return None
