"""The steps of a multi-node optimizer, which combine the ranks' parts of a batch."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.arrays import partition
from mpchain.distributed.gradients.control import Control
from mpchain.distributed.gradients.reducer import Reducer
from mpchain.distributed.optimizers.counts import Counts
from mpchain.distributed.optimizers.draws import SampleDraws
from mpchain.link import Link
from mpchain.observers import span
from mpchain.serializer import AbstractSerializer, Deserializer, MissingKeyError
from mpchain.variable import Variable, as_array

Parts = Sequence[tuple[float | None, Callable[[], Any] | None]]


class Step:
    """The current step, or the latest step between updates. Its phases are::

        parts, rows = step.number(parts, t, weights)  # random draws now depend on the sample
        parts = step.begin(parts, rows, weights)  # this rank's share of the batch is now known
        with step.counts.in_use():
            ...  # compute losses and gradients, which go to step.active_reducer
        step.end_losses()
        n_total = step.finish(sums, draws=False)  # gradients are means over all ranks

    If gradients are not summed over the ranks (:attr:`exchanges`), :meth:`accumulate` is the last
    phase.

    Args:
        comm: the communicator of the ranks.
        reducer: the object that averages the gradients.
        are_of_batch: see :class:`Counts`.

    Attributes:
        reducer: the object that averages gradients.
        draws: the object that assigns random draws to samples.
        counts: the counts of the whole batch.
        rank_states: attributes of links with a row for each of this rank's samples.
        active_reducer: the reducer of this step; it leaves gradients unchanged if they are not
            summed over the ranks.
        exchanges: whether gradients are summed over the ranks.
        skips: whether the step changes no parameter.
        n_accumulated: the number of this rank's samples whose mean gradients wait for the next
            step.

    Example:
        >>> step = Step(comm, Reducer(comm))
        >>> parts, rows = step.number([(2, lambda: print("loss"))], t=0)
        >>> ((n, compute_loss),) = step.begin(parts, rows)
        >>> compute_loss(), step.end_losses(), step.finish()
        loss
        (None, None, 2)
    """

    def __init__(self, comm: Communicator, reducer: Reducer, are_of_batch: bool = True):
        self._comm, self.reducer = comm, reducer
        self._local = Reducer(Communicator())
        self.active_reducer = reducer
        self.draws, self.counts = SampleDraws(comm), Counts(comm, are_of_batch)
        self.rank_states = RankStates(comm)
        self.exchanges, self.skips = True, False
        self._n_total = self._n_weighted = None
        self.drop_accumulated()

    def drop_accumulated(self) -> None:
        """Forgets the samples whose gradients wait for the next step."""
        self.n_accumulated: float = 0
        self._n_all_accumulated: float | None = 0  # the count over all ranks; None if unknown

    def fit_to_ranks(self) -> None:
        """Discards the current step, after the communicator has lost ranks."""
        self.drop_accumulated()
        self.reducer = self.reducer.renewed()
        self.draws.reset()
        self.counts.reset()

    def number(
        self, parts: Parts, t: int, weights: Sequence[float] | None = None
    ) -> tuple[Parts, list[float]]:
        """Makes the random draws of the parts' losses depend on the sample.

        Args:
            parts: pairs of a number of samples, or None if it is unknown, and a loss function.
            t: the number of previous steps.
            weights: the weights of the parts, if they are not numbers of samples.

        Returns:
            The parts, at least one, and the number of samples of each part; if a part's number is
            unknown, the rank's number of samples.
        """
        numbered: Parts = self.draws.numbered(parts, t, weights) or [(0, None)]
        return numbered, [self.draws.n_own if n is None else n for n, _ in numbered]

    def begin(
        self,
        parts: Parts,
        rows: Sequence[float],
        weights: Sequence[float] | None = None,
        *,
        in_graph: bool = False,
    ) -> Parts:
        """Begins the sums over the ranks: passes this rank's share to the reducer and the counts.

        Args:
            parts, rows: the results of :meth:`number`.
            weights: the weights of the parts, if they are not numbers of samples.
            in_graph: whether a GPU's graph holds the sums of gradients.

        Returns:
            The parts, with loss functions that use the counts of the batch.
        """
        n_all, n_empty = self._comm.divided[1:3]
        if weights is not None:
            parts = [(w, compute_loss) for w, (_, compute_loss) in zip(weights, parts, strict=True)]
        self._n_weighted, self.skips = None if weights is None else n_all or 0, False
        n = math.fsum(weights) if weights is not None else _sum([n for n, _ in parts])
        is_empty, is_accumulated = n == 0, self.n_accumulated > 0
        if is_accumulated:
            n = self.n_accumulated + (1 if n is None else n)
        before = self._n_all_accumulated
        self._n, self._n_total = n, None
        if weights is None and n_all is not None and before is not None:
            self._n_total = before + n_all
        self.active_reducer = self.reducer if self.exchanges else self._local
        begin = self.active_reducer.begin_launch if in_graph else self.active_reducer.begin
        with span("gradients", "begin the exchange"):
            begin(
                n,
                n_total=self._n_total if self.exchanges else None,
                n_empty=n_empty if weights is None else None,
                is_empty=is_empty,
                losses_are_weighted=True,
            )
        self._rows = rows
        known = self.exchanges, is_accumulated, self._n_weighted
        return self.counts.begin(self.active_reducer, parts, rows, *known)

    def check(self, counts: Sequence[float | None], joint_link: str | None) -> None:
        """Checks the number of parts of this rank. If a link computes with all ranks together, also
        compares the ranks' numbers of parts that have samples.

        Args:
            counts: the number of samples of each part.
            joint_link: the name of the link that computes with all ranks; None if there is none.

        Raises:
            RuntimeError: a reproducible communicator needs another number of parts, or an exchange
                of gradients.
            ValueError: the link cannot compute, because ranks have different numbers of parts, or
                no samples; raised on all ranks.
        """
        n_parts = self.reducer.parts_per_batch
        if n_parts is not None and (len(counts) != n_parts or not self.exchanges):
            raise RuntimeError(
                "MultiNodeOptimizer.update_in_parts: a reproducible communicator needs one part "
                f"for each micro-shard, {n_parts} on each rank, but got "
                f"{len(counts) if self.exchanges else 'no_sync, which it cannot use'}: let update "
                "cut the batch, or use MultiNodeUpdater"
            )
        if joint_link is None:
            return
        n_own = sum(n != 0 for n in counts)
        are_equal, n_idle = Control.of(self._comm).compare(n_own)
        if are_equal and not (n_idle and self.exchanges):
            return
        held = self._comm.allgather_obj(n_own)
        where = f"MultiNodeOptimizer.update: {joint_link} computes with all ranks together"
        if 0 in held and self.exchanges:
            raise ValueError(
                f"{where}, but {held.count(0)} of {len(held)} ranks have no samples: use larger "
                "batches or fewer ranks"
            )
        raise ValueError(
            f"{where}, but the ranks have {held} parts of the batch: accumulate "
            "over fewer parts, or use larger batches"
        )

    def begin_with_gradients(self, n: float | None) -> None:
        """Begins a step of ``n`` samples whose gradients exist already."""
        weight = self._comm.divided.weight
        self._n_weighted, self.skips = None if weight is None else 0, False
        with span("gradients", "begin the exchange"):
            self.reducer.begin(self.n_accumulated or (n if weight is None else weight))

    def own_weight(self) -> float:
        """Returns this rank's share of the batch in a step of one part."""
        return self.active_reducer.weight(self._n)

    def ready(self, param: Variable) -> None:
        """Passes a final gradient to the reducer."""
        if self.counts.is_sparse():
            self.active_reducer.take(param)
        else:
            self.active_reducer.ready(param)

    def accumulate(self) -> None:
        """Ends a step whose gradients wait for the next step."""
        self.n_accumulated = 1 if self._n is None else self._n
        self._n_all_accumulated = self._n_total

    def end_losses(self) -> None:
        """Ends the sums of counts, after the losses have been computed."""
        self.counts.end()
        self.drop_accumulated()

    def finish(self, sums: Sequence[Any] = (), *, draws: bool = False) -> float:
        """Averages the gradients over the ranks.

        Args:
            sums: sums of reported values, see :class:`ControlMessage`.
            draws: whether the ranks compare their random states.

        Returns:
            The number of samples on all ranks over which the gradients are means; 0 if there are no
            gradients to update parameters with.
        """
        self.reducer.message.put(sums, draws=draws)
        # With double buffering, ``finish`` returns the number of samples of the previous step.
        n_samples = self.reducer.n_samples()
        with span("gradients", "finish the exchange"):
            n_total = self.reducer.finish()
        self._end(n_samples)
        return 0 if self.skips else n_total

    def finish_launch(self, sums: Sequence[Any], presence: Sequence[bool], n: int) -> None:
        """Sends the message of :meth:`finish` in a step whose gradients a GPU's graph sums.

        Args:
            sums: see :meth:`finish`.
            presence: the result of the reducer's ``sum_in_graph``.
            n: this rank's number of samples.
        """
        self.reducer.message.put(sums)
        self.draws.count(n)
        n_total = self.reducer.tell(presence)
        self.counts.end()
        self._end(n_total)

    def _end(self, n_total):
        """Records the number of samples on all ranks; ``n_total`` is the sum of the weights."""
        n_samples = n_total if self._n_weighted is None else self._n_weighted
        if self.reducer.parts_per_batch and n_samples:
            self._check_shards(int(n_samples))
        self.rank_states.n_samples = n_samples
        self.draws.finish(n_samples)

    def _check_shards(self, n_total):
        """Lets rank 0 warn if the micro-shards differ from the micro-shards of a single process."""
        comm = self._comm
        shards = [partition(n_total, i, comm.micro_shards) for i in comm.own_shards]
        if list(self._rows) != [end - begin for begin, end in shards]:
            Control.of(comm).tell(
                "MultiNodeOptimizer.update",
                f"the ranks do not divide a batch of {n_total} samples as a reproducible "
                "communicator does, so that bits depend on their number: divide the batch by "
                "comm.batch(n), or by create_sharded_iterator and MultiNodeUpdater",
            )


def _sum(numbers):
    return numbers[0] if len(numbers) == 1 else sum(numbers)


class RankStates:
    """Attributes of links that hold one row for each of this rank's samples.

    Args:
        comm: the communicator of the ranks.

    Attributes:
        n_samples: the number of samples on all ranks in the last step.
    """

    def __init__(self, comm: Communicator):
        self._comm, self._places = comm, {}
        self.n_samples = 0

    def add(self, link: Link, names: Sequence[str], model: Link | None) -> None:
        """Adds attributes of a link of the model.

        Raises:
            AttributeError: the link has no such attribute.
            ValueError: the link is not in the model.
        """
        paths = {} if model is None else {id(part): path for path, part in model.namedlinks()}
        if id(link) not in paths:
            raise ValueError(
                f"MultiNodeOptimizer.add_rank_state: link must be in the optimizer's model, but "
                f"this {type(link).__name__} is not; call setup with the model first"
            )
        for name in names:
            getattr(link, name)
            self._places[f"{paths[id(link)]}/{name}".strip("/")] = link, name

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves this rank's rows as parts of whole arrays; restores the rows of this rank's
        share."""
        for path, (link, name) in self._places.items():
            if isinstance(serializer, Deserializer):
                self._restore(serializer, path, link, name)
            else:
                self._save(serializer, path, getattr(link, name))

    def _restore(self, serializer, path, link, name):
        try:
            whole = serializer(path, None)
        except MissingKeyError:
            return
        if not serializer.restores:
            return
        if whole is not None:
            self.n_samples = len(whole)
            begin, end = self._comm.share_of(self.n_samples)
            whole = Variable(link.device.send(whole[begin:end].copy()))
        setattr(link, name, whole)

    def _save(self, serializer, path, value):
        begin, end = self._comm.share_of(self.n_samples)
        if value is None or not serializer.takes_parts or self._comm.size == 1:
            serializer(path, value)
            return
        if len(value) != end - begin:
            raise ValueError(
                f"MultiNodeOptimizer.add_rank_state: {path} must have a row for each of this "
                f"rank's {end - begin} samples of the last batch, but has {len(value)}"
            )
        array = as_array(value)
        n_per_row = math.prod(array.shape[1:])
        shape = (self.n_samples, *array.shape[1:])
        serializer.part(path, array.reshape(-1), begin * n_per_row, shape)
