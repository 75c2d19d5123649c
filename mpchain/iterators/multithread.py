"""The iterator that reads examples in threads."""

import concurrent.futures
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.dataset.dataset_mixin import check_least
from mpchain.iterators.prefetching import PrefetchingIterator, divide
from mpchain.iterators.serial import SerialIterator
from mpchain.typing import Dataset


class MultithreadIterator(PrefetchingIterator):
    """Yields the batches of :class:`SerialIterator`, which threads read ahead.

    The iterator helps if reading an example waits (for a disk or a network) or computes outside of
    Python's lock, as NumPy and image decoders do. If ``n_threads`` is above 1, several threads use
    the dataset at once.

    Args:
        dataset, batch_size, repeat, shuffle, order_sampler: see :class:`SerialIterator`.
        n_threads: number of threads.

    Raises:
        TypeError: ``batch_size`` is not an integer.
        ValueError: ``n_threads`` is below 1, or an argument is one that :class:`SerialIterator`
            refuses.

    Example:
        >>> with mpchain.iterators.MultithreadIterator(range(4), 2, shuffle=False) as iterator:
        ...     iterator.next(), iterator.next(), iterator.epoch
        ([0, 1], [2, 3], 1)
    """

    _threads = None

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_threads: int = 1,
        order_sampler: Callable | None = None,
    ):
        check_least("MultithreadIterator", n_threads=n_threads)
        self.n_threads = n_threads
        super().__init__(dataset, batch_size, repeat, shuffle, order_sampler, n_prefetch=1)

    def start(self, indices: np.ndarray) -> Any:
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(self.n_threads, "read_examples")
        parts = divide(indices, self.n_threads)
        return [self._threads.submit(SerialIterator.fetch, self, part) for part in parts]

    def _wait(self, request):
        concurrent.futures.wait(request)

    def _result(self, request):
        return [example for future in request for example in future.result()]

    def finalize(self) -> None:
        """Ends the threads; a request for another batch starts new ones."""
        self._forget()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None

    def __getstate__(self) -> Any:
        return {name: value for name, value in super().__getstate__().items() if name != "_threads"}
