"""In which order an epoch visits the examples."""

import abc
import json

import numpy as np

from mpchain.serializers.generators import check_generator_state


class OrderSampler(abc.ABC):
    """A function that iterators call at the start of each epoch for the order of its examples."""

    @abc.abstractmethod
    def __call__(self, current_order, current_position):
        """Returns the next epoch's order.

        Args:
            current_order (numpy.ndarray): indices of the examples in the order of the epoch that
                ends; before the first epoch 0, 1, ..., n - 1.
            current_position (int): how many of them were visited.

        Returns:
            numpy.ndarray: indices, of any number above 0.
        """

    def serialize(self, serializer):  # noqa: B027 (a sampler may be without state)
        """Saves or restores the state that later orders depend on."""


class ShuffleOrderSampler(OrderSampler):
    """Returns a random permutation for each epoch.

    Args:
        random_state (numpy.random.RandomState): where the permutations come from; it is saved with
            the iterator. None means NumPy's global state: with equal seeds the orders are those
            of Chainer.
    """

    def __init__(self, random_state=None):
        if random_state is not None and not hasattr(random_state, "get_state"):
            raise TypeError(
                "ShuffleOrderSampler: random_state must be a numpy.random.RandomState, "
                f"not {type(random_state).__name__}"
            )
        self._random = random_state

    def __call__(self, current_order, current_position):
        random = np.random if self._random is None else self._random
        return random.permutation(len(current_order))

    def serialize(self, serializer):
        if self._random is None:
            return
        state = self._random.get_state(legacy=False)
        text = json.dumps(state, default=np.ndarray.tolist)
        restored = serializer("random_state", text)
        if restored != text:
            state = json.loads(restored)
            check_generator_state(state)
            self._random.set_state(state)
