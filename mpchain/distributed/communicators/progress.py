"""Operations over the ranks that progress in the background.

Each operation is a generator that yields wherever it would have to wait. It continues only when the
program calls a method of a request, because MPI libraries do nothing by themselves.
"""

import dataclasses
import functools
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from mpchain.distributed.communicators.arrays import byte_pieces, pieces
from mpchain.distributed.communicators.requests import Request
from mpchain.distributed.watch import losses
from mpchain.observers import observed, span
from mpchain.typing import Array
from mpchain.utils.work_clock import waiting

SPARSE = "sparse"
"""Argument of :func:`sum_over` for arrays that are mostly 0."""

MOST_AT_ONCE = 16
"""The most ranks that sum in one stage, in which each sends messages to all others; a prime factor
of the number of ranks may be greater."""

_SPINS = 100  # polls, of a microsecond or two each, before a rank yields its core briefly
_YIELDS = 300  # polls before a rank sleeps
_NAP = 50e-6  # seconds that a waiting rank sleeps
# If a host has more ranks than cores, a waiting rank that polls takes time from the ranks that it
# waits for. Such a rank polls only a few times, and then sleeps for a fraction of its wait so far.
_YIELDS_IN_A_CROWD = 20
_SHARE_OF_WAIT, _LONGEST_NAP = 1 / 8, 5e-3
_HOST = {"is crowded": False}

# This dict maps a thread to its pending operations, of all communicators. A rank that waits
# anywhere must let the operations of its own thread continue, but no others: another thread may be
# in the middle of a step.
_PENDING = {}


def _of_this_thread():
    return _PENDING.setdefault(threading.get_ident(), [])


class PendingOperation(Request):
    """The request of an operation in the background.

    The thread that began the operation advances it; another thread takes over when it tests or
    waits for the request.

    Args:
        steps: generator of its steps, which returns the result.

    Example:
        >>> def count():
        ...     yield
        ...     return "done"
        >>> PendingOperation(count()).Wait()
        'done'
    """

    is_complete = False

    def __init__(self, steps: Generator[None, None, Any]):
        super().__init__()
        self._steps: Iterator[None] = steps
        self._turn = threading.Lock()
        # The list keeps the buffers of operations whose request the caller drops, because messages
        # may still arrive.
        self._list = _of_this_thread()
        self._list.append(self)
        self.go_on()

    @observed("progress", "progress")
    def go_on(self) -> None:
        """Advances this operation as far as possible without waiting."""
        if not self._turn.acquire(blocking=False):
            return  # another thread is advancing it
        try:
            if not self.is_complete:
                next(self._steps)
        except StopIteration as end:
            self.result, self.is_complete, self._steps = end.value, True, iter(())
        except Exception as error:
            losses.raise_loss_behind(error)
            raise
        finally:
            self._turn.release()

    def Test(self) -> bool:
        """Advances all operations; returns whether this operation is complete."""
        self._take_over()
        progress_all()
        return self.is_complete

    def steps(self) -> Generator[None, None, Any]:
        while not self.is_complete:
            yield
        return self.result

    @observed("wait", "an operation")
    def Wait(self) -> Any:
        if not self.is_complete:
            self._take_over()
            wait_until(lambda: self.is_complete)
        return self.result

    def _take_over(self):
        mine = _of_this_thread()
        if self._list is not mine and not self.is_complete:
            others, self._list = self._list, mine
            mine.append(self)
            if self in others:
                others.remove(self)


def progress_all() -> None:
    """Advances all operations of this thread as far as possible without waiting."""
    mine = _PENDING.get(threading.get_ident())
    if not mine:
        return
    for operation in mine:
        operation.go_on()
    mine[:] = [op for op in mine if not op.is_complete and op._list is mine]


def forget_all() -> None:
    """Drops all operations of this thread, because lost ranks will never complete them.

    >>> forget_all()
    """
    _of_this_thread().clear()


def wait_until(is_done: Callable[[], bool]) -> None:
    """Waits while all operations of this thread continue, since other ranks may wait for them.

    A rank that waits for a long time yields its core to other processes.

    Raises:
        RanksLost: ranks are lost, and the communicator is elastic.

    >>> wait_until(lambda: True)
    """
    try:
        if is_done():
            return
        with waiting(), span("wait", "other ranks"):
            _wait_until(is_done)
    except Exception as error:
        losses.raise_loss_behind(error)
        raise


def share_cores(n_ranks: int) -> None:
    """Tells waiting ranks how many ranks this host has: if it has fewer cores, they sleep sooner.

    >>> share_cores(1)
    """
    _HOST["is crowded"] = n_ranks > (os.cpu_count() or 1)


def _wait_until(is_done):
    crowded = _HOST["is crowded"]
    spins, yields = (0, _YIELDS_IN_A_CROWD) if crowded else (_SPINS, _YIELDS)
    begun, nap = None, _NAP
    for n_looks in itertools.count():
        if is_done():
            return
        progress_all()
        if n_looks > yields:
            losses.check()
            if crowded:
                now = time.perf_counter()
                begun = now if begun is None else begun
                nap = min(max(_NAP, (now - begun) * _SHARE_OF_WAIT), _LONGEST_NAP)
            time.sleep(nap)
        elif n_looks > spins:
            os.sched_yield()


@dataclasses.dataclass
class Group:
    """Ranks that sum arrays by messages.

    Attributes:
        mpi: the module ``mpi4py.MPI``.
        comm: ``mpi4py.MPI.Comm`` that carries these messages and no others.
        ranks: the ranks' numbers in ``comm``, in the order of summation.
        library_comm: ``mpi4py.MPI.Comm`` of just these ranks, for collectives of the MPI library;
            None if the group uses no such collectives.
        index: the index of this rank in ``ranks``.
    """

    mpi: Any
    comm: Any
    ranks: list[int]
    library_comm: Any = None

    def __post_init__(self):
        self.index = self.ranks.index(self.comm.rank)

    @functools.cached_property
    def stages(self) -> list["Group"]:
        """The groups of this rank in the stages of a sum, of at most :data:`MOST_AT_ONCE` ranks.

        If each index is written in the mixed radix of the factors of the number of ranks, a group
        holds the ranks that differ in one digit. A prime factor above the limit makes a group
        larger.
        """
        stages, stride = [], 1
        for n in _factors(len(self.ranks)):
            first = self.index - self.index // stride % n * stride
            ranks = self.ranks[first : first + n * stride : stride]
            stages.append(Group(self.mpi, self.comm, ranks))
            stride *= n
        return stages

    def until_complete(self, requests: list) -> Generator[None, None, None]:
        """Waits, as a generator, for MPI's requests."""
        while not self.mpi.Request.Testall(requests):
            yield

    def exchange(self, received: Sequence[Array], sent: Sequence[Array], tag: int) -> Generator:
        """Sends an array to each other rank and receives one from each of them, as a generator."""
        others = [i for i in range(len(self.ranks)) if i != self.index]
        requests = [
            self.comm.Irecv(x, self.ranks[i], tag) for i in others for x in byte_pieces(received[i])
        ] + [self.comm.Isend(x, self.ranks[i], tag) for i in others for x in byte_pieces(sent[i])]
        return self.until_complete(requests)


def _factors(n):
    """Returns the factors of ``n``, none greater than :data:`MOST_AT_ONCE` if possible."""
    if n > MOST_AT_ONCE:
        for factor in range(math.isqrt(n), 1, -1):
            if n % factor == 0:
                return _factors(factor) + _factors(n // factor)
    return [n]


def sum_by_library(group: Group, array: Array) -> Generator[None, None, None]:
    """Does the same as :func:`sum_over` by ``Iallreduce``; accepts CuPy arrays if MPI is
    CUDA-aware."""
    requests = [group.library_comm.Iallreduce(group.mpi.IN_PLACE, x) for x in pieces(array)]
    yield from group.until_complete(requests)


def sum_over(
    group: Group, array: Array, tag: int, narrow: Any = None
) -> Generator[None, None, None]:
    """Sums a contiguous host array over a group's ranks, in place, as a generator.

    Each rank sums one slice of the array: it receives that slice from all other ranks, adds in the
    order of the ranks, and sends the sum to all other ranks. Each element is thus summed by one
    rank, and every rank gets the same bits, which do not depend on how gradients are divided into
    buckets. Measured with Open MPI on one host, it takes half of the time of ``Iallreduce``, and as
    long as ``Allreduce``. Its sums may begin in any order, because their messages have tags; sums
    of the library may not.

    With many ranks the slices would be small and the messages many. Such groups sum in stages,
    which send the same amount of data.

    Args:
        group: the group of the ranks.
        array: the array to sum.
        tag: tag of the messages; neither this tag nor the next may be in use.
        narrow: the encoding of messages (:mod:`~mpchain.distributed.communicators.arrays`), which
            are then sent in one stage, so that they are rounded once; :data:`SPARSE` sends only
            nonzero elements; None sends all elements exactly.
    """
    if narrow is SPARSE:
        yield from _sum_sparse(group, array.reshape(-1), tag)
        return
    if narrow is None:
        yield from _sum_in_stages(group.stages, array.reshape(-1), tag)
        return
    slices = _slices(group, array.reshape(-1))
    mine = slices[group.index]
    yield from sum_slice(group, slices, mine, tag, narrow)
    encoded = [np.empty(x.size, narrow.dtype) for x in slices]
    encoded[group.index] = narrow.encode(mine)
    yield from group.exchange(encoded, [encoded[group.index]] * len(slices), tag + 1)
    # This rank's own slice is rounded too, so that all ranks have the same bits.
    for x, narrowed in zip(slices, encoded, strict=True):
        x[...] = narrow.decode(narrowed, array.dtype)


def _sum_sparse(group, flat, tag):
    """Sums arrays whose elements are mostly 0: each rank sends its nonzero elements to all
    ranks."""
    index = np.flatnonzero(flat)
    # Values and indices are sent in one message, so the bits of the values are read as integers.
    integers = np.dtype(f"int{8 * flat.itemsize}")
    own = np.concatenate([index.astype(integers), flat[index].view(integers)])
    sizes = [np.array([own.size]) for _ in group.ranks]
    yield from group.exchange(sizes, [sizes[group.index]] * len(sizes), tag)
    messages = [np.empty(size[0], integers) for size in sizes]
    messages[group.index] = own
    yield from group.exchange(messages, [own] * len(messages), tag + 1)
    flat[index] = 0
    for message in messages:  # all ranks add in the same order, and so get the same bits
        index, values = message.reshape(2, -1)
        flat[index] += values.view(flat.dtype)


def _sum_in_stages(stages, flat, tag):
    group, *further = stages
    slices = _slices(group, flat)
    mine = slices[group.index]
    yield from sum_slice(group, slices, mine, tag)
    if further:
        yield from _sum_in_stages(further, mine, tag)
    yield from group.exchange(slices, [mine] * len(slices), tag + 1)


def _slices(group, flat):
    """Cuts a flat array into one part for each rank of a group."""
    n = len(group.ranks)
    return [flat[flat.size * i // n : flat.size * (i + 1) // n] for i in range(n)]


def sum_slice(
    group: Group, slices: list[Array], out: Array, tag: int, narrow: Any = None
) -> Generator[None, None, None]:
    """Sums this rank's slice over the ranks, in the order of the ranks, as a generator.

    Args:
        group: the group of the ranks.
        slices: for each rank, the flat contiguous array of this rank's addends that it must sum.
        out: array that gets the sum; it may be this rank's own slice.
        tag: tag of the messages.
        narrow: see :func:`sum_over`.
    """
    me, mine = group.index, slices[group.index]
    if narrow is None:
        parts = [mine if i == me else np.empty_like(mine) for i in range(len(slices))]
        yield from group.exchange(parts, slices, tag)
    else:
        encoded = [np.empty(mine.size, narrow.dtype) for _ in slices]
        yield from group.exchange(encoded, [narrow.encode(x) for x in slices], tag)
        parts = [narrow.decode(x, mine.dtype) for x in encoded]
        parts[me] = mine
    scratch = parts[1 if me == 0 else 0]  # the caller may own this rank's slice
    total = parts[0]
    for part in parts[1:-1]:
        total = np.add(total, part, out=scratch)
    np.add(total, parts[-1], out=out)


def sum_pieces(
    stages: list[Group], pieces: list[Array], tag: int, narrow: object = None
) -> Generator[None, None, Array]:
    """Sums a segment for each rank, as a generator that returns the sum for this rank.

    Args:
        stages: :attr:`Group.stages` of the ranks; empty for one rank.
        pieces: this rank's addends, one flat array for each rank; their sizes may differ, but must
            be the same on all ranks.
        tag: tag of the messages.
        narrow: see :func:`sum_over`.
    """
    if not stages:
        return pieces[0]
    group, *further = stages
    rows = [pieces[i :: len(group.ranks)] for i in range(len(group.ranks))]
    joined = [_joined(row) for row in rows]
    total = np.empty_like(joined[group.index])
    yield from sum_slice(group, joined, total, tag, narrow)
    mine = _cut(total, [x.size for x in rows[group.index]])
    return (yield from sum_pieces(further, mine, tag, narrow))


def exchange_pieces(
    stages: list[Group], pieces: list[Array], tag: int
) -> Generator[None, None, None]:
    """Gathers a segment from each rank, as a generator; this rank must have filled its own.

    Args:
        stages: :attr:`Group.stages` of the ranks; empty for one rank.
        pieces: flat contiguous arrays, one for each rank, with the same sizes on all ranks.
        tag: tag of the messages.
    """
    if not stages:
        return
    group, *further = stages
    n = len(group.ranks)
    yield from exchange_pieces(further, pieces[group.index :: n], tag)
    own = _joined(pieces[group.index :: n])
    if not further:
        yield from group.exchange(pieces, [own] * n, tag)
        return
    rows = [pieces[i::n] for i in range(n)]
    joined = [np.empty(sum(x.size for x in row), own.dtype) for row in rows]
    joined[group.index] = own
    yield from group.exchange(joined, [own] * n, tag)
    for row, x in zip(rows, joined, strict=True):
        for piece, values in zip(row, _cut(x, [y.size for y in row]), strict=True):
            piece[...] = values


def _joined(arrays):
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _cut(array, sizes):
    ends = list(itertools.accumulate(sizes, initial=0))
    return [array[begin:end] for begin, end in itertools.pairwise(ends)]
