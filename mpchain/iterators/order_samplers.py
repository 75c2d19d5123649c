"""The order in which an epoch visits the examples."""

import abc
import json
from typing import Any

import numpy as np

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
        """Returns the next epoch's order.

        Args:
            current_order: indices of the examples in the order of the ending epoch; before the
                first epoch 0, 1, ..., n - 1.
            current_position: number of visited examples.

        Returns:
            numpy.ndarray: indices, of any number above 0.
        """

    def serialize(self, serializer: Any) -> None:  # noqa: B027 (a sampler may be without state)
        """Saves or restores the state that determines later orders."""


class ShuffleOrderSampler(OrderSampler):
    """Returns a random permutation for each epoch.

    Args:
        random_state: the source of the permutations, saved with the iterator. None means NumPy's
            global state, with which the orders are those of Chainer for the same seed.

    Example:
        >>> sampler = ShuffleOrderSampler(np.random.RandomState(0))
        >>> sampler(np.arange(4), 0)
        array([2, 3, 1, 0])
    """

    def __init__(self, random_state: np.random.RandomState | None = None):
        if random_state is not None and not hasattr(random_state, "get_state"):
            raise TypeError(
                "ShuffleOrderSampler: random_state must be a numpy.random.RandomState, "
                f"not {type(random_state).__name__}"
            )
        self._random = random_state

    def __call__(self, current_order: Array, current_position: int) -> Array:
        random = np.random if self._random is None else self._random
        return random.permutation(len(current_order))

    def serialize(self, serializer: Any) -> None:
        if self._random is None:
            return
        state = self._random.get_state(legacy=False)
        text = json.dumps(state, default=np.ndarray.tolist)
        restored = serializer("random_state", text)
        if restored != text:
            state = json.loads(restored)
            check_generator_state(state)
            self._random.set_state(state)
