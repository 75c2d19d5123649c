"""The base class of datasets."""

import operator
from typing import Any

import numpy as np

from mpchain.typing import Dataset


class DatasetMixin:
    """Adds indexing in all forms to a dataset that defines ``__len__`` and ``get_example``.

    Example:
        >>> class Squares(mpchain.dataset.DatasetMixin):
        ...     def __len__(self):
        ...         return 10
        ...     def get_example(self, i):
        ...         return i**2
        >>> Squares()[-1], Squares()[2:4], Squares()[[5, 0]]
        (81, [4, 9], [25, 0])

    Attributes:
        has_epochs: whether examples differ from epoch to epoch. If so, iterators read the index ``i
            + epoch * len(self)``, which ``get_example`` gets unchanged.
    """

    has_epochs: Any = False

    def __getitem__(self, index: object) -> Any:
        """Returns one example or a list of examples.

        Args:
            index: an integer (which counts from the end if it is negative), a slice, a list or
                array of integers, or an array with a boolean for each example.

        Raises:
            IndexError: there is no such example.
        """
        if type(index) is int:  # this branch halves the time of the usual case
            return self._example(index)
        if isinstance(index, slice):
            return [self.get_example(i) for i in range(*index.indices(len(self)))]
        if isinstance(index, (list, np.ndarray)) and np.ndim(index):
            return self._examples_at(index)
        return self._example(index)

    def _examples_at(self, index):
        """Returns the examples at a list or array of indices."""
        return [self._example(i) for i in self._as_integers(index)]

    def _example(self, index):
        i = operator.index(index)
        if i >= 0 and type(self).__len__ is DatasetMixin.__len__:
            return self.get_example(i)  # a dataset without a length has no upper bound
        n = len(self)
        if i >= n > 0 and self.has_epochs:
            return self.get_example(i)
        if not -n <= i < n:
            raise IndexError(f"{type(self).__name__}: index {i} is out of range for {n} examples")
        return self.get_example(i + n if i < 0 else i)

    def _as_integers(self, index):
        index = np.asarray(index)
        if index.dtype == bool:
            if index.shape != (len(self),):
                raise IndexError(
                    f"{type(self).__name__}: a boolean index must have shape ({len(self)},), "
                    f"not {index.shape}"
                )
            return np.flatnonzero(index).tolist()
        return index.tolist()

    def __len__(self) -> int:
        """Returns the number of examples."""
        raise NotImplementedError(f"{type(self).__name__} does not implement __len__")

    def get_example(self, i: int) -> Any:
        """Returns the ``i``-th example (0 <= i < len(self), unless :attr:`has_epochs` is set).

        Returns:
            An array, a scalar, or a tuple or dict of these.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement get_example")


def check_least(function: str, least: int = 1, /, **numbers: float | None) -> None:
    """Raises ValueError if one of the numbers is below ``least``; None is accepted.

    Example:
        >>> check_least("MultithreadIterator", n_threads=0)
        Traceback (most recent call last):
        ValueError: MultithreadIterator: n_threads must be at least 1, not 0
    """
    for name, number in numbers.items():
        if number is not None and number < least:
            raise ValueError(f"{function}: {name} must be at least {least}, not {number}")


def read_in_epoch(dataset: Dataset, i: int, epoch: int) -> Any:
    """Returns an example; if the examples of the dataset differ from epoch to epoch, the one of
    ``epoch``.

    >>> read_in_epoch([10, 20], 1, epoch=3)
    20
    """
    if epoch and getattr(dataset, "has_epochs", False):
        i += epoch * len(dataset)
    return dataset[i]
