"""Memory that the ranks of one host share, so that they can sum arrays where they are.

It is anonymous memory of one process that the others map. Unlike a window of MPI, it is released
when the last array in it is, by each rank for itself, and no limit of ``/dev/shm`` applies, which
is small in containers.
"""

import itertools
import math
import mmap
import os
import platform

import numpy as np

_NAME = "mpchain"
_LINE = 64  # bytes of a cache line
_CHUNK = 1 << 16  # elements that are summed at a time: they stay in the cache
_KEY = 16  # bytes at the beginning, by which a rank knows that it has opened the right memory

# Stores become visible in their order on x86. Elsewhere a full memory barrier is wanted, between an
# array and the counter that says it is filled, which Python has not. Linux executes one whenever a
# process enters its scheduler (smp_mb__after_spinlock in __schedule), though no manual promises it
# for sched_yield: test on such a machine before you rely on it.
_fence = (lambda: None) if platform.machine() in ("x86_64", "AMD64") else os.sched_yield


def share(host, n_bytes):
    """Makes memory that the ranks of a host share; collective.

    Args:
        host (mpi4py.MPI.Comm): the ranks.
        n_bytes (int): how much.

    Returns:
        A writable ``mmap`` of zeros on each rank; None if any of them is refused it.
    """
    opened, where = None, None
    try:
        if host.rank == 0:
            opened = os.memfd_create(_NAME)
            os.ftruncate(opened, n_bytes + _KEY)
            key = os.urandom(_KEY)
            os.pwrite(opened, key, n_bytes)
            where = f"/proc/{os.getpid()}/fd/{opened}", key
    except (AttributeError, OSError):  # not on this system; not allowed
        pass
    where = host.bcast(where)
    memory = None
    if where is not None:
        path, key = where
        try:
            if host.rank != 0:
                opened = _open(path)
            memory = mmap.mmap(opened, n_bytes + _KEY)
            if memory[n_bytes:] != key:
                memory = None
        except (OSError, ValueError):
            pass
    shared_by_all = all(host.allgather(memory is not None))
    if opened is not None:
        os.close(opened)
    return memory if shared_by_all else None


def _open(path):
    """Opens another process's memory; in a container the path may be another process's file."""
    if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
        raise OSError(f"{path} is not the memory that was meant")
    return os.open(path, os.O_RDWR)


class SharedArray:
    """A flat array of this rank, which the other ranks of the host can see, beside theirs.

    It keeps the memory alive, and is the base of the NumPy array that :func:`numpy.asarray` makes
    of it.

    Args:
        counters: for each rank of the host, a memoryview of the numbers by which it tells how often
            it has come to each stage of a sum.
        segments: for each rank of the host, its array.
        rank (int): this rank's number on the host.
    """

    def __init__(self, counters, segments, rank):
        self._counters, self._segments, self._rank = counters, segments, rank
        self.__array_interface__ = segments[rank].__array_interface__

    def come_to(self, stage):
        """Tells the others that this rank has come to a stage once more."""
        _fence()
        self._counters[self._rank][stage] += 1

    def all_came_to(self, stage):
        """Whether all others have come to the stage as often as this rank."""
        n = self._counters[self._rank][stage]
        for counters in self._counters:
            if counters[stage] < n:
                return False
        _fence()
        return True

    def part(self, index, n_parts):
        """Returns for each rank of the host a part of its array, as close to equal as possible."""
        n = self._segments[0].size
        return [x[n * index // n_parts : n * (index + 1) // n_parts] for x in self._segments]


def make_shared_arrays(host, specifications):
    """Makes arrays of zeros that the ranks of a host share; collective.

    Args:
        host (mpi4py.MPI.Comm): the ranks.
        specifications: pairs of a number of elements and a dtype.

    Returns:
        list of :class:`SharedArray`; None if memory cannot be shared.
    """
    dtypes = [np.dtype(dtype) for _, dtype in specifications]
    sizes = [n for n, _ in specifications]
    lengths = [_up_to(_LINE, n * t.itemsize) for n, t in zip(sizes, dtypes, strict=True)]
    n_counter_bytes = len(sizes) * host.size * _LINE
    begin = _up_to(mmap.PAGESIZE, n_counter_bytes)
    stride = _up_to(mmap.PAGESIZE, sum(lengths))  # each rank's segments are pages of their own
    memory = share(host, begin + stride * host.size)
    if memory is None:
        return None
    lines = memoryview(memory)[:n_counter_bytes].cast("q")
    per_line = _LINE // 8
    offsets = itertools.accumulate(lengths, initial=begin)
    arrays = []
    for i, (size, dtype, offset) in enumerate(zip(sizes, dtypes, offsets, strict=False)):
        of_ranks = range(host.size)
        first = [(i * host.size + r) * per_line for r in of_ranks]
        counters = [lines[k : k + per_line] for k in first]
        segments = [np.frombuffer(memory, dtype, size, offset + r * stride) for r in of_ranks]
        segments[host.rank][...] = 0  # whoever touches a page first has it near
        arrays.append(SharedArray(counters, segments, host.rank))
    return arrays


def _up_to(unit, n):
    return math.ceil(n / unit) * unit


FILLED, SUMMED = 0, 1


def sum_in_shared_memory(shared, part, n_parts, sum_between_hosts):
    """Steps of the sum of shared arrays over their ranks.

    Each part is summed by one rank, in the order of ranks, and written to the arrays of all: so all
    have the same bits.

    Args:
        shared (SharedArray): the array.
        part (int): which of ``n_parts`` this rank sums; none if it is not below ``n_parts``.
        sum_between_hosts: function that yields the steps of the sum of an array over the hosts.
    """
    shared.come_to(FILLED)
    while not shared.all_came_to(FILLED):
        yield
    if part < n_parts:
        total, *others = shared.part(part, n_parts)
        chunks = [slice(i, i + _CHUNK) for i in range(0, total.size, _CHUNK)]
        is_final = sum_between_hosts is None
        for chunk in chunks:
            for x in others:
                np.add(total[chunk], x[chunk], out=total[chunk])
            if is_final:
                _copy_to(others, total, chunk)
        if not is_final:
            yield from sum_between_hosts(total)
            for chunk in chunks:
                _copy_to(others, total, chunk)
    shared.come_to(SUMMED)
    while not shared.all_came_to(SUMMED):
        yield


def _copy_to(others, total, chunk):
    for x in others:
        x[chunk] = total[chunk]
