"""Iterators for several ranks."""

import numpy as np

from mpchain.dataset import Iterator
from mpchain.iterators import OrderSampler
from mpchain.serializers import DictionarySerializer, NpzDeserializer

__all__ = [
    "ShardedIterator",
    "SynchronizedIterator",
    "create_sharded_iterator",
    "create_synchronized_iterator",
]


def create_sharded_iterator(actual_iterator, communicator):
    """Makes an iterator yield this rank's part of each batch.

    The batches are those that one process would see: the order of samples does not depend on the
    number of ranks. Rank 0's order, position and random state count. Each rank takes its contiguous
    part of a batch; where the number of ranks does not divide it, the first ranks have one sample
    more. A part may be empty, but rank 0's is not.

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

    def _choose(self, indices):
        begin, end = part_of(len(indices), self.communicator.rank, self.communicator.size)
        return indices[begin:end]


def part_of(n, index, n_parts):
    """Returns the range of one of the parts into which ``n`` things are divided: the first have one
    more, where the number does not divide them."""
    quotient, remainder = divmod(n, n_parts)
    begin = index * quotient + min(index, remainder)
    return begin, begin + quotient + (index < remainder)


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
