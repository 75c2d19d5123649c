"""Iterators for several ranks."""

import numpy as np

from mpchain.dataset import Iterator
from mpchain.iterators import OrderSampler
from mpchain.iterators.prefetching import PrefetchingIterator
from mpchain.serializer import Deserializer
from mpchain.serializers import DictionarySerializer, NpzDeserializer


def create_sharded_iterator(actual_iterator, communicator):
    """Makes an iterator yield this rank's part of each batch.

    The batches are those that one process would see: the order of samples does not depend on the
    number of ranks. Rank 0's order, position and random state count. Each rank takes its contiguous
    part of a batch; where the number of ranks does not divide it, the first ranks have one sample
    more, or, with a reproducible communicator, its micro-shards are the larger ones. A part may be
    empty, but rank 0's is not.

    Args:
        actual_iterator (SerialIterator): made alike on all ranks; its ``batch_size`` is that of
            all ranks together.
        communicator (Communicator): the ranks.

    Returns:
        ShardedIterator

    Raises:
        ValueError: the datasets' lengths or the batch sizes differ between ranks.
        TypeError: the iterator cannot tell which samples come next.
    """
    return ShardedIterator(actual_iterator, communicator, "create_sharded_iterator")


def create_synchronized_iterator(actual_iterator, communicator):
    """Makes iterators yield the same samples on all ranks, in rank 0's order.

    Args and errors: see :func:`create_sharded_iterator`; here each rank gets the whole batch.

    Returns:
        SynchronizedIterator
    """
    return SynchronizedIterator(actual_iterator, communicator, "create_synchronized_iterator")


def create_multi_node_iterator(actual_iterator, communicator, rank_master=0):
    """Makes an iterator yield the master's batches on all ranks, where it alone reads the data.

    Args:
        actual_iterator (Iterator): the master's; what other ranks give is not used, and may be
            None. Its batches must be picklable.
        communicator (Communicator): the ranks.
        rank_master (int): the master.

    Returns:
        MultiNodeIterator
    """
    return MultiNodeIterator(actual_iterator, communicator, rank_master)


def create_joined_iterator(actual_iterator, communicator, repeat=True):
    """Makes epochs of the same number of batches out of the ranks' own data, of whatever length.

    Each rank has all of its own samples once an epoch. One that has no batch left gets an empty one
    until all are done; with the numbers of samples as weights, as updaters and evaluators use them,
    it so takes part without having a say.

    Args:
        actual_iterator (Iterator): this rank's, with ``dataset``, ``batch_size`` and ``reset()``,
            and made with ``repeat=False``.
        communicator (Communicator): the ranks.
        repeat (bool): whether to go on after the first epoch.

    Returns:
        JoinedIterator

    Raises:
        ValueError: the iterator repeats its data without end.
    """
    return JoinedIterator(actual_iterator, communicator, repeat)


class SynchronizedIterator(Iterator):
    """What :func:`create_synchronized_iterator` returns.

    All attributes are the wrapped iterator's: ``epoch``, ``epoch_detail``, ``is_new_epoch`` and the
    others are the same on all ranks. What any rank saves can be restored on any number of ranks.
    """

    def __init__(self, actual_iterator, communicator, maker):
        if not hasattr(actual_iterator, "_next_indices"):
            raise TypeError(
                f"{maker}: actual_iterator must be a SerialIterator or derive from it, "
                f"not {type(actual_iterator).__name__}"
            )
        self.actual_iterator = actual_iterator
        self.communicator = communicator
        self._check_alike(maker)
        if actual_iterator.order_sampler is not None:
            actual_iterator.order_sampler = _SharedOrder(
                actual_iterator.order_sampler, communicator
            )
        self._take_state_of_rank_0()
        self._looks_ahead = isinstance(actual_iterator, PrefetchingIterator)
        if self._looks_ahead:  # what it asks for is to be this rank's samples only
            start = actual_iterator._start
            actual_iterator._start = lambda indices: start(self._choose(indices))

    def _check_alike(self, maker):
        iterator = self.actual_iterator
        held = self.communicator.allgather_obj((len(iterator.dataset), iterator.batch_size))
        if len(set(held)) > 1:
            text = ", ".join(f"rank {r}: {n} and {b}" for r, (n, b) in enumerate(held))
            raise ValueError(
                f"{maker}: dataset lengths and batch sizes must be the same on all ranks, "
                f"but are {text}"
            )

    def _take_state_of_rank_0(self):
        state = DictionarySerializer()
        self.actual_iterator.serialize(state)
        arrays = self.communicator.bcast_obj(state.target)
        self.actual_iterator.serialize(NpzDeserializer(arrays))

    def __getattr__(self, name):
        if name == "actual_iterator":  # being copied: there is nothing to ask yet
            raise AttributeError(name)
        return getattr(self.actual_iterator, name)

    def __next__(self):
        if self._looks_ahead:
            return next(self.actual_iterator)
        return self.actual_iterator._fetch(self._choose(self.actual_iterator._next_indices()))

    def _choose(self, indices):
        """Returns which of a batch's samples this rank gets."""
        return indices

    def finalize(self):
        self.actual_iterator.finalize()

    def serialize(self, serializer):
        self.actual_iterator.serialize(serializer)


class ShardedIterator(SynchronizedIterator):
    """What :func:`create_sharded_iterator` returns: all ranks' batches together are the whole."""

    @property
    def mine(self):
        """This rank's samples of the latest batch, as a slice of the batch of all ranks."""
        iterator = self.actual_iterator
        n = iterator.batch_size
        if iterator.is_new_epoch and not iterator.repeat:
            n = len(iterator.dataset)
            n -= round(iterator.previous_epoch_detail * n)
        return slice(*self.communicator.share_of(n))

    def _choose(self, indices):
        begin, end = self.communicator.share_of(len(indices))
        return indices[begin:end]


class _SharedOrder(OrderSampler):
    """Lets all ranks use the order that rank 0's sampler returns."""

    def __init__(self, sampler, comm):
        self._sampler, self._comm = sampler, comm

    def __call__(self, current_order, current_position):
        order = np.asarray(self._sampler(current_order, current_position), np.int64)
        return self._comm.bcast(order)

    def serialize(self, serializer):
        if hasattr(self._sampler, "serialize"):
            self._sampler.serialize(serializer)


_POSITION = ("epoch", "epoch_detail", "previous_epoch_detail", "is_new_epoch", "batch_size")


class MultiNodeIterator(Iterator):
    """What :func:`create_multi_node_iterator` returns.

    Its position (``epoch``, ``epoch_detail``, ...) is the master's on all ranks. The master saves
    the state; what it has saved is restored by all ranks.
    """

    def __init__(self, actual_iterator, communicator, rank_master):
        communicator._check_rank("create_multi_node_iterator", "rank_master", rank_master)
        self.communicator = communicator
        self.rank_master = rank_master
        self.is_master = communicator.rank == rank_master
        self.actual_iterator = actual_iterator if self.is_master else None
        self._take_position(self._from_master(self._position))

    def _from_master(self, function):
        """Returns on all ranks what the function returns on the master."""
        obj = function() if self.is_master else None
        return self.communicator.bcast_obj(obj, root=self.rank_master)

    def _position(self):
        return {name: getattr(self.actual_iterator, name, None) for name in _POSITION}

    def _take_position(self, position):
        vars(self).update(position)

    def _read(self):
        """Returns the next batch, None at the end, and the position after it."""
        return next(self.actual_iterator, None), self._position()

    def __next__(self):
        batch, position = self._from_master(self._read)
        self._take_position(position)
        if batch is None:
            raise StopIteration
        return batch

    def reset(self):
        """Goes back to the start of the first epoch; to be called on all ranks."""
        if self.is_master:
            self.actual_iterator.reset()
        self._take_position(self._from_master(self._position))

    def finalize(self):
        if self.is_master:
            self.actual_iterator.finalize()

    def serialize(self, serializer):
        """Saves the state, on the master, or restores it: on all ranks, from the master's file."""
        if self.is_master:
            self.actual_iterator.serialize(serializer)
        elif not isinstance(serializer, Deserializer):
            raise RuntimeError(
                f"MultiNodeIterator.serialize: rank {self.rank_master}, which reads the data, must "
                f"save its state, not rank {self.communicator.rank}"
            )
        if isinstance(serializer, Deserializer):
            self._take_position(self._from_master(self._position))


class JoinedIterator(Iterator):
    """What :func:`create_joined_iterator` returns.

    ``epoch``, ``epoch_detail`` and the others are the same on all ranks, and count batches. The
    state is each rank's own: it must be saved on each.

    Attributes:
        n_batches (int): number of batches in an epoch.
    """

    def __init__(self, actual_iterator, communicator, repeat):
        if getattr(actual_iterator, "repeat", False):
            raise ValueError(
                "create_joined_iterator: actual_iterator must be made with repeat=False"
            )
        self.actual_iterator = actual_iterator
        self.communicator = communicator
        self.repeat = repeat
        n = -(-len(actual_iterator.dataset) // actual_iterator.batch_size)
        self.n_batches = max(communicator.allgather_obj(n))
        self._n_done = 0

    @property
    def dataset(self):
        """This rank's data."""
        return self.actual_iterator.dataset

    @property
    def batch_size(self):
        """Number of samples in this rank's batches, the last ones of an epoch excepted."""
        return self.actual_iterator.batch_size

    @property
    def epoch(self):
        """Number of epochs done."""
        return self._n_done // self.n_batches

    @property
    def epoch_detail(self):
        """Number of epochs done, with the fraction of the current one."""
        return self._n_done / self.n_batches

    @property
    def previous_epoch_detail(self):
        """:attr:`epoch_detail` before the latest batch; None before the first."""
        return (self._n_done - 1) / self.n_batches if self._n_done else None

    @property
    def is_new_epoch(self):
        """Whether the latest batch was the last one of an epoch, for all ranks."""
        return self._n_done > 0 and self._n_done % self.n_batches == 0

    def __next__(self):
        if self.is_new_epoch:
            if not self.repeat:
                raise StopIteration
            self.actual_iterator.reset()
        self._n_done += 1
        return next(self.actual_iterator, [])

    def reset(self):
        """Goes back to the start of the first epoch."""
        self.actual_iterator.reset()
        self._n_done = 0

    def finalize(self):
        self.actual_iterator.finalize()

    def serialize(self, serializer):
        """Saves or restores the position and this rank's iterator."""
        self._n_done = serializer("n_done", self._n_done)
        self.actual_iterator.serialize(serializer["actual_iterator"])
