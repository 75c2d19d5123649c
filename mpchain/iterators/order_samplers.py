"""Functions that choose the order in which an epoch visits the examples."""

import abc
import json
from collections.abc import Sequence

import numpy as np

from mpchain.dataset.dataset_mixin import check_least
from mpchain.serializer import AbstractSerializer
from mpchain.serializers.generators import check_generator_state
from mpchain.typing import Array


class OrderSampler(abc.ABC):
    """A function that iterators call at the start of each epoch for the order of its examples.

    Example:
        >>> class Backwards(OrderSampler):
        ...     def __call__(self, current_order, current_position):
        ...         return np.sort(current_order)[::-1]
        >>> mpchain.iterators.SerialIterator("abc", 2, order_sampler=Backwards()).next()
        ['c', 'b']
    """

    @abc.abstractmethod
    def __call__(self, current_order: Array, current_position: int) -> Array:
        """Returns the order of the next epoch.

        Args:
            current_order: indices of the examples in the order of the epoch that ends; 0, 1, ..., n
                - 1 before the first epoch.
            current_position: number of examples that were visited in the epoch.

        Returns:
            An array of at least one index.
        """

    def serialize(self, serializer: AbstractSerializer) -> None:  # noqa: B027 (a sampler may be without state)
        """Saves or restores the state that determines later orders."""


class ShuffleOrderSampler(OrderSampler):
    """Returns a random permutation for each epoch.

    Args:
        random_state: the source of the permutations, which is saved with the iterator. None means
            NumPy's global state, with which the orders are those of Chainer for the same seed.

    Example:
        >>> sampler = ShuffleOrderSampler(np.random.RandomState(0))
        >>> sampler(np.arange(4), 0)
        array([2, 3, 1, 0])
    """

    def __init__(self, random_state: np.random.RandomState | None = None):
        if random_state is not None and not hasattr(random_state, "get_state"):
            raise TypeError(
                f"{type(self).__name__}: random_state must be a numpy.random.RandomState, "
                f"not {type(random_state).__name__}"
            )
        self._random = random_state

    def __call__(self, current_order: Array, current_position: int) -> Array:
        random = np.random if self._random is None else self._random
        return random.permutation(len(current_order))

    def serialize(self, serializer: AbstractSerializer) -> None:
        if self._random is None:
            return
        state = self._random.get_state(legacy=False)
        text = json.dumps(state, default=np.ndarray.tolist)
        restored = serializer("random_state", text)
        if restored != text:
            state = json.loads(restored)
            check_generator_state(state)
            self._random.set_state(state)


class SimilarLengthOrderSampler(ShuffleOrderSampler):
    """Returns a random order in which the examples of a batch are of similar length.

    Batches of sequences then need little padding. The order is still random: the examples are
    permuted, the examples of every ``n_batches`` batches are sorted by length, and the batches are
    permuted. If the batch size does not divide the number of examples, an iterator that
    repeats begins an epoch within a batch; the lengths in its batches are then less similar.

    Args:
        lengths: sequence of the lengths of the examples.
        batch_size: the batch size of the iterator.
        n_batches: number of batches that are sorted together; a greater number makes lengths more
            similar, and batches less random.
        random_state: see :class:`ShuffleOrderSampler`.

    Raises:
        ValueError: ``batch_size`` or ``n_batches`` is below 1; raised by a call if the number of
            examples is not the number of lengths.

    Example:
        >>> lengths = [5, 1, 4, 2]
        >>> order = SimilarLengthOrderSampler(lengths, 2, random_state=np.random.RandomState(1))
        >>> batches = mpchain.iterators.SerialIterator(lengths, 2, order_sampler=order)
        >>> sorted(sorted(next(batches)) for _ in range(2))
        [[1, 2], [4, 5]]
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        n_batches: int = 100,
        random_state: np.random.RandomState | None = None,
    ):
        super().__init__(random_state)
        check_least("SimilarLengthOrderSampler", batch_size=batch_size, n_batches=n_batches)
        self._lengths, self._batch_size = np.asarray(lengths), batch_size
        self._n_sorted = batch_size * n_batches

    def __call__(self, current_order: Array, current_position: int) -> Array:
        if len(current_order) != len(self._lengths):
            raise ValueError(
                f"SimilarLengthOrderSampler: lengths must have one element for each example, but "
                f"there are {len(self._lengths)} for {len(current_order)} examples"
            )
        order = super().__call__(current_order, current_position)
        for start in range(0, len(order), self._n_sorted):
            part = order[start : start + self._n_sorted]
            part[:] = part[np.argsort(self._lengths[part], kind="stable")]
        n_full = len(order) // self._batch_size * self._batch_size
        batches = order[:n_full].reshape(-1, self._batch_size)
        # The incomplete batch, which has the longest examples of its group, stays last.
        batches = batches[super().__call__(np.arange(len(batches)), 0)]
        return np.concatenate([batches.reshape(-1), order[n_full:]])
