"""Finds the samples of the dataset in each micro-batch."""

from typing import Any

from mpchain.dataset import Iterator
from mpchain.distributed.communicators.arrays import partition
from mpchain.iterators.prefetching import PrefetchingIterator


class Samples:
    """Records the indices of the samples in the batches of an iterator.

    Attributes:
        indices: the indices of the last batch; None if they are unknown.

    Example:
        >>> iterator = mpchain.iterators.SerialIterator("abcd", 2, shuffle=False)
        >>> samples = Samples()
        >>> samples.watch(iterator)
        >>> next(iterator), samples.indices
        (['a', 'b'], [0, 1])
    """

    def __init__(self):
        self.indices: list[int] | None = None
        self._watched = set()

    def watch(self, iterator: Iterator) -> None:
        """Starts to record the indices that an iterator, or the iterator inside it, draws."""
        own: Any = getattr(iterator, "actual_iterator", iterator)
        if id(own) in self._watched or isinstance(own, PrefetchingIterator):
            return
        choose = getattr(own, "next_indices", None)
        if choose is None:
            return
        self._watched.add(id(own))

        def next_indices():
            found = choose()
            self.indices = found.tolist()
            return found

        own.next_indices = next_indices


def parts_of_rank(rank: int, n_ranks: int, n_parts: int) -> range:
    """Returns the indices of the micro-batches that a rank computed.

    >>> parts_of_rank(1, 2, 4)
    range(2, 4)
    """
    return range(rank * n_parts // n_ranks, (rank + 1) * n_parts // n_ranks)


def rows_of_part(part: int, n_parts: int, n_samples: int) -> range:
    """Returns the rows of the whole batch that belong to a micro-batch.

    >>> rows_of_part(1, 3, 10)
    range(4, 7)
    """
    return range(*partition(n_samples, part, n_parts))
