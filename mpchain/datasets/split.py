"""Parts of datasets, in the order of the dataset or (functions ``..._random``) in a random
order."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain.dataset import DatasetMixin
from mpchain.dataset.dataset_mixin import check_least, read_in_epoch
from mpchain.typing import Array, Dataset

_Order = Sequence[int] | Array | None


class SubDataset(DatasetMixin):
    """A contiguous part of a dataset, in its own order or in a permutation.

    Args:
        dataset: the dataset.
        start: the first position.
        finish: the position after the last one.
        order: a permutation of the dataset's indices, to which the positions refer; None means the
            dataset's own order.

    Example:
        >>> SubDataset("abcde", 1, 3)[:], SubDataset("abcde", 0, 2, order=[4, 3, 2, 1, 0])[:]
        (['b', 'c'], ['e', 'd'])
    """

    def __init__(self, dataset: Dataset, start: int, finish: int, order: _Order = None):
        n = len(dataset)
        if not 0 <= start <= finish <= n:
            raise ValueError(
                f"SubDataset: 0 <= start <= finish <= {n} (the dataset's length) must hold, "
                f"but start is {start} and finish is {finish}"
            )
        if order is not None and len(order) != n:
            raise ValueError(
                f"SubDataset: order must have the dataset's length {n}, but has {len(order)}"
            )
        self._dataset = dataset
        self.has_epochs = getattr(dataset, "has_epochs", False)
        # The elements of a list of Python integers can be read faster than the elements of an
        # array.
        self._indices = (
            range(start, finish) if order is None else np.asarray(order)[start:finish].tolist()
        )

    def __len__(self) -> int:
        return len(self._indices)

    def get_example(self, i: int) -> Any:
        if not self.has_epochs:
            return self._dataset[self._indices[i]]
        epoch, i = divmod(i, len(self))
        return read_in_epoch(self._dataset, self._indices[i], epoch)


_Pair = tuple[SubDataset, SubDataset]


def split_dataset(dataset: Dataset, split_at: int, order: _Order = None) -> _Pair:
    """Splits a dataset in two.

    Args:
        dataset: the dataset.
        split_at: number of examples in the first part.
        order: a permutation of the dataset's indices; None means its own order.

    Returns:
        Two :class:`SubDataset`.

    Example:
        >>> first, second = mpchain.datasets.split_dataset("abcde", 3)
        >>> second[:]
        ['d', 'e']
    """
    split_at, n = operator.index(split_at), len(dataset)
    if not 0 <= split_at <= n:
        raise ValueError(
            f"split_dataset: split_at must be between 0 and {n} (the dataset's length), "
            f"not {split_at}"
        )
    return SubDataset(dataset, 0, split_at, order), SubDataset(dataset, split_at, n, order)


def split_dataset_random(dataset: Dataset, first_size: int, seed: int | None = None) -> _Pair:
    """Splits a dataset in two at random.

    Args:
        dataset: the dataset.
        first_size: number of examples in the first part.
        seed: seed of the random order; None draws from NumPy's global state.

    Returns:
        Two :class:`SubDataset`.

    Example:
        >>> first, second = mpchain.datasets.split_dataset_random("abcde", 3, seed=0)
        >>> sorted(first[:] + second[:])
        ['a', 'b', 'c', 'd', 'e']
    """
    return split_dataset(dataset, first_size, _permutation(dataset, seed))


def split_dataset_n(dataset: Dataset, n: int, order: _Order = None) -> list[SubDataset]:
    """Splits a dataset into ``n`` parts of equal size; up to ``n - 1`` examples are left out.

    Args:
        dataset: the dataset.
        n: number of parts.
        order: a permutation of the dataset's indices; None means its own order.

    Returns:
        List of ``n`` :class:`SubDataset`.

    Example:
        >>> [part[:] for part in mpchain.datasets.split_dataset_n("abcde", 2)]
        [['a', 'b'], ['c', 'd']]
    """
    check_least("split_dataset_n", n=n)
    size = len(dataset) // n
    return [SubDataset(dataset, i * size, (i + 1) * size, order) for i in range(n)]


def split_dataset_n_random(dataset: Dataset, n: int, seed: int | None = None) -> list[SubDataset]:
    """Works like :func:`split_dataset_n`, but in random order.

    Args:
        dataset: the dataset.
        n: number of parts.
        seed: seed of the random order; None draws from NumPy's global state.

    Example:
        >>> [len(part) for part in mpchain.datasets.split_dataset_n_random("abcde", 2, seed=0)]
        [2, 2]
    """
    return split_dataset_n(dataset, n, _permutation(dataset, seed))


def get_cross_validation_datasets(
    dataset: Dataset, n_folds: int, order: _Order = None
) -> list[_Pair]:
    """Makes pairs of training and test set such that each example is in exactly one test set.

    Args:
        dataset: the dataset.
        n_folds: number of pairs.
        order: a permutation of the dataset's indices; None means its own order.

    Returns:
        List of ``n_folds`` pairs of :class:`SubDataset`; the sizes of the test sets differ by at
        most one.

    Example:
        >>> for train, test in mpchain.datasets.get_cross_validation_datasets("abc", 3):
        ...     print(train[:], test[:])
        ['a', 'b'] ['c']
        ['c', 'a'] ['b']
        ['b', 'c'] ['a']
    """
    check_least("get_cross_validation_datasets", n_folds=n_folds)
    n = len(dataset)
    order = np.arange(n) if order is None else np.asarray(order)
    ends = [i * n // n_folds for i in range(n_folds + 1)]
    pairs = []
    for start, finish in zip(ends[-2::-1], ends[:0:-1]):
        # In the order that begins right after the test set, the test set comes last.
        pairs.append(split_dataset(dataset, n - (finish - start), np.roll(order, -finish)))
    return pairs


def get_cross_validation_datasets_random(
    dataset: Dataset, n_folds: int, seed: int | None = None
) -> list[_Pair]:
    """Works like :func:`get_cross_validation_datasets`, but in random order.

    Args:
        dataset: the dataset.
        n_folds: number of pairs.
        seed: seed of the random order; None draws from NumPy's global state.

    Example:
        >>> pairs = mpchain.datasets.get_cross_validation_datasets_random("abc", 3, seed=0)
        >>> sorted(test[0] for _, test in pairs)
        ['a', 'b', 'c']
    """
    return get_cross_validation_datasets(dataset, n_folds, _permutation(dataset, seed))


def _permutation(dataset, seed):
    random = np.random if seed is None else np.random.RandomState(seed)
    return random.permutation(len(dataset))
