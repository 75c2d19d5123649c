"""Divides the work of one kernel among the OpenMP threads that oneDNN uses."""

import ctypes
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from mpchain.kernels import thresholds
from mpchain.kernels.cpu.onednn_library import n_threads, why_absent

_PARTS = 4  # the most parts of each thread


class _Job:
    """A range that is divided into parts. Each thread processes the next part until all parts are
    done."""

    def __init__(self, run: Callable, parts: Iterator[tuple[int, int]]):
        self.run, self.parts, self.error = run, parts, None

    def work(self):
        try:
            for begin, end in self.parts:
                self.run(begin, end)
        except BaseException as error:  # an exception must not leave a function that C calls
            self.error = error


def in_parts(run: Callable[[int, int], object], n: int, n_elements: int) -> None:
    """Calls ``run(begin, end)`` for parts of range(n), in parallel if that is faster.

    Threads make functions faster that release Python's lock and mostly compute. Compiled loops need
    no lock on threads; see :mod:`mpchain.kernels.cpu.numba_threads`.

    Args:
        run: a function; a part must not write to memory that other parts read or write.
        n: the largest possible number of parts, such as rows.
        n_elements: the number of array elements that all calls of ``run`` process together.

    Raises:
        BaseException: ``run`` raised this error for a part; all other parts are completed
            nevertheless.

    Example:
        >>> y = np.zeros(10)
        >>> in_parts(lambda begin, end: y[begin:end].fill(1), 10, n_elements=10)
        >>> y.sum()
        np.float64(10.0)
    """
    # Threads that call Python wait for one another.
    if n_parts(n, n_elements // thresholds.light_loop) < 2:
        run(0, n)
        return
    threads = min(n, n_threads())
    bounds = [n * i // threads for i in range(threads + 1)]
    job = _Job(run, iter(list(itertools.pairwise(bounds))))
    parallel()(_on_each_thread, ctypes.py_object(job), threads, 0)
    if job.error is not None:
        raise job.error


def n_parts(n: int, n_elements: int) -> int:
    """Returns the number of parts of range(n) for several threads; 1 if one thread is as fast.

    Threads take the parts one by one, so that a thread that begins late has fewer.

    Args:
        n, n_elements: see :func:`in_parts`.

    Example:
        >>> n_parts(10, n_elements=10)
        1
    """
    if n_elements < thresholds.threads or n < 2 or why_absent() is not None:
        return 1
    threads = n_threads()
    each = min(_PARTS, 2 * n_elements // max(1, threads * thresholds.threads))
    return 1 if threads < 2 else min(n, threads * max(1, each))


@ctypes.CFUNCTYPE(None, ctypes.py_object)
def _on_each_thread(job):
    job.work()


@functools.cache
def parallel() -> Any:
    """Returns the function of libgomp, GNU's OpenMP, that calls a given function on each thread.

    Example:
        >>> function = parallel() if why_absent() is None else None
    """
    return ctypes.CDLL("libgomp.so.1").GOMP_parallel
