"""The base class of iterators."""

from typing import Any, Self

from mpchain.observers import observed
from mpchain.serializer import AbstractSerializer


class Iterator:
    """Yields batches, each of which is a list of examples.

    Attributes:
        batch_size (int): number of examples in a full batch.
        epoch (int): number of completed sweeps over the dataset.
        epoch_detail (float): the number of sweeps, with the fraction of the current sweep.
        previous_epoch_detail (float): ``epoch_detail`` before the last batch; None before the
            first batch.
        is_new_epoch (bool): whether the last batch completed a sweep.

    Example:
        >>> iterator = mpchain.iterators.SerialIterator("abcd", 2, repeat=False, shuffle=False)
        >>> [(batch, iterator.epoch_detail) for batch in iterator]
        [(['a', 'b'], 0.5), (['c', 'd'], 1.0)]
    """

    batch_size: int
    epoch: int
    epoch_detail: float
    previous_epoch_detail: float | None
    is_new_epoch: bool

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__next__" in vars(cls):
            cls.__next__ = observed("input", "iterator")(cls.__next__)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Returns the next batch; raises StopIteration if there is none."""
        raise NotImplementedError(f"{type(self).__name__} does not implement __next__")

    def next(self) -> Any:
        """Returns the next batch, as ``__next__`` does."""
        return self.__next__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.finalize()

    def finalize(self) -> None:
        """Releases the iterator's resources (threads, processes); called at the end of training."""

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the position, so that a resumed iterator continues from it."""
