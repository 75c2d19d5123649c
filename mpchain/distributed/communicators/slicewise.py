"""Summing an array over the ranks while something else is computed."""

import itertools

import numpy as np

from mpchain.distributed.communicators.arrays import pieces


class SlicewiseSum:
    """A sum over the ranks, in place, whose messages progress whenever :meth:`Test` is called.

    Each rank sums one slice of the array: it receives that slice from all others, adds in the order
    of the ranks, and sends the sum to all others. Each element is thus added once, and every rank
    has the same bits, which do not depend on how the array is divided into buckets. Measured
    with Open MPI on one host, it takes half of ``Iallreduce``'s time, and as long as ``Allreduce``.

    Args:
        mpi (module): ``mpi4py.MPI``.
        mpi_comm (mpi4py.MPI.Comm): carries the messages.
        array: contiguous host array.
        tag (int): this tag and the next must not be in use.
    """

    def __init__(self, mpi, mpi_comm, array, tag):
        self.array = array
        self._mpi, self._mpi_comm, self._tag = mpi, mpi_comm, tag
        rank, size = mpi_comm.rank, mpi_comm.size
        flat = array.reshape(-1)
        bounds = [flat.size * i // size for i in range(size + 1)]
        self._slices = [flat[i:j] for i, j in itertools.pairwise(bounds)]
        self._mine = self._slices[rank]
        self._others = [other for other in range(size) if other != rank]
        self._parts = [self._mine if i == rank else np.empty_like(self._mine) for i in range(size)]
        self._requests = self._start(self._parts, self._slices, tag)
        self._summed = False

    def _start(self, received, sent, tag):
        comm = self._mpi_comm
        pairs = [(other, piece) for other in self._others for piece in pieces(received[other])]
        requests = [comm.Irecv(piece, other, tag) for other, piece in pairs]
        pairs = [(other, piece) for other in self._others for piece in pieces(sent[other])]
        return requests + [comm.Isend(piece, other, tag) for other, piece in pairs]

    def _add(self):
        rank, parts = self._mpi_comm.rank, self._parts
        scratch = parts[1 if rank == 0 else 0]
        total = parts[0]
        for part in parts[1:-1]:
            total = np.add(total, part, out=scratch)
        np.add(total, parts[-1], out=self._mine)
        self._summed = True
        self._parts = None
        self._requests = self._start(self._slices, [self._mine] * len(self._slices), self._tag + 1)

    def Test(self):
        """Lets messages progress; returns whether the sum is complete."""
        if not self._mpi.Request.Testall(self._requests):
            return False
        if not self._summed:
            self._add()
            return self._mpi.Request.Testall(self._requests)
        return True

    def Wait(self):
        """Waits until the sum is complete."""
        self._mpi.Request.Waitall(self._requests)
        if not self._summed:
            self._add()
            self._mpi.Request.Waitall(self._requests)
