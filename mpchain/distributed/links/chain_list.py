"""A model whose parts are on different ranks."""

import collections
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from mpchain import functions as F
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.arrays import partition
from mpchain.distributed.functions.communication import communicate, pseudo_connect, token_of
from mpchain.link import ChainList, Link
from mpchain.utils.type_check import is_integer
from mpchain.variable import Variable, as_variable

Ranks: TypeAlias = int | Sequence[int] | None


class MultiNodeChainList(ChainList):
    """A model whose parts are on different ranks. The ranks send each other the parts' results.

    Each rank adds its parts in the order in which they run. Forward receives the input, runs the
    part and sends the result for one part after the other; backward does the opposite in exactly
    the opposite order, and cannot hang unless forward does. All ranks must call ``backward``: of
    the loss, or of the delegate variable that the model returns on ranks without an output::

        class First(MultiNodeChainList):  # for rank 0; rank 1 has a part from 0 to 0
            def __init__(self, comm):
                super().__init__(comm)
                self.add_link(L.Linear(784, 100), rank_in=None, rank_out=1)
                self.add_link(L.Linear(100, 10), rank_in=1, rank_out=None)

    With micro-batches, the parts on different ranks work at the same time: a rank begins the next
    micro-batch when it has sent its result for the previous micro-batch. The results are the same
    if samples do not depend on each other (in batch normalization they do).

    All ranks must also take part if a gradient is differentiated again: ask for the gradient by a
    delegate variable, too, on which the communication depends, and tie the rest of the
    computation to the result::

        start = mpchain.Variable(np.zeros(0, np.float32))
        y = model(x, delegate_variable=start)
        *gradients, token = mpchain.grad([y], [*params, start], enable_double_backprop=True)
        loss = pseudo_connect(token, penalty(gradients))

    Args:
        comm: the communicator of the ranks.
        n_micro_batches: the number of parts into which a batch is divided, the same on all ranks.

    Raises:
        ValueError: ``n_micro_batches`` is below 1.

    Example:
        >>> model = mpchain.distributed.MultiNodeChainList(comm)
        >>> model.add_link(L.Linear(3, 2))  # from the model's input to its output
        >>> model(np.ones((4, 3), "f")).shape
        (4, 2)
    """

    def __init__(self, comm: Communicator, n_micro_batches: int = 1):
        super().__init__()
        if n_micro_batches < 1:
            raise ValueError(
                f"MultiNodeChainList: n_micro_batches must be at least 1, not {n_micro_batches}"
            )
        self.comm = comm
        comm.refuse_to_lose_ranks(self, "ranks have different parts of a MultiNodeChainList")
        self.n_micro_batches = n_micro_batches
        self._routes = []

    def add_link(self, link: Link, rank_in: Ranks = None, rank_out: Ranks = None) -> None:
        """Adds a part of the model to this rank.

        Args:
            link: the part.
            rank_in: the rank or ranks whose results are the part's arguments; None passes the
                arguments of the model.
            rank_out: the rank or ranks that get the part's result, which is one Variable or
                several; None makes the result the model's result on this rank. ``rank_in`` and
                ``rank_out`` may include this rank.

        Raises:
            ValueError: a rank does not exist, or a part has ``rank_out=None`` already.
        """
        route = self._ranks("rank_in", rank_in), self._ranks("rank_out", rank_out)
        if rank_out is None and any(ranks_out is None for _, ranks_out in self._routes):
            raise ValueError(
                "MultiNodeChainList.add_link: rank_out=None may be passed for only one part of a "
                "rank, and another part of this rank has it"
            )
        super().add_link(link)
        self._routes.append(route)

    def _ranks(self, argument, ranks):
        if ranks is None:
            return None
        ranks = [ranks] if is_integer(ranks) else list(ranks)
        if not ranks or not all(0 <= rank < self.comm.size for rank in ranks):
            raise ValueError(
                f"MultiNodeChainList.add_link: {argument} must be a rank from 0 to "
                f"{self.comm.size - 1}, a list of such ranks, or None, not {ranks}"
            )
        return ranks

    def forward(
        self, *inputs: Any, delegate_variable: Variable | None = None
    ) -> Variable | tuple[Variable, ...]:
        """Runs the parts of this rank.

        Args:
            inputs: arguments of the parts with ``rank_in=None``; not needed on ranks without such a
                part. With micro-batches, Variables and arrays are divided along their first axis.
            delegate_variable: a Variable on which the communication will depend.

        Returns:
            The result of the part with ``rank_out=None``, a Variable or a tuple of Variables; the
            results of micro-batches are concatenated. On ranks without such a part, a delegate
            variable.

        Raises:
            ValueError: there are fewer samples than micro-batches, or the results of the
                micro-batches have no axis along which to concatenate them.
            RuntimeError: links were not added by :meth:`add_link`, or were removed; a part awaits
                the result of a part of the same rank that comes after it.
        """
        if len(self) != len(self._routes):
            raise RuntimeError(
                "MultiNodeChainList: links must be added by add_link, and must not be removed"
            )
        token = token_of(delegate_variable)
        outputs = []
        for i in range(self.n_micro_batches):
            output, token = self._run([self._part(x, i) for x in inputs], token)
            outputs.append(output)
        if outputs[0] is None:
            return as_variable(np.zeros(0, np.float32)) if token is None else token
        outputs = outputs[0] if len(outputs) == 1 else _concatenated(outputs)
        if isinstance(outputs, tuple):
            connected = pseudo_connect(token, *outputs)
            return connected if isinstance(connected, tuple) else (connected,)
        return pseudo_connect(token, outputs)

    def _part(self, x, i):
        if self.n_micro_batches == 1 or not hasattr(x, "shape"):
            return x
        if x.ndim == 0 or len(x) < self.n_micro_batches:
            raise ValueError(
                f"MultiNodeChainList: an input of shape {x.shape} cannot be divided into "
                f"{self.n_micro_batches} micro-batches; it needs at least one sample for each"
            )
        begin, end = partition(len(x), i, self.n_micro_batches)
        return x[begin:end]

    def _run(self, inputs, token):
        """Runs the parts; returns the result, or None, and the token of the communication."""
        result, kept = None, collections.deque()
        for link, (ranks_in, ranks_out) in zip(self, self._routes):
            xs = inputs
            if ranks_in is not None:
                xs = []
                for rank in ranks_in:
                    received, token = self._receive(rank, token, kept)
                    xs += self._as_arguments(received)
            y = link(*xs)
            if ranks_out is None:
                result = y
                continue
            ys = list(y) if isinstance(y, (tuple, list)) else [y]
            for rank in ranks_out:
                if rank == self.comm.rank:
                    kept.append(ys)
                else:
                    _, token = communicate("send", self.comm, ys, token, rank=rank, tag=0)
        return result, token

    def _as_arguments(self, received):
        """Returns the list of arguments that another part gets for the result of a part."""
        return received

    def _receive(self, rank, token, kept):
        if rank != self.comm.rank:
            return communicate("recv", self.comm, [], token, rank=rank, tag=0)
        if not kept:
            raise RuntimeError(
                f"MultiNodeChainList: a part on rank {rank} awaits the result of a part on the "
                "same rank, but no part before it sends its result there; add the sender first"
            )
        return kept.popleft(), token


def _concatenated(outputs):
    if isinstance(outputs[0], tuple):
        return tuple(_concatenated(list(ys)) for ys in zip(*outputs))
    if outputs[0].ndim == 0:
        raise ValueError(
            "MultiNodeChainList: the results of micro-batches must have an axis of samples, to be "
            "concatenated, but are scalars: compute the loss of the model's output instead"
        )
    return F.concat(outputs, axis=0)
