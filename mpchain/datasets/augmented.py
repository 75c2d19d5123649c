"""Random changes of examples, which do not depend on the process that reads them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.dataset import DatasetMixin
from mpchain.typing import Dataset


class AugmentedDataset(DatasetMixin):
    """A dataset that applies a function with random numbers to its examples when they are read.

    The random numbers are a function of the seed, the example's index and the epoch. An example is
    therefore changed in the same way by any number of workers, on any rank, and after a resume, but
    in a different way in each epoch. The iterators of mpchain, :class:`SubDataset`,
    :class:`ConcatenatedDataset`, :class:`TransformDataset` and
    :func:`~mpchain.distributed.scatter_dataset` pass on the epoch: for ``n`` examples, ``dataset[i
    + epoch * n]`` is example ``i`` in that epoch, and ``dataset[i]`` is example ``i`` in epoch 0.

    Args:
        dataset: the dataset.
        transform: function of an example, or of its first element if it is a tuple, and a
            :class:`numpy.random.Generator`; see :mod:`mpchain.datasets.transforms`.
        seed: an integer from 0 to 2**64 - 1, which determines all random numbers.
        whole: whether the function gets the whole tuple, rather than its first element.

    Raises:
        ValueError: the seed is out of range.

    Example:
        >>> noisy = AugmentedDataset(np.zeros(3), lambda x, random: x + random.uniform())
        >>> len({noisy[1], noisy[1], noisy[1 + 3], noisy[2]})
        3
    """

    has_epochs = True

    def __init__(
        self,
        dataset: Dataset,
        transform: Callable[[Any, np.random.Generator], Any],
        seed: int = 0,
        *,
        whole: bool = False,
    ):
        if not 0 <= seed < 2**64:
            raise ValueError(f"AugmentedDataset: seed must be from 0 to 2**64 - 1, not {seed}")
        self._dataset, self._transform, self._whole = dataset, transform, whole
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def get_example(self, i: int) -> Any:
        epoch, i = divmod(i, len(self))
        # The first two words of the counter count the draws for the example.
        philox = np.random.Philox(key=self._seed, counter=[0, 0, i, epoch])
        random = np.random.Generator(philox)
        example = self._dataset[i]
        if self._whole or not isinstance(example, tuple):
            return self._transform(example, random)
        return (self._transform(example[0], random), *example[1:])
