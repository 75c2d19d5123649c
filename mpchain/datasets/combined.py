"""Datasets that are made of other datasets: side by side, one after another, or transformed."""

import bisect
import itertools
from collections.abc import Callable
from typing import Any

from mpchain.dataset import DatasetMixin
from mpchain.dataset.convert import is_array
from mpchain.dataset.dataset_mixin import read_in_epoch
from mpchain.typing import Dataset


class _SideBySide(DatasetMixin):
    """Base of datasets that hold several datasets of one length, side by side."""

    def _column(self, dataset, index):
        if isinstance(dataset, DatasetMixin) or is_array(dataset):
            return dataset[index]
        return [dataset[i] for i in self._as_integers(index)]


class TupleDataset(_SideBySide):
    """Datasets side by side; an example is the tuple of their examples.

    A slice selects a list of examples. A list or array of indices selects a tuple of columns, as in
    Chainer: ``x[indices]`` for an array or :class:`~mpchain.dataset.DatasetMixin` ``x``, and a list
    for any other dataset.

        >>> x, t = TupleDataset(np.eye(3), np.arange(3))[[2, 0]]
        >>> t
        array([2, 0])

    Args:
        datasets: datasets (arrays, lists, ...) of one length.
    """

    def __init__(self, *datasets: Dataset):
        _check_lengths(
            "TupleDataset", {f"dataset {i}": dataset for i, dataset in enumerate(datasets)}
        )
        self._datasets = datasets

    def __len__(self) -> int:
        return len(self._datasets[0])

    def get_example(self, i: int) -> tuple:
        return tuple([dataset[i] for dataset in self._datasets])

    def _examples_at(self, index):
        return tuple([self._column(dataset, index) for dataset in self._datasets])


class DictDataset(_SideBySide):
    """Datasets side by side; an example is the dict of their examples.

    A slice selects a list of examples, a list or array of indices a dict of columns, as in
    :class:`TupleDataset`.

    Args:
        datasets: datasets (arrays, lists, ...) of one length, passed by key.

    Example:
        >>> dataset = DictDataset(x=np.eye(3), t=[5, 6, 7])
        >>> dataset[0]
        {'x': array([1., 0., 0.]), 't': 5}
        >>> dataset[[2, 0]]["t"]
        [7, 5]
    """

    def __init__(self, **datasets: Dataset):
        _check_lengths("DictDataset", datasets)
        self._datasets = datasets

    def __len__(self) -> int:
        return len(next(iter(self._datasets.values())))

    def get_example(self, i: int) -> dict[str, Any]:
        return {key: dataset[i] for key, dataset in self._datasets.items()}

    def _examples_at(self, index):
        return {key: self._column(dataset, index) for key, dataset in self._datasets.items()}


def _check_lengths(kind, datasets):
    if not datasets:
        raise ValueError(f"{kind}: pass at least one dataset")
    lengths = {name: len(dataset) for name, dataset in datasets.items()}
    if len(set(lengths.values())) > 1:
        listing = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"{kind}: datasets must have one length, but {listing}")
    for name, dataset in datasets.items():
        if getattr(dataset, "has_epochs", False):
            raise ValueError(
                f"{kind}: the examples of {name} differ from epoch to epoch, but this dataset does "
                f"not pass on the epoch: make the {kind} first, and an AugmentedDataset of it"
            )


class ConcatenatedDataset(DatasetMixin):
    """Datasets one after another, as one dataset.

    Args:
        datasets: datasets (arrays, lists, ...).

    Example:
        >>> ConcatenatedDataset([0, 1], [2])[:]
        [0, 1, 2]
    """

    def __init__(self, *datasets: Dataset):
        self._datasets = datasets
        self._ends = list(itertools.accumulate(map(len, datasets)))
        self.has_epochs = any(getattr(dataset, "has_epochs", False) for dataset in datasets)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def get_example(self, i: int) -> Any:
        epoch, i = divmod(i, len(self)) if self.has_epochs else (0, i)
        which = bisect.bisect_right(self._ends, i)
        start = self._ends[which - 1] if which else 0
        return read_in_epoch(self._datasets[which], i - start, epoch)


class TransformDataset(DatasetMixin):
    """A dataset that applies a function to its examples when they are read.

    Args:
        dataset: the dataset.
        transform: function of one example.

    Example:
        >>> TransformDataset([1, 2, 3], lambda x: x * 10)[1:]
        [20, 30]
    """

    def __init__(self, dataset: Dataset, transform: Callable):
        self._dataset = dataset
        self._transform = transform
        self.has_epochs = getattr(dataset, "has_epochs", False)

    def __len__(self) -> int:
        return len(self._dataset)

    def get_example(self, i: int) -> Any:
        return self._transform(self._dataset[i])
