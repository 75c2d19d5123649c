"""Memory that the ranks of one host share, in which they sum arrays without messages.

One process creates anonymous memory, and the others map it. Unlike with an MPI window, each rank
releases the memory with the last array in it, and the limit of ``/dev/shm``, which is small in
containers, does not apply.
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
_CHUNK = 1 << 16  # number of elements summed at a time, so that they stay in the cache
_KEY = 16  # bytes at the end that prove to a rank that it has opened the right memory

# Stores become visible in their order on x86. Elsewhere a full memory barrier is needed between an
# array and the counter that says it is filled; Python has none. Linux executes one whenever a
# process enters its scheduler (smp_mb__after_spinlock in __schedule), but no manual promises it for
# sched_yield: test on such a machine before you rely on it.
_fence = (lambda: None) if platform.machine() in ("x86_64", "AMD64") else os.sched_yield


def share(host: Any, n_bytes: int) -> mmap.mmap | None:
    """Makes memory that the ranks of a host share; collective.

    Args:
        host: ``mpi4py.MPI.Comm`` of the ranks.
        n_bytes: the number of bytes.

    Returns:
        Writable memory of zeros on each rank; None if any of them cannot map it.
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
    """Opens another process's memory; in a container the path may be another process's file."""
    if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
        raise OSError(f"{path} is not the memory that was meant")
    return os.open(path, os.O_RDWR)


class SharedArray:
    """A flat array of each rank of a host, which all of them can see.

    It keeps the memory alive.

    Args:
        counters: for each rank of the host, a memoryview of the numbers of times that it has
            reached each stage of a sum, and the number of the slot that it uses.
        slots: for each rank of the host, its arrays; the rank uses one of them at a time.
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
        """Chooses one of this rank's arrays, which the others see after the next stage."""
        self._counters[self._rank][_SLOT] = slot

    def come_to(self, stage: int) -> None:
        """Shows the others that this rank has reached a stage once more."""
        _fence()
        self._counters[self._rank][stage] += 1

    def all_came_to(self, stage: int) -> bool:
        """Returns whether all others have reached the stage as often as this rank."""
        n = self._counters[self._rank][stage]
        for counters in self._counters:
            if counters[stage] < n:
                return False
        _fence()
        return True

    def meet(self, stage: int) -> Generator[None, None, None]:
        """Comes to a stage, and yields until all have."""
        self.come_to(stage)
        while not self.all_came_to(stage):
            yield

    def part(self, index: int, n_parts: int) -> list[Array]:
        """Returns, for each rank of the host, one of ``n_parts`` even parts of its array."""
        n = self.slots[0].size
        return self.at(slice(n * index // n_parts, n * (index + 1) // n_parts))

    def at(self, place: slice) -> list[Array]:
        """Returns, for each rank of the host, the elements of its array at a place."""
        return [
            slots[counters[_SLOT]][place]
            for slots, counters in zip(self._slots, self._counters, strict=True)
        ]

    def of_host(self) -> Array:
        """Returns the array of the host's first rank, which all may use together."""
        return self._slots[0][0]


def make_shared_arrays(
    host: Any, specifications: Iterable[tuple[int, DTypeLike]], n_slots: int = 1
) -> list[SharedArray] | None:
    """Makes arrays of zeros that the ranks of a host share; collective.

    Args:
        host: ``mpi4py.MPI.Comm`` of the ranks.
        specifications: pairs of a number of elements and a dtype.
        n_slots: the number of arrays of each rank for each of them. All but the first take no
            memory before they are used.

    Returns:
        The arrays; None if memory cannot be shared.
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

    Each part is summed by one rank, in the order of ranks, and written to the arrays of all ranks,
    which therefore have the same bits.

    Args:
        shared: the array.
        sums_between_hosts: for each part that this rank sums, a generator function that sums an
            array over the hosts; None for one host.
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
    """Sums a piece of shared arrays for each rank, as a generator, with the bits of
    :func:`sum_in_shared_memory`.

    The other pieces of the arrays are undefined afterwards.

    Args:
        shared: the array.
        places: for each part that this rank sums on its host, the place of the piece of one rank
            of each host, which may be empty.
        sum_between_hosts: a generator function that is called with the part and the sums over this
            host's ranks of its pieces; it returns the sum of this rank's over the hosts.
        own: the place of this rank's piece.
        slot: the index of this rank's array to sum; other ranks may use other indices.
    """
    shared.use(slot)
    yield from shared.meet(FILLED)
    for part, of_hosts in places.items():
        pieces = []
        for place in of_hosts:
            pieces.append(sum_part(*shared.at(place), copies=False))
        total = yield from sum_between_hosts(part, pieces)
        if total.size:  # a smaller host has no rank for this slice
            shared.slots[slot][own] = total
    yield from shared.meet(SUMMED)


def gather_in_shared_memory(
    shared: SharedArray, own: Array, piece: Array, exchanges: Iterable[Generator]
) -> Generator[None, None, None]:
    """Gathers a piece of each rank in one array of the host, as a generator.

    The array stays unchanged until this rank begins to gather again.

    Args:
        shared: the array.
        own: the place in it of this rank's piece.
        piece: the array that is copied there.
        exchanges: generators that exchange pieces with other hosts.
    """
    yield from shared.meet(FILLED)  # this rank has read the arrays of the previous gather
    own[...] = piece
    for exchange in exchanges:
        yield from exchange
    yield from shared.meet(SUMMED)


def sum_part(total: Array, *others: Array, copies: bool = True) -> Array:
    """Adds flat arrays to the first one; then copies the sum to them, while it is in the cache.

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
