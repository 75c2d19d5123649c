"""The base class of iterators that request batches before they are needed."""

import abc
import collections
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain.iterators.serial import SerialIterator
from mpchain.serializer import AbstractSerializer, Deserializer
from mpchain.typing import Dataset

_POSITION = ("current_position", "epoch", "is_new_epoch", "_previous_epoch_detail", "_order")


def divide(sequence: Sequence, n_parts: int) -> list:
    """Returns contiguous parts of a sequence, whose lengths differ by at most one.

    No part is empty: a short sequence has fewer parts.

    Example:
        >>> divide("abcde", 2), divide("a", 2)
        (['abc', 'de'], ['a'])
    """
    n_parts = min(n_parts, len(sequence))
    bounds = [-(-len(sequence) * i // n_parts) for i in range(n_parts + 1)] if n_parts else []
    return [sequence[begin:end] for begin, end in itertools.pairwise(bounds)]


class _Ahead(SerialIterator):
    """Runs ahead of another iterator, which receives the orders that are drawn on the way."""

    def _next_order(self):
        if self.epoch + 1 not in self._later_orders:
            self._later_orders[self.epoch + 1] = self._sample(self._order)
        return self._later_orders[self.epoch + 1]


class PrefetchingIterator(SerialIterator):
    """The base class of iterators that request batches before they are needed.

    The position and the saved state belong to the batch that was returned last; a resumed
    iterator repeats the requests for later batches. Orders of later epochs that were drawn for
    requests are kept and saved, so that no order is drawn twice. All methods run in the calling
    thread.

    Args:
        dataset, batch_size, repeat, shuffle, order_sampler: see :class:`SerialIterator`.
        n_prefetch: number of batches to request before they are needed.

    Example:
        >>> issubclass(mpchain.iterators.MultithreadIterator, PrefetchingIterator)
        True
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        repeat: bool,
        shuffle: bool | None,
        order_sampler: Callable | None,
        n_prefetch: int,
    ):
        self.n_prefetch = n_prefetch
        self._forget()
        super().__init__(dataset, batch_size, repeat, shuffle, order_sampler)

    @abc.abstractmethod
    def start(self, indices: np.ndarray) -> Any:
        """Starts to read examples; returns the request."""

    @abc.abstractmethod
    def _wait(self, request):
        """Waits for a request; can be called again after an interruption."""

    @abc.abstractmethod
    def _result(self, request):
        """Returns the examples of a finished request, or raises the exception of the dataset."""

    def __next__(self) -> Any:
        self._look_ahead()
        if not self._requests:
            raise StopIteration
        request, position = self._requests[0]
        self._wait(request)
        self._requests.popleft()
        vars(self).update(position)
        for epoch in [epoch for epoch in self._later_orders if epoch <= self.epoch]:
            del self._later_orders[epoch]
        return self._examples(request)

    def fetch(self, indices: np.ndarray) -> list:
        request = self.start(indices)
        self._wait(request)
        return self._examples(request)

    def _examples(self, request) -> list:
        try:
            examples: Any = self._result(request)
            return examples
        except StopIteration as error:
            kind = type(self).__name__
            raise RuntimeError(f"{kind}: the dataset raised StopIteration") from error

    # These methods request batches ahead.

    def _look_ahead(self):
        """Requests the next batch and ``n_prefetch`` later batches, unless they are pending."""
        if self._ahead is None:
            self._ahead = object.__new__(_Ahead)
            names = ("dataset", "batch_size", "order_sampler", "_repeat", "_later_orders")
            names += _POSITION
            vars(self._ahead).update({name: getattr(self, name) for name in names})
        while len(self._requests) <= self.n_prefetch:
            try:
                indices = self._ahead.next_indices()
            except StopIteration:
                return
            position = {name: getattr(self._ahead, name) for name in _POSITION}
            self._requests.append((self.start(indices), position))

    def _forget(self):
        """Drops all requests; the next call for a batch repeats them."""
        # Each entry has a request and the position after it; the oldest entry comes first.
        self._requests = collections.deque()
        self._ahead = None  # the iterator that runs ahead

    def _cancel(self):
        """Waits for all requests, and drops their results."""
        for request, _ in list(self._requests):
            self._wait(request)
        self._forget()

    # These methods set, save and restore the position.

    def reset(self) -> None:
        self._cancel()
        super().reset()

    def serialize(self, serializer: AbstractSerializer) -> None:
        if isinstance(serializer, Deserializer):
            self._cancel()
        super().serialize(serializer)

    def __getstate__(self) -> Any:
        """Returns the state of a copy, which has the same position and no requests."""
        state = {name: x for name, x in vars(self).items() if name not in ("_requests", "_ahead")}
        return state | {"_later_orders": dict(self._later_orders)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()
