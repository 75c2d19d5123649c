"""Work of one kernel for all threads of OpenMP: those that oneDNN uses, and no others."""

import ctypes
import functools
import itertools
from collections.abc import Callable, Iterator

from mpchain.kernels import thresholds
from mpchain.kernels.cpu.onednn_library import n_threads, why_absent


class _Job:
    """A range in slices; each thread takes the next slice until all are done."""

    def __init__(self, run: Callable, parts: Iterator[tuple[int, int]]):
        self.run, self.parts, self.error = run, parts, None

    def work(self):
        try:
            for begin, end in self.parts:
                self.run(begin, end)
        except BaseException as error:  # no exception may leave a function that C calls
            self.error = error


def in_parts(run: Callable[[int, int], object], n: int, n_elements: int) -> None:
    """Calls ``run(begin, end)`` for parts of range(n), at the same time if that pays.

    It pays for compiled loops, which let other threads run Python, if they compute: one thread that
    does next to nothing but read and write memory is as fast as two.

    Args:
        run: function; parts must not write where others read or write.
        n: the number of parts that there could be, such as rows.
        n_elements: of an array that ``run`` works through in total.

    Raises:
        BaseException: an error of ``run``; other slices are completed nevertheless.

    Example:
        >>> y = np.zeros(10)
        >>> in_parts(lambda begin, end: y[begin:end].fill(1), 10, n_elements=10)
        >>> y.sum()
        np.float64(10.0)
    """
    if n_elements < thresholds.threads or n < 2 or why_absent() is not None:
        run(0, n)
        return
    threads = min(n, n_threads())
    if threads < 2:
        run(0, n)
        return
    bounds = [n * i // threads for i in range(threads + 1)]
    job = _Job(run, iter(list(itertools.pairwise(bounds))))
    _parallel()(_on_each_thread, ctypes.py_object(job), threads, 0)
    if job.error is not None:
        raise job.error


@ctypes.CFUNCTYPE(None, ctypes.py_object)
def _on_each_thread(job):
    job.work()


@functools.cache
def _parallel():
    """Returns the function of GNU's OpenMP that calls a given function on each thread."""
    return ctypes.CDLL("libgomp.so.1").GOMP_parallel
