"""The communicator that moves CuPy arrays by NCCL, and host arrays and objects by MPI."""

import os
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.distributed.communicators.arrays import check_array, contiguous
from mpchain.distributed.communicators.half_precision import HALF_PRECISION
from mpchain.distributed.communicators.mpi import MpiCommunicator
from mpchain.distributed.communicators.requests import Request
from mpchain.distributed.watch import GpuWork, watched
from mpchain.typing import Array, DTypeLike

NCCL_TYPES = {
    name: f"NCCL_{name.upper()}"
    for name in ("int32", "int64", "float16", "float32", "float64", "bfloat16")
}


@watched
class NcclCommunicator(MpiCommunicator):
    """Ranks with one GPU each, which exchange CuPy arrays by NCCL.

    A rank's GPU is that of the arrays of the first collective on CuPy arrays: a program can choose
    it by ``intra_rank`` after it has made the communicator.

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
        self._in_use = []  # (event, arrays) of work on that stream
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

    def _connect(self, x):
        """Returns NCCL's communicator for an array; the first call is collective."""
        if self._nccl_comm is None:
            self._device = x.device
            host, gpu = socket.gethostname(), x.device.pci_bus_id
            check_one_rank_per_gpu(self.allgather_obj((host, gpu)))
            identity = self.bcast_obj(self._nccl.get_unique_id() if self.rank == 0 else None)
            self._nccl_comm = self._nccl.NcclCommunicator(self.size, identity, self.rank)
            self._stream = cuda.Stream(non_blocking=True)
            if self._watch is not None:
                self._watch.gpu = GpuWork(self._nccl_comm, self._stream)
        if x.device != self._device:
            raise ValueError(
                f"NcclCommunicator: rank {self.rank} exchanges arrays of GPU {self._device.id}, "
                f"but this one is on GPU {x.device.id}"
            )
        return self._nccl_comm

    def _type(self, name):
        """Returns NCCL's number for a dtype."""
        return getattr(self._nccl, NCCL_TYPES[name])

    def _call(self, name, sent, received, *more, stream=None, dtype_name=None):
        """Calls a method of NCCL's communicator, on the current stream unless one is given."""
        dtype = self._type(dtype_name or sent.dtype.name)
        count = min(sent.size, received.size)  # of one rank
        with sent.device:
            pointers, stream = (sent.data.ptr, received.data.ptr), stream or _current_stream()
            getattr(self._connect(sent), name)(*pointers, count, dtype, *more, stream.ptr)

    def _begin(self, name, sent, received, *more, dtype_name=None):
        """Calls a method on the stream that runs beside later work of the current stream.

        Returns:
            An event after its work.
        """
        with sent.device:
            self._connect(sent)
            self._stream.wait_event(_current_stream().record())
            self._call(name, sent, received, *more, stream=self._stream, dtype_name=dtype_name)
            event = self._stream.record()
        # Memory that is dropped before is reused by the stream that it was allocated on.
        self._in_use = [work for work in self._in_use if not work[0].done]
        self._in_use.append((event, (sent, received)))
        return event

    def _broadcast(self, array, root):
        if cuda.is_gpu_array(array):
            self._call("broadcast", array, array, root)
        else:
            super()._broadcast(array, root)

    def _sum(self, array):
        if cuda.is_gpu_array(array):
            self._call("allReduce", array, array, self._nccl.NCCL_SUM)
        else:
            super()._sum(array)

    def _sum_at(self, array, root):
        if cuda.is_gpu_array(array):
            self._call("reduce", array, array, self._nccl.NCCL_SUM, root)
        else:
            super()._sum_at(array, root)

    def _exchange(self, outgoing, incoming):
        # Both ends of a message connected at the same place of the program, so they choose alike.
        def by_nccl(pair):
            return self._nccl_comm is not None and cuda.is_gpu_array(pair[1])

        super()._exchange(
            [pair for pair in outgoing if not by_nccl(pair)],
            [pair for pair in incoming if not by_nccl(pair)],
        )
        sent, received = (list(filter(by_nccl, pairs)) for pairs in (outgoing, incoming))
        if not sent and not received:
            return
        with self._device:
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
        with x.device:
            sent = x if narrow is None else narrow.encode(x)
        name = x.dtype.name if narrow is None else wire_dtype
        event = self._begin("allReduce", sent, sent, self._nccl.NCCL_SUM, dtype_name=name)
        return _OnStream(event, x, narrow and (lambda: narrow.decode(sent, x.dtype)))

    def ibcast(self, x: Array, root: int = 0) -> Request:
        if not cuda.is_gpu_array(x):
            return super().ibcast(x, root)
        self._check_rank("ibcast", "root", root)
        self._check_contiguous("ibcast", x)
        return _OnStream(self._begin("broadcast", x, x, root), x)

    def iallgather(self, x: Array) -> Request:
        if not cuda.is_gpu_array(x):
            return super().iallgather(x)
        with x.device:
            x = contiguous(check_array("iallgather", "x", x))
            gathered = cuda.cupy.empty((self.size, *x.shape), x.dtype)
        return _OnStream(self._begin("allGather", x, gathered), gathered)

    def ireduce_scatter(self, x: Array) -> Request:
        if not cuda.is_gpu_array(x):
            return super().ireduce_scatter(x)
        self._check_parts("ireduce_scatter", x)
        with x.device:
            total = cuda.cupy.empty(x.shape[1:], x.dtype)
        event = self._begin("reduceScatter", x, total, self._nccl.NCCL_SUM)
        return _OnStream(event, total)

    def finalize(self) -> None:
        """Destroys NCCL's communicator and frees those of MPI; collective."""
        if self._nccl_comm is not None:
            if self._watch is not None:
                self._watch.gpu = None
            self._nccl_comm.destroy()
            self._nccl_comm = None
            self._stream.synchronize()
            self._in_use = []
        super().finalize()


def check_one_rank_per_gpu(places: Sequence[tuple[str, str]]) -> None:
    """Raises RuntimeError if two ranks have the same place, a pair of host and GPU.

    NCCL itself only says "invalid usage".

    Example:
        >>> check_one_rank_per_gpu([("a", "0000:01:00.0"), ("b", "0000:01:00.0")])
    """
    # NCCL's own variable, which allows it.
    if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
        return
    for rank, place in enumerate(places):
        other = places.index(place)
        if other != rank:
            raise RuntimeError(
                f"NcclCommunicator: ranks {other} and {rank} use the same GPU, {place[1]} of host "
                f"{place[0]}, but NCCL needs one for each rank: choose it by "
                "mpchain.get_device(f'@cupy:{comm.intra_rank}').use(), start fewer ranks, or make "
                "the communicator by create_communicator('non_cuda_aware')"
            )


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
        with self.result.device:
            _current_stream().wait_event(self._event)
            if self._decode is not None:
                self.result[...], self._decode = self._decode(), None
        return self.result
