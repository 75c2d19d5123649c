"""The iterator that reads examples in processes."""

import os
import pickle
import warnings
from collections.abc import Callable
from multiprocessing import resource_tracker, util
from typing import Any

import numpy as np

from mpchain.dataset.dataset_mixin import check_least
from mpchain.iterators.prefetching import PrefetchingIterator, divide
from mpchain.iterators.reader import Reader, ThreadReader
from mpchain.iterators.shared_memory import Shared
from mpchain.iterators.worker import get_context, peek_at_random_state, runs_main_program_again
from mpchain.typing import Dataset


class _TimeoutWarning(RuntimeWarning):
    """The category of the warning that reading a batch takes longer than ``dataset_timeout``."""


class MultiprocessIterator(PrefetchingIterator):
    """Yields the batches of :class:`SerialIterator`, which processes read ahead.

    Each process reads a part of each batch and returns arrays through shared memory. The processes
    share one copy of the dataset's arrays. The first request for a batch starts the processes. They
    end when :meth:`finalize` is called, when the iterator is collected, or when this process ends
    for any reason. Random numbers that the dataset draws from NumPy's global state or
    :mod:`random` differ between processes; they are determined by NumPy's state at the start.

    An exception of the dataset is raised in this process, with a note of the other process's
    traceback. If a process is killed, a RuntimeError is raised, and the next call reads the lost
    batch again.

    By default, processes are not forked from this process, because MPI and threads do not survive a
    fork. A script must therefore work below ``if __name__ == "__main__":``, and datasets and
    transforms must be importable. Otherwise (a lambda, a local function) threads read the examples,
    and a warning says why; Python's lock then limits the speed.

    Args:
        dataset, batch_size, repeat, shuffle, order_sampler: see :class:`SerialIterator`.
        n_processes: number of processes, limited to ``batch_size``; None means the number of cores.
        n_prefetch: number of batches to read ahead.
        shared_mem: bytes of shared memory for each example; larger examples are sent through pipes.
            None adapts the size to the examples.
        dataset_timeout: seconds of waiting for a batch after which a :attr:`TimeoutWarning` is
            issued; None never warns.
        maxtasksperchild: number of batches after which a process is replaced, for datasets that
            leak memory; None means never.
        start_method: 'forkserver', 'spawn' or (not with MPI, nor after OpenMP has started threads)
            'fork'. None means the method set by :func:`multiprocessing.set_start_method`, unless it
            is 'fork'; otherwise the forkserver or, if it is not available, spawn. Only None allows
            threads in place of processes.

    Raises:
        TypeError: ``batch_size`` is not an integer, or ``start_method`` is 'forkserver' or 'spawn'
            and the dataset cannot be pickled.
        RuntimeError: ``start_method`` is 'fork' where it is not allowed.
        ValueError: a number is below 1 (``n_prefetch``, ``shared_mem``: below 0), the system lacks
            ``start_method``, or an argument is one that :class:`SerialIterator` refuses.

    Example:
        >>> with mpchain.iterators.MultiprocessIterator(
        ...     np.arange(4), 2, repeat=False, shuffle=False, n_processes=1
        ... ) as iterator:
        ...     [np.stack(batch).tolist() for batch in iterator]
        [[0, 1], [2, 3]]
    """

    TimeoutWarning = _TimeoutWarning

    _readers: Any = None
    _stop_readers = None

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_processes: int | None = None,
        n_prefetch: int = 1,
        shared_mem: int | None = None,
        order_sampler: Callable | None = None,
        dataset_timeout: float | None = 30.0,
        maxtasksperchild: int | None = None,
        *,
        start_method: str | None = None,
    ):
        n_processes = _n_cores() if n_processes is None else n_processes
        kind = "MultiprocessIterator"
        check_least(kind, n_processes=n_processes, maxtasksperchild=maxtasksperchild)
        check_least(kind, 0, n_prefetch=n_prefetch, shared_mem=shared_mem)
        self.n_processes = n_processes
        self.shared_mem = shared_mem
        self.dataset_timeout = dataset_timeout
        self.maxtasksperchild = maxtasksperchild
        self._start_method = start_method
        super().__init__(dataset, batch_size, repeat, shuffle, order_sampler, n_prefetch)

    def start(self, indices: np.ndarray) -> Any:
        if self._readers is None:
            self._start_readers()
        parts = divide(indices, len(self._readers))
        try:
            for reader, part in zip(self._readers, parts):
                reader.request(part)
        except BaseException:
            # Some workers were asked for their parts of a batch, but others were not.
            self._end_readers()
            raise
        return (self._readers or [])[: len(parts)], []

    def _wait(self, request):
        readers, answers = request
        try:
            for reader in readers[len(answers) :]:
                while not reader.poll(self.dataset_timeout):
                    warnings.warn(
                        "MultiprocessIterator: reading a batch takes longer than "
                        f"{self.dataset_timeout} s (dataset_timeout)",
                        _TimeoutWarning,
                        stacklevel=3,
                    )
                answers.append(reader.receive())
        except _TimeoutWarning:
            raise  # a filter has turned the warning into an error
        except BaseException:
            self._end_readers()
            raise

    def _result(self, request):
        _, answers = request
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [example for examples in answers for example in examples]

    def _start_readers(self):
        context = get_context(self._start_method, "MultiprocessIterator")
        n_readers = min(self.n_processes, self.batch_size)
        try:
            shared = self._shared_dataset(context.get_start_method())
        except TypeError as error:
            if self._start_method is not None:
                raise
            warnings.warn(
                f"{error}; threads read the examples instead, which may be slower",
                RuntimeWarning,
                stacklevel=6,
            )
            shared, readers = None, [ThreadReader(self.dataset) for _ in range(n_readers)]
        else:
            seeds = [(peek_at_random_state(), i) for i in range(n_readers)]
            sizes = self.n_prefetch + 1, -(-self.batch_size // n_readers)
            sizes += (self.shared_mem, self.maxtasksperchild)
            readers = [Reader(context, shared, seed, *sizes) for seed in seeds]
        # The finalizer also runs when the iterator is collected, and before this process ends.
        self._stop_readers = util.Finalize(self, _stop, (readers, shared), exitpriority=10)
        self._readers = readers

    def _shared_dataset(self, start_method):
        """Returns the dataset for the processes; raises TypeError if they cannot load it."""
        if start_method == "fork":
            return _Inherited(self.dataset)
        if self._start_method is None and runs_main_program_again():
            raise TypeError(
                "MultiprocessIterator: the script does its work outside of "
                "`if __name__ == '__main__':`, so each process would repeat the work"
            )
        try:
            return Shared(self.dataset)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise TypeError(
                f"MultiprocessIterator: the dataset must be picklable for other processes: {error} "
                "(its functions must be importable, so neither lambdas nor local ones)"
            ) from error

    def _end_readers(self):
        self._forget()
        if self._stop_readers is not None:
            self._stop_readers()
        self._readers = self._stop_readers = None

    def finalize(self) -> None:
        """Ends the processes; a request for another batch starts new ones."""
        self._end_readers()

    def __getstate__(self) -> Any:
        return super().__getstate__() | {"_readers": None, "_stop_readers": None}


def _n_cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


class _Inherited:
    """A dataset that forked processes inherit from this process."""

    def __init__(self, dataset):
        self._dataset = dataset
        # Otherwise, each process would start its own resource tracker, which would remove shared
        # memory that this process still uses.
        resource_tracker.ensure_running()

    def load(self):
        return self._dataset

    def unlink(self):
        """Does nothing, because no shared memory was made."""


def _stop(readers, shared):
    for reader in readers:
        reader.hang_up()
    for reader in readers:
        reader.close()
    if shared is not None:
        shared.unlink()
