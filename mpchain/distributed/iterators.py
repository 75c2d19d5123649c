"""Iterators for several ranks."""

from typing import Any

import numpy as np

from mpchain.dataset import Iterator
from mpchain.distributed.communicators import Communicator
from mpchain.iterators import OrderSampler, SerialIterator
from mpchain.iterators.prefetching import PrefetchingIterator
from mpchain.serializer import AbstractSerializer, Deserializer
from mpchain.serializers import DictionarySerializer, NpzDeserializer


class SynchronizedIterator(Iterator):
    """Wraps iterators so that they yield the same samples on all ranks, in rank 0's order.

    For arguments and errors see :func:`create_sharded_iterator`; with this iterator each rank gets
    the whole batch.
    All attributes are read from the wrapped iterator: ``epoch``, ``epoch_detail``, ``is_new_epoch``
    and others are the same on all ranks. Any rank's state can be restored on any number of
    ranks.

    Example:
        >>> from mpchain import distributed, iterators
        >>> batches = iterators.SerialIterator([*range(100)], 3)
        >>> batches = distributed.create_synchronized_iterator(batches, comm)
        >>> len({str(batch) for batch in comm.allgather_obj(next(batches))})
        1
    """

    actual_iterator: Any
    _maker = "create_synchronized_iterator"

    def __init__(self, actual_iterator: SerialIterator, communicator: Communicator):
        if not hasattr(actual_iterator, "next_indices"):
            raise TypeError(
                f"{self._maker}: actual_iterator must be a SerialIterator or an instance of a "
                f"subclass, not {type(actual_iterator).__name__}"
            )
        self.actual_iterator = actual_iterator
        self.communicator = communicator
        self._check_alike()
        if actual_iterator.order_sampler is not None:
            actual_iterator.order_sampler = _SharedOrder(
                actual_iterator.order_sampler, communicator
            )
        self._take_state_of_rank_0()
        self._looks_ahead = isinstance(actual_iterator, PrefetchingIterator)
        # The prefetching iterator receives only this rank's samples.
        if isinstance(actual_iterator, PrefetchingIterator):
            start = actual_iterator.start
            actual_iterator.start = lambda indices: start(self._choose(indices))

    def _check_alike(self):
        iterator = self.actual_iterator
        held = self.communicator.allgather_obj((len(iterator.dataset), iterator.batch_size))
        if len(set(held)) > 1:
            text = ", ".join(f"rank {r}: {n} and {b}" for r, (n, b) in enumerate(held))
            raise ValueError(
                f"{self._maker}: dataset lengths and batch sizes must be the same on all ranks, "
                f"but are {text}"
            )

    def _take_state_of_rank_0(self):
        state = DictionarySerializer()
        self.actual_iterator.serialize(state)
        arrays = self.communicator.bcast_obj(state.target)
        self.actual_iterator.serialize(NpzDeserializer(arrays))

    def __getattr__(self, name: str) -> Any:
        if name == "actual_iterator":  # a copy has no attributes at first
            raise AttributeError(name)
        return getattr(self.actual_iterator, name)

    def __next__(self) -> list[Any]:
        if self._looks_ahead:
            return next(self.actual_iterator)
        return self.actual_iterator.fetch(self._choose(self.actual_iterator.next_indices()))

    def _choose(self, indices):
        """Returns the indices of this rank's samples, given the indices of the batch."""
        return indices

    def finalize(self) -> None:
        self.actual_iterator.finalize()

    def serialize(self, serializer: AbstractSerializer) -> None:
        self.actual_iterator.serialize(serializer)


class ShardedIterator(SynchronizedIterator):
    """Wraps an iterator so that it yields this rank's part of each batch.

    The batches are the same as in one process: the order of samples does not depend on the number
    of ranks. All ranks use rank 0's order, position and random state. Each rank gets its
    contiguous part of a batch. If the parts cannot be equal, the first ranks have one sample
    more, or, with a reproducible communicator, the first micro-shards. A part may be empty,
    except on rank 0.

    Args:
        actual_iterator: a :class:`~mpchain.iterators.SerialIterator`, created with the same
            arguments on all ranks; its ``batch_size`` is the total over all ranks.
        communicator: the communicator of the ranks.

    Raises:
        ValueError: the datasets' lengths or the batch sizes differ between ranks.
        TypeError: the iterator is not derived from SerialIterator.

    Example:
        >>> from mpchain import distributed, iterators
        >>> batches = iterators.SerialIterator([10, 20, 30, 40], 2, shuffle=False)
        >>> sharded = distributed.create_sharded_iterator(batches, comm)
        >>> next(sharded), sharded.mine  # on one rank, all samples
        ([10, 20], slice(0, 2, None))
    """

    _maker = "create_sharded_iterator"

    @property
    def mine(self) -> slice:
        """This rank's samples of the latest batch, as a slice of the batch of all ranks."""
        return slice(*self.communicator.share_of(self.n_samples))

    @property
    def n_samples(self) -> int:
        """The number of samples of all ranks in the latest batch."""
        iterator = self.actual_iterator
        n = iterator.batch_size
        if iterator.is_new_epoch and not iterator.repeat:
            n = len(iterator.dataset)
            n -= round(iterator.previous_epoch_detail * n)
        return n

    @property
    def is_divided_evenly(self) -> bool:
        """Whether ``communicator.share_of`` divides the batches."""
        return type(self)._choose is ShardedIterator._choose

    def _choose(self, indices):
        begin, end = self.communicator.share_of(len(indices))
        return indices[begin:end]


class _SharedOrder(OrderSampler):
    """An order sampler that returns the order of rank 0's sampler on all ranks."""

    def __init__(self, sampler, comm):
        self._sampler, self._comm = sampler, comm

    def __call__(self, current_order, current_position):
        order = np.asarray(self._sampler(current_order, current_position), np.int64)
        return self._comm.bcast(order)

    def serialize(self, serializer: AbstractSerializer) -> None:
        if hasattr(self._sampler, "serialize"):
            self._sampler.serialize(serializer)


_POSITION = ("epoch", "epoch_detail", "previous_epoch_detail", "is_new_epoch", "batch_size")


class MultiNodeIterator(Iterator):
    """Yields the master's batches on all ranks. Only the master reads the data.

    Args:
        actual_iterator: the master's iterator, whose batches must be picklable; it is ignored on
            other ranks, which may pass None.
        communicator: the communicator of the ranks.
        rank_master: the rank of the master.

    The position (``epoch``, ``epoch_detail``, ...) is the master's position on all ranks. The
    master saves the state, and all ranks restore it.

    Example:
        >>> from mpchain import distributed, iterators
        >>> batches = iterators.SerialIterator([1, 2], 2, shuffle=False) if comm.rank == 0 else None
        >>> next(distributed.create_multi_node_iterator(batches, comm))
        [1, 2]
    """

    actual_iterator: Any

    def __init__(
        self, actual_iterator: Iterator | None, communicator: Communicator, rank_master: int = 0
    ):
        communicator.check_rank("create_multi_node_iterator", "rank_master", rank_master)
        self.communicator = communicator
        self.rank_master = rank_master
        self.is_master = communicator.rank == rank_master
        communicator.refuse_to_lose_ranks(
            self, "one rank reads the data of all ranks (MultiNodeIterator)"
        )
        self.actual_iterator = actual_iterator if self.is_master else None
        self._take_position(self._from_master(self._position))

    def _from_master(self, function):
        """Calls a function on the master, and returns its result on all ranks."""
        obj = function() if self.is_master else None
        return self.communicator.bcast_obj(obj, root=self.rank_master)

    def _position(self):
        return {name: getattr(self.actual_iterator, name, None) for name in _POSITION}

    def _take_position(self, position):
        vars(self).update(position)

    def _read(self):
        """Returns the next batch, or None at the end, and the position after the batch."""
        return next(self.actual_iterator, None), self._position()

    def __next__(self) -> list[Any]:
        batch, position = self._from_master(self._read)
        self._take_position(position)
        if batch is None:
            raise StopIteration
        return batch

    def reset(self) -> None:
        """Returns to the start of the first epoch; all ranks must call it."""
        if self.is_master:
            self.actual_iterator.reset()
        self._take_position(self._from_master(self._position))

    def finalize(self) -> None:
        if self.is_master:
            self.actual_iterator.finalize()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves the state on the master, or restores it on all ranks from the master's file."""
        if self.is_master:
            self.actual_iterator.serialize(serializer)
        elif not isinstance(serializer, Deserializer):
            raise RuntimeError(
                f"MultiNodeIterator.serialize: rank {self.communicator.rank} has no state to save: "
                f"save it on rank {self.rank_master}, which reads the data"
            )
        if isinstance(serializer, Deserializer):
            self._take_position(self._from_master(self._position))


class JoinedIterator(Iterator):
    """Makes epochs of equal length on all ranks, whose own datasets have different lengths.

    Each rank gets all of its own samples once an epoch. A rank that has no batch left gets empty
    batches until all ranks are done. Updaters and evaluators weight ranks by their numbers of
    samples, so that empty batches have no weight.

    Args:
        actual_iterator: this rank's iterator, with ``dataset``, ``batch_size`` and ``reset()``,
            created with ``repeat=False``.
        communicator: the communicator of the ranks.
        repeat: whether to continue after the first epoch.

    Raises:
        ValueError: the iterator repeats its data, or no rank has data to repeat.

    ``epoch``, ``epoch_detail`` and the other attributes of a position are the same on all ranks,
    and count batches. Each rank must save its own state.

    Attributes:
        n_batches: number of batches in an epoch.

    Example:
        >>> from mpchain import distributed, iterators
        >>> batches = iterators.SerialIterator([1, 2, 3], 2, repeat=False, shuffle=False)
        >>> [*distributed.create_joined_iterator(batches, comm, repeat=False)]
        [[1, 2], [3]]
    """

    actual_iterator: Any

    def __init__(self, actual_iterator: Iterator, communicator: Communicator, repeat: bool = True):
        if getattr(actual_iterator, "repeat", False):
            raise ValueError(
                "create_joined_iterator: actual_iterator must be made with repeat=False"
            )
        self.actual_iterator = actual_iterator
        self.communicator = communicator
        communicator.refuse_to_lose_ranks(self, "each rank has its own data (JoinedIterator)")
        self.repeat = repeat
        own = self.actual_iterator
        n = -(-len(own.dataset) // own.batch_size)
        self.n_batches = max(communicator.allgather_obj(n))
        if repeat and self.n_batches == 0:
            raise ValueError(
                "create_joined_iterator: no rank has samples, but repeat=True needs at least one"
            )
        self._n_done = 0

    @property
    def dataset(self) -> Any:
        """This rank's dataset."""
        return self.actual_iterator.dataset

    @property
    def batch_size(self) -> int:
        """Number of samples in this rank's batches, except in the last batches of an epoch."""
        return self.actual_iterator.batch_size

    @property
    def epoch(self) -> int:
        """The number of complete epochs."""
        return self._n_done // max(self.n_batches, 1)

    @property
    def epoch_detail(self) -> float:
        """The number of complete epochs, plus the fraction of the current epoch."""
        return self._n_done / max(self.n_batches, 1)

    @property
    def previous_epoch_detail(self) -> float | None:
        """:attr:`epoch_detail` before the latest batch; None before the first batch."""
        return (self._n_done - 1) / self.n_batches if self._n_done else None

    @property
    def is_new_epoch(self) -> bool:
        """Whether the latest batch was the last batch of an epoch on all ranks."""
        return self._n_done > 0 and self._n_done % self.n_batches == 0

    def __next__(self) -> list[Any]:
        if self.is_new_epoch or self.n_batches == 0:
            if not self.repeat:
                raise StopIteration
            self.actual_iterator.reset()
        self._n_done += 1
        return next(self.actual_iterator, [])

    def reset(self) -> None:
        """Returns to the start of the first epoch."""
        self.actual_iterator.reset()
        self._n_done = 0

    def finalize(self) -> None:
        self.actual_iterator.finalize()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the position and this rank's iterator."""
        self._n_done = serializer("n_done", self._n_done)
        self.actual_iterator.serialize(serializer["actual_iterator"])


create_sharded_iterator = ShardedIterator
create_synchronized_iterator = SynchronizedIterator
create_multi_node_iterator = MultiNodeIterator
create_joined_iterator = JoinedIterator
