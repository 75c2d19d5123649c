"""Operations over the ranks that go on while something else is computed.

Each is a generator of its steps, which yields wherever it would have to wait. It goes on whenever a
request of its communicator is asked: MPI libraries do nothing by themselves.
"""

import dataclasses
import itertools
import os
from typing import Any

import numpy as np

from mpchain.distributed.communicators.arrays import byte_pieces, pieces

MOST_RANKS_SLICEWISE = 16
"""With more ranks the slices get small and the messages many: the MPI library's own sum is used."""


_IMPATIENT = 100  # looks, of a microsecond or two, before others are let run

_UNDER_WAY = []  # of all communicators: a rank that waits anywhere must let all of them go on


class PendingOperation:
    """An operation that is under way.

    Args:
        steps: generator of its steps; what it returns is the result.
    """

    def __init__(self, steps):
        self._steps = steps
        self.is_complete = False
        self.result = None
        # The list keeps buffers of what the caller forgets: messages may still arrive.
        _UNDER_WAY.append(self)
        self.go_on()

    def go_on(self):
        """Goes on as far as possible without waiting."""
        if not self.is_complete:
            try:
                next(self._steps)
            except StopIteration as end:
                self.result, self.is_complete, self._steps = end.value, True, None

    def Test(self):
        """Lets all operations go on; returns whether this one is complete."""
        progress_all()
        return self.is_complete

    def steps(self):
        """Steps of waiting for the result within another operation."""
        while not self.is_complete:
            yield
        return self.result

    def Wait(self):
        """Waits until the operation is complete, and returns its result."""
        wait_until(lambda: self.is_complete)
        return self.result


def progress_all():
    """Lets all operations that are under way go on as far as possible without waiting."""
    for operation in _UNDER_WAY:
        operation.go_on()
    _UNDER_WAY[:] = [operation for operation in _UNDER_WAY if not operation.is_complete]


def wait_until(is_done):
    """Waits while all operations that are under way go on: other ranks may wait for these."""
    for n_looks in itertools.count():
        if is_done():
            return
        progress_all()
        if n_looks > _IMPATIENT:
            os.sched_yield()  # other ranks may run, where there are more than cores, and threads


@dataclasses.dataclass
class Group:
    """Ranks that sum arrays by messages.

    Attributes:
        mpi (module): ``mpi4py.MPI``.
        comm (mpi4py.MPI.Comm): carries the messages; nothing else does.
        ranks (list of int): the ranks' numbers in ``comm``, in the order of summation.
        library_comm (mpi4py.MPI.Comm): of just these ranks, for sums by the MPI library.
    """

    mpi: Any
    comm: Any
    ranks: list
    library_comm: Any

    @property
    def index(self):
        """This rank's place among the ranks."""
        return self.ranks.index(self.comm.rank)

    def until_complete(self, requests):
        """Steps of waiting for MPI's requests."""
        while not self.mpi.Request.Testall(requests):
            yield

    def exchange(self, received, sent, tag):
        """Steps of sending one array to each rank and receiving one from each, its own excepted."""
        others = [i for i in range(len(self.ranks)) if i != self.index]
        requests = [
            self.comm.Irecv(x, self.ranks[i], tag) for i in others for x in byte_pieces(received[i])
        ] + [self.comm.Isend(x, self.ranks[i], tag) for i in others for x in byte_pieces(sent[i])]
        return self.until_complete(requests)


def sum_over(group, array, tag, narrow=None):
    """Steps of the sum of a contiguous host array over a group's ranks, in place.

    Args:
        group (Group): the ranks.
        array: what to sum.
        tag (int): tag of the messages; neither this nor the next must be in use.
        narrow: how messages are encoded
            (:mod:`~mpchain.distributed.communicators.half_precision`); None leaves them exact.
    """
    if len(group.ranks) > MOST_RANKS_SLICEWISE and narrow is None:
        return sum_by_library(group, array)
    return sum_slicewise(group, array, tag, narrow)


def sum_by_library(group, array):
    """As :func:`sum_over`, by ``Iallreduce``; also of CuPy arrays where MPI can."""
    requests = [group.library_comm.Iallreduce(group.mpi.IN_PLACE, x) for x in pieces(array)]
    yield from group.until_complete(requests)


def sum_slicewise(group, array, tag, narrow=None):
    """As :func:`sum_over`, made of messages.

    Each rank sums one slice of the array: it receives that slice from all others, adds in the order
    of the ranks, and sends the sum to all others. Each element is thus added once, and every rank
    has the same bits, which do not depend on how the array is divided into buckets. Measured with
    Open MPI on one host, it takes half of ``Iallreduce``'s time, and as long as ``Allreduce``.
    """
    flat, n = array.reshape(-1), len(group.ranks)
    slices = [flat[flat.size * i // n : flat.size * (i + 1) // n] for i in range(n)]
    mine = slices[group.index]
    yield from sum_slice(group, slices, mine, tag, narrow)
    if narrow is None:
        yield from group.exchange(slices, [mine] * n, tag + 1)
        return
    encoded = [np.empty(x.size, narrow.dtype) for x in slices]
    encoded[group.index] = narrow.encode(mine)
    yield from group.exchange(encoded, [encoded[group.index]] * n, tag + 1)
    for x, narrowed in zip(slices, encoded, strict=True):  # mine too: all have the same bits
        x[...] = narrow.decode(narrowed, flat.dtype)


def sum_slice(group, slices, out, tag, narrow=None):
    """Steps of the sum over the ranks of what each has for this rank, in the order of ranks.

    Args:
        group (Group): the ranks.
        slices: for each rank, the flat contiguous array that it is to sum.
        out: array that gets the sum; it may be the one that this rank has for itself.
        tag (int): tag of the messages.
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
    scratch = parts[1 if me == 0 else 0]  # not mine, which may be the caller's
    total = parts[0]
    for part in parts[1:-1]:
        total = np.add(total, part, out=scratch)
    np.add(total, parts[-1], out=out)
