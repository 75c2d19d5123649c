"""Iterators that ask for batches before they are needed."""

import abc
import collections
import contextlib
import itertools

from mpchain.iterators.serial import SerialIterator
from mpchain.serializer import Deserializer
from mpchain.serializers import DictionarySerializer, NpzDeserializer

_POSITION = ("current_position", "epoch", "is_new_epoch", "_previous_epoch_detail", "_order")


def divide(sequence, n_parts):
    """Returns contiguous parts of a sequence, whose lengths differ by one at most.

    None of them is empty: there are fewer if the sequence is short.
    """
    n_parts = min(n_parts, len(sequence))
    bounds = [-(-len(sequence) * i // n_parts) for i in range(n_parts + 1)] if n_parts else []
    return [sequence[begin:end] for begin, end in itertools.pairwise(bounds)]


class PrefetchingIterator(SerialIterator):
    """What iterators have in common that look ahead in the order of the examples.

    All attributes, and what is saved, belong to the batch that was returned last; what was asked
    for beyond it is asked for again when training is resumed. All happens in the calling thread.

    Args:
        dataset, batch_size, repeat, shuffle, order_sampler: see :class:`SerialIterator`.
        n_prefetch (int): number of batches that are being read while the caller uses one.
    """

    def __init__(self, dataset, batch_size, repeat, shuffle, order_sampler, n_prefetch):
        self._n_prefetch = n_prefetch
        self._forget()
        super().__init__(dataset, batch_size, repeat, shuffle, order_sampler)

    @abc.abstractmethod
    def _start(self, indices):
        """Begins to read examples; returns the request."""

    @abc.abstractmethod
    def _wait(self, request):
        """Waits until a request is finished; can be called again if it was interrupted."""

    @abc.abstractmethod
    def _result(self, request):
        """Returns the examples of a finished request, or raises what the dataset raised."""

    def __next__(self):
        self._look_ahead()
        if not self._requests:
            raise StopIteration
        request, position, sampler_state = self._requests[0]
        self._wait(request)
        self._requests.popleft()
        vars(self).update(position)
        self._sampler_state = sampler_state
        return self._examples(request)

    def _fetch(self, indices):
        request = self._start(indices)
        self._wait(request)
        return self._examples(request)

    def _examples(self, request):
        try:
            return self._result(request)
        except StopIteration as error:
            kind = type(self).__name__
            raise RuntimeError(f"{kind}: the dataset raised StopIteration") from error

    # Looking ahead

    def _look_ahead(self):
        """Asks for the next batches, as far as there are any."""
        if self._ahead is None:
            self._ahead = object.__new__(SerialIterator)
            names = ("dataset", "batch_size", "order_sampler", "_repeat", *_POSITION)
            vars(self._ahead).update({name: getattr(self, name) for name in names})
            self._sampler_state = self._newest_sampler_state = self._save_sampler()
        while len(self._requests) <= self._n_prefetch:
            order = self._ahead._order
            try:
                indices = self._ahead._next_indices()
            except StopIteration:
                return
            if self._ahead._order is not order:
                self._newest_sampler_state = self._save_sampler()
            position = {name: getattr(self._ahead, name) for name in _POSITION}
            self._requests.append((self._start(indices), position, self._newest_sampler_state))

    def _forget(self):
        self._requests = collections.deque()  # with the state after each; the oldest comes first
        self._ahead = None  # the iterator that runs ahead

    def _go_back(self):
        """Forgets what was asked for and lets the order sampler forget the epochs begun by that."""
        if self._ahead is not None:
            self._restore_sampler(self._sampler_state)
        self._forget()

    def _cancel(self):
        """Waits for what was asked for and forgets it."""
        for request, _, _ in list(self._requests):
            self._wait(request)
        self._go_back()

    def _save_sampler(self):
        saved = DictionarySerializer()
        if hasattr(self.order_sampler, "serialize"):
            self.order_sampler.serialize(saved)
        return saved.target

    def _restore_sampler(self, state):
        if hasattr(self.order_sampler, "serialize"):
            self.order_sampler.serialize(NpzDeserializer(state))

    # State

    def reset(self):
        self._cancel()
        super().reset()

    def serialize(self, serializer):
        if isinstance(serializer, Deserializer):
            self._cancel()
        with self._sampler_as_delivered():
            super().serialize(serializer)

    @contextlib.contextmanager
    def _sampler_as_delivered(self):
        """In the block the order sampler's state belongs to the batch that was returned last."""
        if self._ahead is None:
            yield
            return
        self._restore_sampler(self._sampler_state)
        try:
            yield
        finally:
            self._restore_sampler(self._newest_sampler_state)

    def __getstate__(self):
        """A copy stands at the same position and has nothing under way."""
        return {name: x for name, x in vars(self).items() if name not in ("_requests", "_ahead")}

    def __setstate__(self, state):
        vars(self).update(state)
        self._forget()
