"""What replays of captured steps do in place of a multi-node optimizer's update."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpchain.captured.ranks import Ranks
from mpchain.distributed.communicators import NcclCommunicator
from mpchain.distributed.gradients.buckets import GradientReducer
from mpchain.distributed.gradients.control import Control
from mpchain.distributed.gradients.reducer import Reducer
from mpchain.distributed.optimizers.counts import exchanging_in_graph
from mpchain.distributed.optimizers.draws import division
from mpchain.distributed.optimizers.shared_random import may_draw
from mpchain.observers import current, refuse
from mpchain.variable import Variable

if TYPE_CHECKING:
    from mpchain.distributed.optimizers.multi_node import MultiNodeOptimizer


class Replays(Ranks):
    """The messages of an update, as a replay makes them: the same in the same order.

    So ranks that replay a step work together with ranks that run it as always. On GPUs they must do
    the same, and ask one another before each step: a graph holds the sums of gradients by NCCL.

    Args:
        optimizer: whose updates are replayed.

    Example:
        >>> from mpchain.distributed.optimizers.replays import Replays
        >>> optimizer = mpchain.distributed.create_multi_node_optimizer(optimizers.SGD(), comm)
        >>> Replays(optimizer).recorder([(2, None)], None) is None  # nobody records
        True
    """

    def __init__(self, optimizer: "MultiNodeOptimizer"):
        self._optimizer = optimizer

    # What captured functions ask

    def _share_graphs(self):
        comm, target = self._optimizer.communicator, self._optimizer.target
        is_on_gpu = target is not None and target.device.xp is not np
        return comm.size > 1 and is_on_gpu and isinstance(comm, NcclCommunicator)

    def agree(self, number: int) -> bool:
        if not self._share_graphs():
            return True
        return Control.of(self._optimizer.communicator).compare(number)[0]

    def exchange(self, value: Any) -> list[Any]:
        return (
            self._optimizer.communicator.allgather_obj(value) if self._share_graphs() else [value]
        )

    def give_up(self) -> None:
        self._optimizer.communicator.is_captured_alike = False

    # What the optimizer asks

    def recorder(self, parts: Sequence[tuple[int | None, Any]], observations: Any) -> Any:
        """Returns the recorder of a step that is being recorded and can be replayed, or None."""
        if current.recorder is None:
            return None
        reason = self._why_not(parts, observations)
        if reason is not None:
            refuse(reason)
        return current.recorder if reason is None and current.recorder.holds_messages else None

    def _why_not(self, parts, observations):
        optimizer = self._optimizer
        if len(parts) > 1 or optimizer._reducer.parts_per_batch or optimizer._n_accumulated:
            return "a multi-node optimizer processes the batch in parts"
        if type(optimizer._reducer) is not GradientReducer or not optimizer._exchanges:
            return "gradients are not exchanged in the step that they belong to"
        if optimizer._waiting or optimizer._joint_link is not None or parts[0][0] == 0:
            return "ranks exchange more than gradients"
        if observations is not None and not observations.is_kept:
            return "reports are combined by another object in each step"
        return None if current.graph is None else self._why_not_in_graphs()

    def _why_not_in_graphs(self):
        optimizer, comm = self._optimizer, self._optimizer.communicator
        if comm.size > 1 and not (isinstance(comm, NcclCommunicator) and comm.is_connected):
            return "gradients are not summed by NCCL"
        if comm.is_elastic:
            return "an elastic job may lose ranks"
        if comm.size > 1 and not comm.is_captured_alike:
            return "only some ranks could capture a step before"
        if optimizer.has_dynamic_loss_scale:
            return "the loss scale of an optimizer is dynamic"
        if may_draw(optimizer.actual_optimizer, optimizer._reducer.params, optimizer._own_hook):
            return "hooks may draw random numbers, which ranks share"
        return optimizer._reducer.why_not_in_graphs()

    def capture(
        self, n: int | None, compute_loss: Callable[[], Variable], observations: Any
    ) -> None:
        """Captures an update of ``n`` samples of this rank, None if the optimizer does not know
        them: the sums of gradients and the wrapped optimizer's step, but no messages."""
        optimizer, graph = self._optimizer, current.graph
        reducer, comm = optimizer._reducer, optimizer.communicator
        ((_, compute_loss),) = optimizer._draws.numbered([(n, compute_loss)], optimizer.t)
        n_own, counts = optimizer._draws.n_own, optimizer._counts
        ((_, compute_loss),) = counts.begin(reducer, [(n, compute_loss)], [n_own])
        optimizer._draws.reset()
        graph.before(self.begin_launch, n_own)

        def ready(param):
            with exchanging_in_graph(comm):
                reducer.ready(param)

        with reducer.in_graph():
            with graph.drawing(lambda: self._generator.in_use()), counts.in_use():
                loss = compute_loss()
            for param in reducer.params:
                param.cleargrad()
            loss.grad = graph.number(self._weight, loss.array)
            loss.backward(on_leaf=graph.on_leaf(ready))
            with exchanging_in_graph(comm):
                presence = reducer.sum_in_graph()
        graph.alike.append(presence)
        optimizer.actual_optimizer.update(None)
        graph.call_again(self.finish, (presence, n_own, observations))

    def begin_launch(self, n_own: int) -> None:
        """Begins to learn the weight of this rank's samples, and which draws are theirs."""
        optimizer = self._optimizer
        n = self._begin(functools.partial(Reducer.begin, optimizer._reducer), n_own)
        # The update has been counted.
        self._generator = optimizer._draws.generator(n, optimizer.t - 1)

    def _begin(self, begin, n_own):
        """Begins a step; returns this rank's number of samples."""
        optimizer, n, own = self._optimizer, self._optimizer._n_samples(), self._own()
        _, n_total, n_empty, weight = division(optimizer.communicator)
        optimizer._n_weighted = None if weight is None else n_total or 0
        n_total = n_total if weight is None else None
        begin(own, n_total=n_total, n_empty=n_empty, losses_are_weighted=True)
        n = n_own if n is None else n
        counts, n_total = optimizer._counts, optimizer._n_weighted
        counts.begin(optimizer._reducer, [(own, None)], [n], n_total=n_total)
        return n

    def _own(self):
        weight = division(self._optimizer.communicator).weight
        return self._optimizer._n_samples() if weight is None else weight

    def _weight(self):
        optimizer, scale = self._optimizer, self._optimizer.actual_optimizer.loss_scale
        weight = optimizer._reducer.weight(self._own())
        return weight * (1 if scale is None else scale)

    def finish(self, presence: Sequence[bool], n_own: int, observations: Any) -> None:
        """Tells the other ranks what an update tells them, after the launch of a graph."""
        optimizer = self._optimizer
        n = optimizer._n_samples()
        optimizer._reducer.message.put(() if observations is None else observations.sums())
        optimizer._draws.count(n_own if n is None else n)
        n_total = optimizer._reducer.tell(presence)
        optimizer._counts.end()
        optimizer._end(n_total)

    def begin(self, n_own: int) -> None:
        """Begins a step, of ``n_own`` samples of this rank if the optimizer does not know them."""
        optimizer = self._optimizer
        optimizer._draws.count(self._begin(optimizer._reducer.begin, n_own))

    def weigh(self) -> float:
        """Returns the factor on the loss, and clears the gradients."""
        self._optimizer.target.cleargrads()
        return self._weight()

    def ready(self, param: Variable) -> None:
        """Passes a final gradient on."""
        if not self._optimizer._counts.is_sparse():
            self._optimizer._reducer.ready(param)
