"""The communicator that moves CuPy arrays by NCCL, and host arrays and objects by MPI."""

from mpchain.backends import cuda
from mpchain.distributed.communicators.communicator import Completed
from mpchain.distributed.communicators.mpi import MpiCommunicator

NCCL_TYPES = {
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
    "float16": "NCCL_FLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
}


class NcclCommunicator(MpiCommunicator):
    """Ranks with one GPU each.

    The GPU is the one that is current when the first collective on CuPy arrays is called, so that
    a program can choose it by ``intra_rank`` after it has made the communicator.

    Args:
        mpi_comm (mpi4py.MPI.Comm): the ranks.
        allreduce_grad_dtype: dtype in which gradients are summed; None: as elsewhere.
    """

    def __init__(self, mpi_comm, *, allreduce_grad_dtype=None):
        super().__init__(mpi_comm)
        self._nccl_comm = None
        self._stream = None
        self.set_config("allreduce_grad_dtype", allreduce_grad_dtype)

    def _options(self):
        return {"allreduce_grad_dtype": self.get_config("allreduce_grad_dtype")}

    def gradient_dtype(self, dtype):
        return self.get_config("allreduce_grad_dtype") or super().gradient_dtype(dtype)

    @property
    def _nccl(self):
        return cuda.cupy.cuda.nccl

    def _connect(self):
        """Returns NCCL's communicator; the first call is collective."""
        if self._nccl_comm is None:
            identity = self.bcast_obj(self._nccl.get_unique_id() if self.rank == 0 else None)
            self._nccl_comm = self._nccl.NcclCommunicator(self.size, identity, self.rank)
            self._stream = cuda.Stream(non_blocking=True)
        return self._nccl_comm

    def _type(self, array):
        return getattr(self._nccl, NCCL_TYPES[array.dtype.name])

    def _broadcast(self, array, root):
        if not cuda.is_gpu_array(array):
            super()._broadcast(array, root)
            return
        pointer, stream = array.data.ptr, _current_stream()
        self._connect().broadcast(pointer, pointer, array.size, self._type(array), root, stream.ptr)

    def _sum(self, array):
        if cuda.is_gpu_array(array):
            self._sum_on(array, _current_stream())
        else:
            super()._sum(array)

    def _sum_on(self, array, stream):
        pointer, dtype, op = array.data.ptr, self._type(array), self._nccl.NCCL_SUM
        self._connect().allReduce(pointer, pointer, array.size, dtype, op, stream.ptr)

    def _sum_at(self, array, root):
        if not cuda.is_gpu_array(array):
            super()._sum_at(array, root)
            return
        pointer, dtype, op = array.data.ptr, self._type(array), self._nccl.NCCL_SUM
        stream = _current_stream()
        self._connect().reduce(pointer, pointer, array.size, dtype, op, root, stream.ptr)

    def _exchange(self, outgoing, incoming):
        # Both ends of a message connected at the same place of the program, so they choose alike.
        def by_nccl(pair):
            return self._nccl_comm is not None and cuda.is_gpu_array(pair[1])

        super()._exchange(
            [pair for pair in outgoing if not by_nccl(pair)],
            [pair for pair in incoming if not by_nccl(pair)],
        )
        sent = [pair for pair in outgoing if by_nccl(pair)]
        received = [pair for pair in incoming if by_nccl(pair)]
        if sent or received:
            stream = _current_stream().ptr
            self._nccl.groupStart()
            for dest, x in sent:
                self._nccl_comm.send(x.data.ptr, x.size, self._type(x), dest, stream)
            for source, x in received:
                self._nccl_comm.recv(x.data.ptr, x.size, self._type(x), source, stream)
            self._nccl.groupEnd()

    def iallreduce(self, x):
        if not cuda.is_gpu_array(x):
            return super().iallreduce(x)
        self._check_summable_in_place("iallreduce", x)
        if self.size == 1:
            return Completed()
        self._connect()
        self._stream.wait_event(_current_stream().record())
        self._sum_on(x, self._stream)
        return _SumOnStream(self._stream.record())

    def finalize(self):
        """Destroys NCCL's communicator and frees those of MPI; collective."""
        if self._nccl_comm is not None:
            self._nccl_comm.destroy()
            self._nccl_comm = None
        super().finalize()


def _current_stream():
    return cuda.cupy.cuda.get_current_stream()


class _SumOnStream:
    """A sum that runs on a stream of its own."""

    def __init__(self, event):
        self._event = event

    def Test(self):
        return self._event.done

    def Wait(self):
        """Makes the current stream wait for the sum; the host goes on."""
        _current_stream().wait_event(self._event)
