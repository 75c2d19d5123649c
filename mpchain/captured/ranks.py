"""Groups of ranks whose captured steps contain collective operations."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np


class Ranks:
    """The ranks that capture and launch their graphs together. NCCL requires that either all ranks
    or no ranks capture an operation, and that either all ranks or no ranks launch a graph that
    contains the operation (its user guide, "Using NCCL with CUDA Graphs").

    This base class represents a single rank, which communicates with no other rank.

    Example:
        >>> from mpchain.captured.ranks import Ranks
        >>> Ranks().agree(1), Ranks().exchange("done")
        (True, ['done'])
    """

    _n_captures = 0

    def agree(self, number: int) -> bool:
        """Returns whether all ranks pass the same number. Every rank calls this method in every
        step."""
        return True

    def exchange(self, value: object) -> list[Any]:
        """Returns the values of all ranks."""
        return [value]

    def computes_no_loss(self) -> bool:
        """Returns whether this rank runs the step normally because its batch has no weight."""
        return False

    def begin_capture(self) -> int:
        """Returns the number of the capture that all ranks begin together."""
        self._n_captures += 1
        return self._n_captures

    def give_up(self) -> None:
        """Called on all ranks when some ranks could not capture a step that other ranks
        captured."""


class RanksOfOptimizer(Ranks):
    """The ranks of a multi-node optimizer, which agree before each step if their CUDA graphs
    contain NCCL's sums.

    Args:
        optimizer: the optimizer.

    Example:
        >>> from mpchain.captured.ranks import RanksOfOptimizer
        >>> optimizer = mpchain.distributed.create_multi_node_optimizer(optimizers.SGD(), comm)
        >>> RanksOfOptimizer(optimizer).exchange("of this rank alone")
        ['of this rank alone']
    """

    # The type is Any, because mpchain.captured must not import mpchain.distributed.
    def __init__(self, optimizer: Any):
        self._optimizer, self._comm = optimizer, optimizer.communicator

    def _share_graphs(self):
        comm, target = self._comm, self._optimizer.target
        is_on_gpu = target is not None and target.device.xp is not np
        return comm.size > 1 and is_on_gpu and comm.uses_nccl

    def agree(self, number: int) -> bool:
        return self._optimizer.are_equal(number) if self._share_graphs() else True

    def exchange(self, value: object) -> list[Any]:
        return self._comm.allgather_obj(value) if self._share_graphs() else [value]

    def computes_no_loss(self) -> bool:
        return self._optimizer.computes_no_loss()

    def begin_capture(self) -> int:
        self._comm.n_captures += 1
        return self._comm.n_captures

    def give_up(self) -> None:
        self._comm.is_captured_alike = False


class Launch:
    """Sends the same messages before and after a launch of a graph as an update does.

    Ranks that replay a step can therefore work together with ranks that run it normally.

    Args:
        optimizer: the multi-node optimizer.
        n_own: this rank's number of samples if the optimizer does not know it.
        observations: an object that collects the values that the loss reports; or None.
    """

    def __init__(self, optimizer: Any, n_own: int, observations: Any):
        self._optimizer, self._n_own, self._observations = optimizer, n_own, observations

    def begin(self) -> None:
        """Starts the exchange that determines the weight of this rank's samples and their random
        draws."""
        optimizer = self._optimizer
        self._n = optimizer.begin_replay(self._n_own, in_graph=True)
        # The optimizer has already counted this update.
        draws = optimizer.current_step.draws
        self._generator = draws.generator(self._n, optimizer.t - 1)

    def drawing(self) -> contextlib.AbstractContextManager:
        """Returns a context manager in which random draws belong to this rank's samples."""
        return self._generator.in_use()

    def finish(self, presence: list[bool]) -> None:
        """Sends the message of an update to the other ranks; ``presence`` has a flag for each
        parameter, True if its gradient exists."""
        observations = self._observations
        sums = () if observations is None else observations.sums()
        self._optimizer.current_step.finish_launch(sums, presence, self._n)


def capture_update(
    graph: Any, optimizer: Any, n: int | None, compute_loss: Callable, observations: Any
) -> None:
    """Captures an update of ``n`` samples of this rank (None if the optimizer does not know the
    number): the sums of gradients and the wrapped optimizer's step, but no messages."""
    step, comm = optimizer.current_step, optimizer.communicator
    parts, (n_own,) = step.number([(n, compute_loss)], optimizer.t)
    ((_, compute_loss),) = step.counts.begin(step.reducer, parts, [n_own])
    step.draws.reset()
    launch = Launch(optimizer, n_own, observations)
    graph.before(launch.begin)

    def ready(param):
        with graph.exchanging(comm):
            step.reducer.ready(param)

    with step.reducer.in_graph():
        with graph.drawing(launch.drawing), step.counts.in_use():
            loss = compute_loss()
        for param in step.reducer.params:
            param.cleargrad()
        loss.grad = graph.number(optimizer.own_factor, loss.array)
        loss.backward(on_leaf=graph.on_leaf(ready))
        with graph.exchanging(comm):
            presence = step.reducer.sum_in_graph()
    graph.alike.append(presence)
    optimizer.actual_optimizer.update(None)
    graph.call_again(launch.finish, (presence,))
