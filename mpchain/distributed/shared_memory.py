"""Memory that the ranks of one host share, in which they sum arrays without messages.

One process creates anonymous memory, and the other processes map it. With an MPI window, a rank
could not release the memory with the last array in it, and the limit of ``/dev/shm``, which is
small in containers, would apply.
"""

import math
import mmap
import os
import platform
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mpchain.distributed.objects import allgather
from mpchain.typing import Array, DTypeLike

_NAME = "mpchain"
_LINE = 64  # bytes of a cache line
_CHUNK = 1 << 16  # elements that are summed at a time, so that they stay in the cache
_KEY = 16  # bytes at the end by which a rank knows that it has opened the right memory

# On x86, stores become visible in their order. On other processors, a full memory barrier is needed
# between an array and the counter that says that the array is filled; Python has no such barrier.
# Linux executes one whenever a process enters its scheduler (smp_mb__after_spinlock in __schedule),
# but no manual promises this for sched_yield: test on such a machine before you rely on it.
_fence = (lambda: None) if platform.machine() in ("x86_64", "AMD64") else os.sched_yield


def share(host: Any, n_bytes: int) -> mmap.mmap | None:
    """Makes memory that the ranks of a host share; collective.

    Args:
        host: ``mpi4py.MPI.Comm`` of the ranks.
        n_bytes: the number of bytes.

    Returns:
        Writable memory of zeros on each rank; None if any rank cannot map it.
    """
    opened, where = None, None
    try:
        if host.rank == 0:
            opened = os.memfd_create(_NAME)
            os.ftruncate(opened, n_bytes + _KEY)
            key = os.urandom(_KEY)
            os.pwrite(opened, key, n_bytes)
            where = f"/proc/{os.getpid()}/fd/{opened}", key
    except (AttributeError, OSError):  # this system lacks this feature, or does not allow it
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
    shared_by_all = all(allgather(host, memory is not None))
    if opened is not None:
        os.close(opened)
    return memory if shared_by_all else None


def _open(path):
    """Opens another process's memory; raises OSError if the path is another file, as in a
    container."""
    if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
        raise OSError(f"{path} is not the memory that the first rank of the host has made")
    return os.open(path, os.O_RDWR)


class SharedArray:
    """A flat array of each rank of a host, which all ranks of the host can read and write.

    The object keeps the memory alive.

    Args:
        counters: for each rank of the host, a memoryview of int64: how often the rank has reached
            each stage of a sum, and the index of the slot that it uses.
        slots: for each rank of the host, a list of arrays; the rank uses one of them at a time.
        rank: the rank of this process on its host.

    Example:
        >>> shared = SharedArray([memoryview(bytearray(24)).cast("q")], [[np.ones(3)]], 0)
        >>> shared.come_to(FILLED)
        >>> shared.all_came_to(FILLED), shared.slots[0]
        (True, array([1., 1., 1.]))
    """

    def __init__(self, counters: list[memoryview], slots: list[list[Array]], rank: int):
        self._counters, self._slots, self._rank = counters, slots, rank

    @property
    def slots(self) -> list[Array]:
        """The arrays of this rank."""
        return self._slots[self._rank]

    def use(self, slot: int) -> None:
        """Chooses one of this rank's arrays, which the other ranks see after the next stage."""
        self._counters[self._rank][_SLOT] = slot

    def come_to(self, stage: int) -> None:
        """Shows the other ranks that this rank has reached a stage once more."""
        _fence()
        self._counters[self._rank][stage] += 1

    def all_came_to(self, stage: int) -> bool:
        """Returns whether all other ranks have reached the stage as often as this rank."""
        n = self._counters[self._rank][stage]
        for counters in self._counters:
            if counters[stage] < n:
                return False
        _fence()
        return True

    def meet(self, stage: int) -> Generator[None, None, None]:
        """Reaches a stage, and yields until all ranks have reached it."""
        self.come_to(stage)
        while not self.all_came_to(stage):
            yield

    def part(self, index: int, n_parts: int) -> list[Array]:
        """Returns, for each rank of the host, part ``index`` of its array, of ``n_parts`` even
        parts."""
        n = self.slots[0].size
        return self.at(slice(n * index // n_parts, n * (index + 1) // n_parts))

    def at(self, place: slice) -> list[Array]:
        """Returns, for each rank of the host, the elements of its array in the slice ``place``."""
        return [
            slots[counters[_SLOT]][place]
            for slots, counters in zip(self._slots, self._counters, strict=True)
        ]

    def of_host(self) -> Array:
        """Returns the array of the host's first rank, which all ranks of the host may use
        together."""
        return self._slots[0][0]


def make_shared_arrays(
    host: Any, specifications: Iterable[tuple[int, DTypeLike]], n_slots: int = 1
) -> list[SharedArray] | None:
    """Makes arrays of zeros that the ranks of a host share; collective.

    Args:
        host: ``mpi4py.MPI.Comm`` of the ranks.
        specifications: pairs (number of elements, dtype).
        n_slots: the number of arrays of each rank for each specification. All arrays but the first
            take no memory before they are used.

    Returns:
        One :class:`SharedArray` for each specification; None if memory cannot be shared.
    """
    specifications = [(n, np.dtype(dtype)) for n, dtype in specifications]
    lengths = [_up_to(_LINE, n * dtype.itemsize) for n, dtype in specifications]
    n_counter_bytes = len(lengths) * host.size * _LINE
    begin = _up_to(mmap.PAGESIZE, n_counter_bytes)
    stride = _up_to(mmap.PAGESIZE, sum(lengths))  # each rank's slots occupy separate pages
    memory = share(host, begin + stride * n_slots * host.size)
    if memory is None:
        return None
    lines = memoryview(memory)[:n_counter_bytes].cast("q")
    per_line, ranks = _LINE // 8, range(host.size)
    arrays, offset = [], begin
    for i, (n, dtype) in enumerate(specifications):
        first = [(i * host.size + r) * per_line for r in ranks]
        counters = [lines[k : k + per_line] for k in first]
        slots = [
            [
                np.frombuffer(memory, dtype, n, offset + (r * n_slots + slot) * stride)
                for slot in range(n_slots)
            ]
            for r in ranks
        ]
        offset += lengths[i]
        # The system places a page near the process that touches it first.
        slots[host.rank][0][...] = 0
        arrays.append(SharedArray(counters, slots, host.rank))
    return arrays


def _up_to(unit, n):
    return math.ceil(n / unit) * unit


FILLED, SUMMED, _SLOT = range(3)


def sum_in_shared_memory(
    shared: SharedArray,
    sums_between_hosts: Mapping[int, Callable | None],
    n_parts: int,
    slot: int = 0,
) -> Generator[None, None, None]:
    """Sums shared arrays over their ranks, as a generator.

    One rank sums each part, in the order of the ranks, and writes the sum to the arrays of all
    ranks, which therefore have the same bits.

    Args:
        shared: the shared array.
        sums_between_hosts: for each part that this rank sums, a generator function that sums an
            array over the hosts, or None if there is one host.
        n_parts: the number of parts.
        slot: the index of this rank's array to sum; other ranks may use other indices.

    Example:
        >>> counters = [memoryview(bytearray(24)).cast("q") for _ in range(2)]
        >>> arrays = [np.ones(3), np.ones(3)]
        >>> ranks = [SharedArray(counters, [[x] for x in arrays], rank) for rank in range(2)]
        >>> sums = [sum_in_shared_memory(ranks[i], {i: None}, 2) for i in range(2)]
        >>> _ = [next(sums[i], None) for i in (0, 1, 0)]  # each continues until it must wait
        >>> arrays
        [array([2., 2., 2.]), array([2., 2., 2.])]
    """
    shared.use(slot)
    yield from shared.meet(FILLED)
    for part, sum_between_hosts in sums_between_hosts.items():
        total, *others = shared.part(part, n_parts)
        sum_part(total, *others, copies=sum_between_hosts is None)
        if sum_between_hosts is not None:
            yield from sum_between_hosts(total)
            for x in others:
                x[...] = total
    yield from shared.meet(SUMMED)


def sum_pieces_in_shared_memory(
    shared: SharedArray,
    places: Mapping[int, Sequence[slice]],
    sum_between_hosts: Callable,
    own: slice,
    slot: int = 0,
) -> Generator[None, None, None]:
    """Sums a segment of shared arrays for each rank, as a generator. The sums have the same bits as
    the sums of :func:`sum_in_shared_memory`.

    The segments for other ranks are undefined afterwards.

    Args:
        shared: the shared array.
        places: for each part that this rank sums on its host, the slices of the segments of that
            part: one for each host, which may be empty.
        sum_between_hosts: a generator function that is called with the part and the sums of its
            segments over this host's ranks; it returns the sum of this rank's segment over the
            hosts.
        own: the slice of this rank's segment.
        slot: the index of this rank's array to sum; other ranks may use other indices.
    """
    shared.use(slot)
    yield from shared.meet(FILLED)
    for part, of_hosts in places.items():
        pieces = []
        for place in of_hosts:
            pieces.append(sum_part(*shared.at(place), copies=False))
        total = yield from sum_between_hosts(part, pieces)
        if total.size:  # the segment is empty if a smaller host has no such rank
            shared.slots[slot][own] = total
    yield from shared.meet(SUMMED)


def gather_in_shared_memory(
    shared: SharedArray, own: Array, piece: Array, exchanges: Iterable[Generator]
) -> Generator[None, None, None]:
    """Gathers a segment of each rank in one array of the host, as a generator.

    The array stays unchanged until this rank begins to gather again.

    Args:
        shared: the shared array.
        own: the view of it for this rank's segment.
        piece: the array that is copied to ``own``.
        exchanges: generators that gather the segments of other hosts.
    """
    yield from shared.meet(FILLED)  # the previous result may be overwritten
    own[...] = piece
    for exchange in exchanges:
        yield from exchange
    yield from shared.meet(SUMMED)


def sum_part(total: Array, *others: Array, copies: bool = True) -> Array:
    """Adds flat arrays to ``total``, and returns ``total``. If ``copies`` is True, also copies the
    sum to the other arrays, while it is in the cache.

    Example:
        >>> x = np.ones(3)
        >>> sum_part(np.ones(3), x), x
        (array([2., 2., 2.]), array([2., 2., 2.]))
    """
    for start in range(0, total.size, _CHUNK):
        chunk, rest = total, others
        if total.size > _CHUNK:
            chunk, *rest = [x[start : start + _CHUNK] for x in (total, *others)]
        for x in rest:
            np.add(chunk, x, out=chunk)
        for x in rest if copies else ():
            x[...] = chunk
    return total
