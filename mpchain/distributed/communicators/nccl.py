"""The communicator that moves CuPy arrays by NCCL, and host arrays and objects by MPI."""

from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.distributed.communicators.arrays import check_array, contiguous
from mpchain.distributed.communicators.communicator import Request
from mpchain.distributed.communicators.half_precision import HALF_PRECISION
from mpchain.distributed.communicators.mpi import MpiCommunicator
from mpchain.distributed.watch import GpuWork, watched
from mpchain.typing import Array, DTypeLike

NCCL_TYPES = {
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
    "float16": "NCCL_FLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "bfloat16": "NCCL_BFLOAT16",
}


@watched
class NcclCommunicator(MpiCommunicator):
    """Ranks with one GPU each, which exchange CuPy arrays by NCCL.

    The GPU is the one that is current when the first collective on CuPy arrays is called: a program
    can choose it by ``intra_rank`` after it has made the communicator.

    Args:
        mpi_comm: ``mpi4py.MPI.Comm`` of the ranks.
        allreduce_grad_dtype: dtype in which gradients are summed; None: as in other communicators.
            float16: they are sent and summed in float16, and kept in their own dtype.

    Example:
        ::

            comm = mpchain.create_communicator("pure_nccl")
            cupy.cuda.Device(comm.intra_rank).use()
            total = comm.allreduce(cupy.ones(3))
    """

    def __init__(self, mpi_comm: Any, *, allreduce_grad_dtype: DTypeLike | None = None):
        super().__init__(mpi_comm)
        self._nccl_comm = None
        self._stream = None
        self.set_config("allreduce_grad_dtype", allreduce_grad_dtype)

    def _options(self):
        return {"allreduce_grad_dtype": self.get_config("allreduce_grad_dtype")}

    def gradient_dtype(self, dtype: np.dtype) -> np.dtype:
        asked = self.get_config("allreduce_grad_dtype")
        if asked is None or asked == "float16":
            return super().gradient_dtype(dtype)
        return asked

    @property
    def _nccl(self):
        return cuda.cupy.cuda.nccl

    def _connect(self):
        """Returns NCCL's communicator; the first call is collective."""
        if self._nccl_comm is None:
            identity = self.bcast_obj(self._nccl.get_unique_id() if self.rank == 0 else None)
            self._nccl_comm = self._nccl.NcclCommunicator(self.size, identity, self.rank)
            self._stream = cuda.Stream(non_blocking=True)
            if self._watch is not None:
                self._watch.gpu = GpuWork(self._nccl_comm, self._stream)
        return self._nccl_comm

    def _type(self, name):
        """NCCL's number for a dtype."""
        return getattr(self._nccl, NCCL_TYPES[name])

    def _broadcast(self, array, root):
        if not cuda.is_gpu_array(array):
            super()._broadcast(array, root)
            return
        self._connect()
        self._broadcast_on(array, root, _current_stream())

    def _broadcast_on(self, array, root, stream):
        pointer, dtype = array.data.ptr, self._type(array.dtype.name)
        self._nccl_comm.broadcast(pointer, pointer, array.size, dtype, root, stream.ptr)

    def _sum(self, array):
        if cuda.is_gpu_array(array):
            self._sum_on(array, _current_stream(), array.dtype.name)
        else:
            super()._sum(array)

    def _sum_on(self, array, stream, dtype_name):
        pointer, dtype, op = array.data.ptr, self._type(dtype_name), self._nccl.NCCL_SUM
        self._connect().allReduce(pointer, pointer, array.size, dtype, op, stream.ptr)

    def _sum_at(self, array, root):
        if not cuda.is_gpu_array(array):
            super()._sum_at(array, root)
            return
        pointer, dtype, op = array.data.ptr, self._type(array.dtype.name), self._nccl.NCCL_SUM
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
                self._nccl_comm.send(x.data.ptr, x.size, self._type(x.dtype.name), dest, stream)
            for source, x in received:
                self._nccl_comm.recv(x.data.ptr, x.size, self._type(x.dtype.name), source, stream)
            self._nccl.groupEnd()

    def begin_sum(self, x: Array, wire_dtype: str | None = None) -> Request:
        if not cuda.is_gpu_array(x):
            return super().begin_sum(x, wire_dtype)
        if self.size == 1 or x.size == 0:
            return Request(x)
        narrow = HALF_PRECISION.get(wire_dtype)
        sent = x if narrow is None else narrow.encode(x)
        name = x.dtype.name if narrow is None else wire_dtype
        self._on_own_stream(lambda stream: self._sum_on(sent, stream, name))
        return _OnStream(
            self._stream.record(), x, narrow and (lambda: narrow.decode(sent, x.dtype))
        )

    def ibcast(self, x: Array, root: int = 0) -> Request:
        if not cuda.is_gpu_array(x):
            return super().ibcast(x, root)
        self._check_rank("ibcast", "root", root)
        self._check_contiguous("ibcast", x)
        self._on_own_stream(lambda stream: self._broadcast_on(x, root, stream))
        return _OnStream(self._stream.record(), x)

    def iallgather(self, x: Array) -> Request:
        if not cuda.is_gpu_array(x):
            return super().iallgather(x)
        x = contiguous(check_array("iallgather", "x", x))
        gathered = cuda.cupy.empty((self.size, *x.shape), x.dtype)
        self._on_own_stream(
            lambda stream: self._nccl_comm.allGather(
                x.data.ptr, gathered.data.ptr, x.size, self._type(x.dtype.name), stream.ptr
            )
        )
        return _OnStream(self._stream.record(), gathered)

    def ireduce_scatter(self, x: Array) -> Request:
        if not cuda.is_gpu_array(x):
            return super().ireduce_scatter(x)
        self._check_parts("ireduce_scatter", x)
        total = cuda.cupy.empty(x.shape[1:], x.dtype)
        dtype, op = self._type(x.dtype.name), self._nccl.NCCL_SUM
        self._on_own_stream(
            lambda stream: self._nccl_comm.reduceScatter(
                x.data.ptr, total.data.ptr, total.size, dtype, op, stream.ptr
            )
        )
        return _OnStream(self._stream.record(), total)

    def _on_own_stream(self, begin):
        """Begins an operation that runs beside later work of the current stream."""
        self._connect()
        self._stream.wait_event(_current_stream().record())
        begin(self._stream)

    def finalize(self) -> None:
        """Destroys NCCL's communicator and frees those of MPI; collective."""
        if self._nccl_comm is not None:
            if self._watch is not None:
                self._watch.gpu = None
            self._nccl_comm.destroy()
            self._nccl_comm = None
        super().finalize()


def _current_stream():
    return cuda.cupy.cuda.get_current_stream()


class _OnStream(Request):
    """An operation on another stream, for which the host need not wait.

    Args:
        event: an event after the operation.
        result: its array.
        decode: function that returns the content of the result, to be called afterwards.
    """

    def __init__(self, event, result, decode=None):
        super().__init__(result)
        self._event, self._decode = event, decode

    @property
    def is_complete(self) -> bool:
        """Whether the result can be used without waiting."""
        return self._event.done and self._decode is None

    def Test(self) -> bool:
        if self._event.done:
            self.Wait()
        return self.is_complete

    def Wait(self) -> Array:
        """Makes the current stream wait, and returns the result.

        As the host does not wait, all ranks begin later operations in the same order.
        """
        _current_stream().wait_event(self._event)
        if self._decode is not None:
            self.result[...], self._decode = self._decode(), None
        return self.result
