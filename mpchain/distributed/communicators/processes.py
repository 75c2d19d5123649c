"""Communicators of a process and the processes that it has started, without MPI."""

import functools
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.distributed.communicators.arrays import check_contiguous, on_gpu_of_arrays
from mpchain.distributed.communicators.communicator import Communicator
from mpchain.distributed.communicators.nccl import OverNccl
from mpchain.distributed.communicators.requests import Request
from mpchain.distributed.shared_memory import make_shared_arrays, sum_part
from mpchain.typing import Array, DTypeLike


class ProcessCommunicator(Communicator):
    """Rank 0, and the processes of this host that it has started.

    The processes send objects through pipes, and arrays of :meth:`make_buffers` through shared
    memory. This class has only barriers, broadcasts, sums, and gathers of objects on all ranks; all
    other methods that communicate raise NotImplementedError. If another process fails, the next
    collective of rank 0 raises the exception of that process.

    Args:
        rank, size: the rank of this process, and the number of ranks.
        pipes: at rank 0 the :class:`~mpchain.iterators.worker.Worker` of each other rank, in the
            order of the ranks; at other ranks the pipe that the worker's function got.

    Example:
        >>> from mpchain.distributed.communicators.processes import ProcessCommunicator
        >>> ProcessCommunicator(0, 1, []).allgather_obj("from rank 0")
        ['from rank 0']
    """

    def __init__(self, rank: int, size: int, pipes: Any):
        super().__init__()
        self.rank = self.intra_rank = rank
        self.size = self.intra_size = size
        self._pipes = pipes
        # This dict maps a buffer's address to its shared array and the index of this rank's slot.
        self._places = {}

    def allgather_obj(self, obj: Any) -> list:
        if self.rank > 0:
            self._pipes.send(obj)
            return self._pipes.recv()
        objs = [obj, *(worker.receive() for worker in self._pipes)]
        for worker in self._pipes:
            worker.send(objs)
        return objs

    def barrier(self) -> None:
        self.allgather_obj(None)

    def bcast_obj(self, obj: object, max_buf_len: int = 0, root: int = 0) -> Any:
        self.check_rank("bcast_obj", "root", root)
        return self.allgather_obj(obj if self.rank == root else None)[root]

    def ibcast(self, x: Array, root: int = 0) -> Request:
        self.check_rank("ibcast", "root", root)
        check_contiguous("ibcast", x)
        self._broadcast(x, root)
        return Request(x)

    def begin_sum(self, x: Array, wire_dtype: str | None = None) -> Request:
        self._sum(x)
        return Request(x)

    def make_buffers(
        self, specifications: Iterable[tuple[int, DTypeLike]], n_slots: int = 1
    ) -> list[Array]:
        specifications = list(specifications)
        shared = make_shared_arrays(_AsMpi(self), specifications, n_slots)
        if shared is None:
            return super().make_buffers(specifications, n_slots)
        places = [(of_all, slot) for of_all in shared for slot in range(n_slots)]
        arrays = [of_all.slots[slot] for of_all, slot in places]
        self._places |= zip([x.ctypes.data for x in arrays], places)
        return arrays

    def _share(self, array):
        """Returns the shared array of a buffer from :meth:`make_buffers` when all ranks have
        arrived; None for any other array."""
        is_on_host = isinstance(array, np.ndarray)
        shared, slot = self._places.get(is_on_host and array.ctypes.data, (None, 0))
        if shared is not None:
            shared.use(slot)
            self.barrier()
        return shared

    def _broadcast(self, array, root):
        shared = self._share(array)
        if shared is None:
            array[...] = self.bcast_obj(array, root=root)
            return
        if self.rank != root:
            array.reshape(-1)[...] = shared.at(slice(None))[root]
        self.barrier()

    def _sum(self, array):
        shared = self._share(array)
        if shared is None:
            array[...] = functools.reduce(operator.add, self.allgather_obj(array))
            return
        sum_part(*shared.part(self.rank, self.size))
        self.barrier()


class _AsMpi:
    """The few methods of an MPI communicator that making shared memory needs."""

    def __init__(self, comm):
        self.rank, self.size, self._comm = comm.rank, comm.size, comm
        self.bcast = comm.bcast_obj

    def Allgather(self, sent, received):
        received[...] = np.reshape(self._comm.allgather_obj(sent), received.shape)


def _refused(name):
    def refuse(self, *args, **kwargs):
        raise NotImplementedError(
            f"ProcessCommunicator has no {name}; use mpchain.create_communicator under mpirun"
        )

    return refuse


for _name in (
    "alltoall_obj gather_obj scatter_obj ibarrier iallgather ireduce_scatter send_obj recv_obj "
    "reduce renewed split _move"
).split():
    setattr(ProcessCommunicator, _name, _refused(_name))


@on_gpu_of_arrays
class GpuProcessCommunicator(OverNccl, ProcessCommunicator):
    """A :class:`ProcessCommunicator` with one GPU per rank, which moves CuPy arrays with NCCL.

    Args:
        rank, size, pipes: see :class:`ProcessCommunicator`.
        binding: see :class:`NcclCommunicator`.
    """

    def make_buffers(
        self, specifications: Iterable[tuple[int, DTypeLike]], n_slots: int = 1
    ) -> list[Array]:
        """Makes arrays on the current GPU."""
        return [cuda.cupy.zeros(n, dtype) for n, dtype in specifications for _ in range(n_slots)]
