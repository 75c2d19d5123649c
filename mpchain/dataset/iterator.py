"""The base of iterators."""

import abc


class Iterator(abc.ABC):
    """Yields batches, each a list of examples.

    Attributes:
        batch_size (int): number of examples in a batch.
        epoch (int): number of completed sweeps over the dataset.
        epoch_detail (float): the same with the fraction of the present sweep.
        previous_epoch_detail (float): ``epoch_detail`` before the last batch; None before the
            first.
        is_new_epoch (bool): whether the last batch completed a sweep.
    """

    def __iter__(self):
        return self

    @abc.abstractmethod
    def __next__(self):
        """Returns the next batch; raises StopIteration when there is none."""

    def next(self):
        """Returns the next batch."""
        return self.__next__()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.finalize()

    def finalize(self):  # noqa: B027 (most have nothing to release)
        """Releases what the iterator holds (threads, processes); called at the end of training."""

    def serialize(self, serializer):  # noqa: B027 (an iterator may be without state)
        """Saves or restores the position: a resumed iterator goes on where the saved one was."""
