"""The communicator of processes under ``mpirun``: the only file that uses mpi4py."""

import contextlib
import pickle

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.distributed import global_except_hook
from mpchain.distributed.communicators.arrays import byte_pieces, pieces
from mpchain.distributed.communicators.communicator import Communicator, Completed
from mpchain.distributed.communicators.sums import LibrarySum, SlicewiseSum

MOST_RANKS_SLICEWISE = 16
"""With more ranks the slices get small and the messages many: the MPI library's own sum is used."""


def load_mpi():
    """Returns ``mpi4py.MPI``; importing it initialises MPI."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            f"several ranks need mpi4py and an MPI library, but {error}: "
            "pip install 'mpchain[mpi]', or, on a cluster with its own MPI, pip install mpi4py"
        ) from error
    return MPI


class MpiCommunicator(Communicator):
    """Ranks that exchange NumPy arrays, CuPy arrays and objects by MPI.

    CuPy arrays are copied to host memory and back, unless the MPI library is CUDA-aware and the
    caller says so. Making one is collective. It installs
    :func:`mpchain.distributed.global_except_hook.add_hook` where there are several ranks, since
    the others would wait for ever for a rank that ended by an exception.

    Args:
        mpi_comm (mpi4py.MPI.Comm): the ranks.
        cuda_aware (bool): hand CuPy arrays to MPI as they are.
    """

    def __init__(self, mpi_comm, *, cuda_aware=False):
        super().__init__()
        self._mpi = load_mpi()
        self.mpi_comm = mpi_comm
        self.rank, self.size = mpi_comm.rank, mpi_comm.size
        self._cuda_aware = cuda_aware
        self._n_sums = 0
        self._sums = []
        # What is put together from messages here must not meet the user's messages on mpi_comm.
        self._messages = mpi_comm.Dup()
        self._find_hosts()
        if self.size > 1:
            global_except_hook.add_hook()

    def _find_hosts(self):
        on_host = self.mpi_comm.Split_type(self._mpi.COMM_TYPE_SHARED, self.rank)
        self.intra_rank, self.intra_size = on_host.rank, on_host.size
        leader = on_host.bcast(self.rank)
        on_host.Free()
        leaders = sorted(set(self.mpi_comm.allgather(leader)))
        self.inter_rank, self.inter_size = leaders.index(leader), len(leaders)

    def barrier(self):
        self.mpi_comm.Barrier()

    # Objects

    def bcast_obj(self, obj, max_buf_len=256 * 1024 * 1024, root=0):
        self._check_rank("bcast_obj", "root", root)
        data = np.frombuffer(pickle.dumps(obj, 5), np.uint8).copy() if self.rank == root else None
        size = np.array([0 if data is None else data.size], np.int64)
        self.mpi_comm.Bcast(size, root)
        if data is None:
            data = np.empty(size[0], np.uint8)
        for start in range(0, data.size, max_buf_len):
            self.mpi_comm.Bcast(data[start : start + max_buf_len], root)
        return obj if self.rank == root else pickle.loads(data)

    def gather_obj(self, obj, root=0):
        self._check_rank("gather_obj", "root", root)
        return self.mpi_comm.gather(obj, root)

    def allgather_obj(self, obj):
        return self.mpi_comm.allgather(obj)

    def scatter_obj(self, objs, root=0):
        self._check_rank("scatter_obj", "root", root)
        return self.mpi_comm.scatter(objs, root)

    def alltoall_obj(self, objs):
        return self.mpi_comm.alltoall(objs)

    def send_obj(self, obj, dest, tag=0):
        if dest == self.rank:
            super().send_obj(obj, dest, tag)
        else:
            self._check_rank("send_obj", "dest", dest)
            self.mpi_comm.send(obj, dest, tag)

    def recv_obj(self, source, status=None, tag=None):
        if source == self.rank:
            return super().recv_obj(source, status, tag)
        if source != self._mpi.ANY_SOURCE:
            self._check_rank("recv_obj", "source", source)
        return self.mpi_comm.recv(None, source, self._mpi.ANY_TAG if tag is None else tag, status)

    # Arrays

    def _send_header(self, header, dest, tag):
        self.mpi_comm.ssend(header, dest, tag)

    def _recv_header(self, source, tag):
        status = self._mpi.Status()
        header = self.recv_obj(source, status, tag)
        return header, status.Get_source()

    def _exchange(self, outgoing, incoming):
        with self._for_mpi(*(x for _, x in incoming), write=True) as received:
            with self._for_mpi(*(x for _, x in outgoing)) as sent:
                requests = [
                    self._messages.Irecv(piece, source, 0)  # sums under way have other tags
                    for (source, _), x in zip(incoming, received, strict=True)
                    for piece in byte_pieces(x)
                ]
                requests += [
                    self._messages.Isend(piece, dest, 0)
                    for (dest, _), x in zip(outgoing, sent, strict=True)
                    for piece in byte_pieces(x)
                ]
                self._mpi.Request.Waitall(requests)

    def _broadcast(self, array, root):
        with self._for_mpi(array, write=self.rank != root) as (buffer,):
            for piece in pieces(buffer):
                self.mpi_comm.Bcast(piece.view(np.uint8), root)

    def _sum(self, array):
        with self._for_mpi(array, write=True) as (buffer,):
            for piece in pieces(buffer):
                self.mpi_comm.Allreduce(self._mpi.IN_PLACE, piece)

    def _sum_at(self, array, root):
        with self._for_mpi(array, write=self.rank == root) as (buffer,):
            for piece in pieces(buffer):
                here = self.rank == root
                self.mpi_comm.Reduce(
                    self._mpi.IN_PLACE if here else piece, piece if here else None, root=root
                )

    def iallreduce(self, x):
        self._check_summable_in_place("iallreduce", x)
        if self.size == 1 or x.size == 0:
            return Completed()
        with self._for_mpi(x) as (buffer,):
            under_way = self._begin_sum(buffer, x)
        # A sum that the caller forgets must keep its buffers while messages may still arrive.
        self._sums = [other for other in self._sums if not other.is_complete] + [under_way]
        return under_way

    def _begin_sum(self, buffer, target):
        if self.size > MOST_RANKS_SLICEWISE or cuda.is_gpu_array(buffer):
            return LibrarySum(self._mpi, self.mpi_comm, buffer, target)
        # Sums under way at the same time are told apart by their tags.
        self._n_sums = (self._n_sums + 1) % 10_000
        return SlicewiseSum(self._mpi, self._messages, buffer, target, 2 * self._n_sums + 1)

    def _passes_as_it_is(self, array):
        return isinstance(array, np.ndarray) or self._cuda_aware

    @contextlib.contextmanager
    def _for_mpi(self, *arrays, write=False):
        """Yields buffers that MPI can use for ``arrays``; with ``write``, copies them back."""
        buffers = [x if self._passes_as_it_is(x) else cuda.to_cpu(x) for x in arrays]
        if any(map(cuda.is_gpu_array, buffers)):
            cuda.cupy.cuda.get_current_stream().synchronize()
        yield buffers
        if write:
            for x, buffer in zip(arrays, buffers, strict=True):
                if buffer is not x:
                    backend.copyto(x, buffer)

    def split(self, color, key):
        part = type(self)(self.mpi_comm.Split(color, key), **self._options())
        part._config.update(self._config)
        part._owns_mpi_comm = True
        return part

    _owns_mpi_comm = False

    def _options(self):
        return {"cuda_aware": self._cuda_aware}

    def finalize(self):
        """Frees the MPI communicators that were made here; collective."""
        if self._messages is not None:
            self._messages.Free()
            self._messages = None
            if self._owns_mpi_comm:
                self.mpi_comm.Free()


class DummyCommunicator(MpiCommunicator):
    """For benchmarks: gradients are not exchanged, all else is."""

    def iallreduce(self, x):
        self._check_summable_in_place("iallreduce", x)
        return Completed()
