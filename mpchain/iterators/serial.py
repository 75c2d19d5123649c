"""The iterator that reads examples one after another in the calling thread."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.dataset import Iterator
from mpchain.iterators.order_samplers import ShuffleOrderSampler
from mpchain.serializer import AbstractSerializer, Deserializer, MissingKeyError, SerializationError
from mpchain.typing import Dataset


class SerialIterator(Iterator):
    """Yields batches of a dataset, in its own order or shuffled.

    A batch that reaches the end of an epoch is filled from the next epoch with ``repeat``; without
    ``repeat``, it is the last batch and may be smaller. An iterator that is restored in mid-epoch
    continues with the same batches, also in later epochs if the source of random orders is
    restored. By default this source is NumPy's global random state, which the snapshot of a trainer
    contains.

    Args:
        dataset: object with ``len`` and integer indices. Without ``repeat`` it may be empty, and
            then there are no batches.
        batch_size: number of examples in a batch.
        repeat: whether to continue after the first epoch.
        shuffle: whether the order is random; None means True unless there is an order sampler.
        order_sampler: function of the current order and position that returns the order of the next
            epoch (see :class:`OrderSampler`); ``shuffle`` must then be None.

    Attributes:
        current_position (int): the number of examples of this epoch that have been visited.
        repeat (bool): the argument of the same name.

    Raises:
        TypeError: ``batch_size`` is not an integer.
        ValueError: the dataset is empty with ``repeat``, ``batch_size`` is below 1, ``shuffle`` is
            not None with an ``order_sampler``, or ``order_sampler`` returns no index.

    Example:
        >>> iterator = mpchain.iterators.SerialIterator("abc", batch_size=2, shuffle=False)
        >>> iterator.next(), iterator.next(), iterator.epoch, iterator.is_new_epoch
        (['a', 'b'], ['c', 'a'], 1, True)
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        order_sampler: Callable | None = None,
    ):
        kind = type(self).__name__
        if repeat and len(dataset) == 0:
            raise ValueError(f"{kind}: dataset must not be empty with repeat=True")
        if not hasattr(batch_size, "__index__"):
            raise TypeError(f"{kind}: batch_size must be an integer, not {batch_size!r}")
        if operator.index(batch_size) < 1:
            raise ValueError(f"{kind}: batch_size must be at least 1, not {batch_size}")
        if order_sampler is not None and shuffle is not None:
            raise ValueError(f"{kind}: shuffle must be None with an order_sampler, not {shuffle}")
        if order_sampler is None and (shuffle or shuffle is None):
            order_sampler = ShuffleOrderSampler()
        self.dataset = dataset
        self.batch_size = operator.index(batch_size)
        self.order_sampler = order_sampler
        self._repeat = repeat
        self.reset()

    @property
    def repeat(self) -> bool:
        return self._repeat

    def reset(self) -> None:
        """Returns to the start of the first epoch, in a new order if orders are random."""
        self.current_position = 0
        self.epoch = 0
        self.is_new_epoch = False
        self._previous_epoch_detail = -1.0
        self._later_orders = {}  # maps an epoch to its order, if it was drawn early
        self._order = self._sample(np.arange(len(self.dataset)))

    def _sample(self, order):
        if self.order_sampler is None or len(self.dataset) == 0:
            return order
        order = np.asarray(self.order_sampler(order, self.current_position))
        if order.size == 0:
            raise ValueError(f"{type(self).__name__}: order_sampler must return at least one index")
        return order

    @property
    def epoch_detail(self) -> float:
        return self.epoch + self.current_position / max(len(self._order), 1)

    @property
    def previous_epoch_detail(self) -> float | None:
        return None if self._previous_epoch_detail < 0 else self._previous_epoch_detail

    def __next__(self) -> list:
        return self.fetch(self.next_indices())

    def next_indices(self) -> np.ndarray:
        """Advances by one batch and returns the indices of its examples."""
        if not self._repeat and (self.epoch > 0 or len(self.dataset) == 0):
            raise StopIteration
        self._previous_epoch_detail = self.epoch_detail
        self.is_new_epoch = False
        parts = []
        missing = self.batch_size
        while missing > 0:
            part = self._order[self.current_position : self.current_position + missing]
            if self.epoch and getattr(self.dataset, "has_epochs", False):
                part = part + self.epoch * len(self.dataset)
            parts.append(part)
            missing -= len(part)
            self.current_position += len(part)
            if self.current_position == len(self._order):
                self._finish_epoch()
                if not self._repeat:
                    break
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _finish_epoch(self):
        self._order = self._next_order()  # Chainer draws this order even without repeat
        self.current_position = 0
        self.epoch += 1
        self.is_new_epoch = True

    def _next_order(self):
        """Returns the order of the epoch after this one."""
        if self.epoch + 1 not in self._later_orders:
            return self._sample(self._order)
        later = dict(self._later_orders)  # a copy of the iterator may share this dict
        order, self._later_orders = later.pop(self.epoch + 1), later
        return order

    def fetch(self, indices: np.ndarray) -> list:
        """Returns the examples with the given indices (a subclass may return only some of them)."""
        return [self.dataset[i] for i in indices.tolist()]

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the position in the epoch, its order, and the order sampler.

        From a file of Chainer, position and order are restored; later orders are drawn again.
        """
        is_of_chainer = False
        try:
            n = serializer("dataset_size", len(self.dataset))
        except MissingKeyError:
            is_of_chainer, n = True, len(self.dataset)
        if n != len(self.dataset):
            raise SerializationError(
                f"{type(self).__name__}: the dataset of the saved iterator had {n} examples, "
                f"but this dataset has {len(self.dataset)}"
            )
        for name in ("current_position", "epoch", "is_new_epoch", "_previous_epoch_detail"):
            setattr(self, name, serializer(name.removeprefix("_"), getattr(self, name)))
        if self.order_sampler is not None:
            self._serialize_order(serializer)
            sampler: Any = self.order_sampler
            if hasattr(sampler, "serialize") and not is_of_chainer:
                sampler.serialize(serializer["order_sampler"])
        if isinstance(serializer, Deserializer) and serializer.restores:
            self._check_state(n)

    def _check_state(self, n):
        """Raises SerializationError unless the restored state is valid."""
        orders = [self._order, *self._later_orders.values()]
        what = next(filter(None, (_fault(order, n) for order in orders)), None)
        position = self.current_position
        if what is None and not 0 <= position <= len(self._order):
            what = f"current_position must be from 0 to {len(self._order)}, not {position}"
        if what is None and not 0 <= self.epoch < 2**53:
            what = f"epoch must be at least 0 and below 2**53, not {self.epoch}"
        if what is not None:
            raise SerializationError(f"{type(self).__name__}: the saved {what}")

    def _serialize_order(self, serializer):
        # The saved order may differ in length from the present order (some samplers vary the
        # length), so it is not restored in place.
        order = serializer("order", None if isinstance(serializer, Deserializer) else self._order)
        if order is not None:
            self._order = order
        self._later_orders = _serialize_later_orders(
            serializer["later_orders"], self.epoch + 1, self._later_orders
        )


def _fault(order, n):
    """Returns a text of what is wrong in a restored order of n examples; None if it is valid."""
    order = np.asarray(order)
    if order.ndim != 1 or order.dtype.kind not in "iu" or (order.size == 0 and n > 0):
        return f"order must be a vector of integers, not {order.dtype} of shape {order.shape}"
    if order.size > 0 and not (order.min() >= 0 and order.max() < n):
        return f"order has indices from {order.min()} to {order.max()} of {n} examples"
    return None


def _serialize_later_orders(serializer, epoch, orders):
    """Saves or restores the orders of consecutive epochs from ``epoch`` on, and returns them."""
    if not isinstance(serializer, Deserializer):
        if orders:  # most iterators have no early orders, and save none
            serializer("n", len(orders))
        for i in range(len(orders)):
            serializer(str(i), orders[epoch + i])
        return orders
    if not serializer.restores:
        return orders
    try:
        n = serializer("n", 0)
    except MissingKeyError:
        n = 0
    return {epoch + i: serializer(str(i), None) for i in range(n)}
