"""The communicator that moves CuPy arrays with NCCL, and host arrays and objects with MPI."""

import contextlib
import functools
import os
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from mpchain.backends import cuda
from mpchain.backends.nccl_bindings import (
    MOST_IN_GROUP,
    SUM,
    TYPES,
    Connection,
    new_identity,
)
from mpchain.distributed.communicators import arrays, progress
from mpchain.distributed.communicators.mpi import MpiCommunicator
from mpchain.distributed.communicators.requests import Request
from mpchain.distributed.objects import allgather
from mpchain.distributed.watch import GpuWork, watched
from mpchain.observers import current
from mpchain.typing import Array, DTypeLike

if TYPE_CHECKING:
    _Base = MpiCommunicator  # the base class may also be ProcessCommunicator
else:
    _Base = object


class OverNccl(_Base):
    """The part of a communicator that moves CuPy arrays with NCCL; its other base class does the
    rest.

    Args:
        ranks, options: arguments of the other base class.
        allreduce_grad_dtype, binding: see :class:`NcclCommunicator`.
    """

    _nccl: Any = None
    _stream: Any = None
    _members: tuple[int, ...] | None = None
    uses_nccl = True

    def __init__(
        self,
        *ranks: Any,
        allreduce_grad_dtype: DTypeLike | None = None,
        binding: str | None = None,
        **options: Any,
    ):
        super().__init__(*ranks, **options)
        self._binding = binding
        # This dict maps the event after work on NCCL's own stream to a tuple of the arrays that the
        # work uses and the stream that was current.
        self._in_use = {}
        self._graphs = weakref.WeakSet()  # graphs that contain work of this communicator
        self.set_config("allreduce_grad_dtype", allreduce_grad_dtype)

    def _options(self):
        return {
            "allreduce_grad_dtype": self.get_config("allreduce_grad_dtype"),
            "binding": self._binding,
        }

    def gradient_dtype(self, dtype: np.dtype) -> np.dtype:
        asked = self.get_config("allreduce_grad_dtype")
        if asked is None or asked == "float16":
            return super().gradient_dtype(dtype)
        return asked

    def _connect(self, x) -> Any:
        """Returns the connection that moves an array; the first call is collective."""
        if current.graph is not None:
            current.graph.joins(self)
            self._graphs.add(current.graph)
        if self._nccl is None:
            self.gpu = x.device
            host, gpu = socket.gethostname(), x.device.pci_bus_id
            identity = cuda.cupy.cuda.runtime.getDeviceProperties(x.device.id).get("uuid", b"")
            check_one_rank_per_gpu(self.allgather_obj((host, gpu, identity)))
            identity = self.bcast_obj(new_identity(self._binding) if self.rank == 0 else None)
            connect = functools.partial(Connection, self.size, identity, self.rank, self._binding)
            self._use(self._unless_lost(connect))
        if x.device != self.gpu:
            raise ValueError(
                f"NcclCommunicator: rank {self.rank} uses arrays of GPU {self.gpu.id}, "
                f"but got an array on GPU {x.device.id}; move it to GPU {self.gpu.id}"
            )
        return self._nccl

    def _use(self, nccl):
        self._nccl, self._members = nccl, self._world_ranks()
        self._stream = self._stream or cuda.Stream(non_blocking=True)
        if self.watch is not None:
            self.watch.gpu = GpuWork(nccl, self.gpu, self._stream)

    def _world_ranks(self):
        return None if self.watch is None else self.watch.world_ranks

    # These methods handle lost ranks.

    def end_work(self, *, for_good: bool = False) -> None:
        if self._nccl is not None:
            self._nccl.revoke()
            if for_good:
                self._release_graphs()
                self._stream.synchronize()
                self._nccl.abort()

    def _unless_lost(self, connect: Callable[[], Connection]) -> Connection:
        """Returns a function's result, or raises RanksLost and abandons the function: NCCL waits
        for lost ranks when it makes a communicator, and nothing can end this wait."""
        if not self.is_elastic:
            return connect()
        future = Future()

        def call():
            try:
                with self.gpu:
                    future.set_result(connect())
            except Exception as error:  # the waiting thread raises the error again
                future.set_exception(error)

        threading.Thread(target=call, daemon=True).start()
        progress.wait_until(future.done)
        return future.result()

    def join(self, mpi_comm: object) -> None:
        super().join(mpi_comm)
        if self.is_elastic:
            self._shrink_connection()

    def _shrink_connection(self):
        """Shrinks NCCL's communicator to the surviving ranks after ranks are lost; collective.

        If NCCL cannot shrink, or not all ranks have the same communicator of NCCL, the next
        collective on CuPy arrays makes a new one.
        """
        can_shrink = self._nccl is not None and self._nccl.can_shrink and self.size > 1
        held = allgather(self.mpi_comm, self._members if can_shrink else None)
        before, self._nccl = self._nccl, None
        if before is None:
            return
        with self.gpu:
            self._stream.synchronize()
        self._in_use = {}
        self._release_graphs()
        if None in held or len(set(held)) > 1:
            before.abort()
            return
        left = self._world_ranks() or ()
        lost = [number for number, rank in enumerate(self._members or ()) if rank not in left]
        self._use(self._unless_lost(functools.partial(before.shrink, lost)))

    def agree(self) -> None:
        if self.is_elastic and self._nccl is not None:
            # Otherwise the operations that are pending on the GPU might never be completed.
            with self.gpu:
                _current_stream().synchronize()
                self._stream.synchronize()
        super().agree()

    def renewed(self) -> "OverNccl":
        self._disconnect()
        new = super().renewed()
        new._binding, new._in_use, new._graphs = self._binding, {}, weakref.WeakSet()
        return new

    @property
    def is_connected(self) -> bool:
        """Whether NCCL's communicator exists; the first collective on CuPy arrays creates it."""
        return self._nccl is not None

    def _release_graphs(self):
        for graph in self._graphs:
            graph.release()
        self._graphs.clear()

    # These methods call NCCL's collectives.

    def _run(self, name, sent, received, *more, stream=None, dtype_name=None):
        """Calls a collective of NCCL, on the current stream unless one is given."""
        count = min(sent.size, received.size)  # the number of elements of one rank
        pointers, dtype = (sent.data.ptr, received.data.ptr), TYPES[dtype_name or sent.dtype.name]
        stream = stream or _current_stream()
        self._connect(sent).run(name, *pointers, count, dtype, *more, stream=stream.ptr)

    def _begin(self, name, sent, received, *more, dtype_name=None):
        """Calls a collective on NCCL's own stream, beside later work of the current stream.

        Returns:
            The event after the collective's work.
        """
        self._enter()
        self._connect(sent)
        with self._beside(sent, received) as event:
            self._run(name, sent, received, *more, stream=self._stream, dtype_name=dtype_name)
        return event

    @contextlib.contextmanager
    def _beside(self, *arrays):
        """Context manager: work in the block runs on NCCL's stream after the current stream's work.

        Yields the event that is recorded after the work. The arrays are kept until then, because
        the stream on which an array was allocated reuses the memory of a freed array.
        """
        made = cuda.Event(disable_timing=True)
        made.record(_current_stream())
        self._stream.wait_event(made)
        event = cuda.cupy.cuda.Event(disable_timing=True)
        try:
            yield event
        finally:  # some of the work may have started before an error
            event.record(self._stream)
            if current.graph is None:
                in_use = self._in_use
                self._in_use = {other: kept for other, kept in in_use.items() if not other.done}
            self._kept()[event] = *arrays, _current_stream()

    def _wait_for(self, event):
        """Makes the current stream wait for the event that follows a collective."""
        stream = _current_stream()
        stream.wait_event(event)
        kept = self._kept()
        if event in kept and kept[event][-1] == stream:
            del kept[event]  # later uses of the memory come after the event

    def _kept(self):  # a capture keeps its own arrays, because its events must not be queried
        return self._in_use if current.graph is None else current.graph.in_use

    def _broadcast(self, array, root):
        if cuda.is_gpu_array(array):
            self._run("broadcast", array, array, root)
        else:
            super()._broadcast(array, root)

    def _sum(self, array):
        if cuda.is_gpu_array(array):
            self._run("all_reduce", array, array, SUM)
        else:
            super()._sum(array)

    def _sum_at(self, array, root):
        if cuda.is_gpu_array(array):
            self._run("reduce", array, array, SUM, root)
        else:
            super()._sum_at(array, root)

    def _exchange(self, outgoing, incoming):
        # Both ends of a message connected at the same point of the program, so they choose the same
        # transport.
        def by_nccl(pair):
            return self._nccl is not None and cuda.is_gpu_array(pair[1])

        super()._exchange(
            [pair for pair in outgoing if not by_nccl(pair)],
            [pair for pair in incoming if not by_nccl(pair)],
        )
        sent, received = (list(filter(by_nccl, pairs)) for pairs in (outgoing, incoming))
        if not sent and not received:
            return
        with self._nccl.group():
            stream = _current_stream().ptr
            for name, messages in (("send", sent), ("recv", received)):
                for rank, x in messages:
                    dtype = TYPES[x.dtype.name]
                    self._connect(x).run(name, x.data.ptr, x.size, dtype, rank, stream=stream)

    def begin_sum(self, x: Array, wire_dtype: str | None = None) -> Request:
        if not cuda.is_gpu_array(x):
            return super().begin_sum(x, wire_dtype)
        if self.size == 1 or x.size == 0:
            return Request(x)
        narrow = arrays.HALF_PRECISION.get(wire_dtype)
        sent = x if narrow is None else narrow.encode(x)
        name = x.dtype.name if narrow is None else wire_dtype
        event = self._begin("all_reduce", sent, sent, SUM, dtype_name=name)
        return _OnStream(self, event, x, narrow and (lambda: narrow.decode(sent, x.dtype)))

    def _begin_sum_of_products(self, x, wire_dtype, factor, parts):
        plain = (factor is None and parts is None) or wire_dtype is not None
        if plain or self.size == 1 or x.size == 0 or not cuda.is_gpu_array(x):
            return super()._begin_sum_of_products(x, wire_dtype, factor, parts)
        nccl = self._connect(x)
        if factor is None:
            return self._begin_sum_of_parts(x, parts, SUM)
        if not nccl.has_products:
            return super()._begin_sum_of_products(x, wire_dtype, factor, parts)
        with nccl.product(factor, x.dtype) as op:
            return self._begin_sum_of_parts(x, [x] if parts is None else parts, op)

    def _begin_sum_of_parts(self, x, parts, op):
        """Begins a sum over the ranks of each array in ``parts``; ``x`` gets their
        concatenation."""
        dtype, pointer = TYPES[x.dtype.name], x.data.ptr
        parts = [part for part in parts if part.size]
        with self._beside(parts, x) as event:
            for start in range(0, len(parts), MOST_IN_GROUP):
                with self._nccl.group():  # NCCL launches a group as one kernel
                    for part in parts[start : start + MOST_IN_GROUP]:
                        arguments = part.data.ptr, pointer, part.size, dtype, op
                        self._nccl.run("all_reduce", *arguments, stream=self._stream.ptr)
                        pointer += part.nbytes
        return _OnStream(self, event, x)

    def ibcast(self, x: Array, root: int = 0) -> Request:
        if not cuda.is_gpu_array(x):
            return super().ibcast(x, root)
        self.check_rank("ibcast", "root", root)
        arrays.check_contiguous("ibcast", x)
        return _OnStream(self, self._begin("broadcast", x, x, root), x)

    def iallgather(self, x: Array, out: Array | None = None) -> Request:
        if not cuda.is_gpu_array(x) or out is not None:
            return super().iallgather(x, out)
        x = arrays.contiguous(arrays.check_array("iallgather", "x", x))
        gathered = cuda.cupy.empty((self.size, *x.shape), x.dtype)
        return _OnStream(self, self._begin("all_gather", x, gathered), gathered)

    def ireduce_scatter(self, x: Array, wire_dtype: str | None = None) -> Request:
        if not cuda.is_gpu_array(x):
            return super().ireduce_scatter(x, wire_dtype)
        arrays.check_pieces("ireduce_scatter", x, self.size, wire_dtype)
        total = cuda.cupy.empty(x.shape[1:], x.dtype)
        narrow = arrays.HALF_PRECISION.get(wire_dtype)
        if narrow is None:
            return _OnStream(self, self._begin("reduce_scatter", x, total, SUM), total)
        sent = narrow.encode(x)
        received = cuda.cupy.empty(x.shape[1:], sent.dtype)
        event = self._begin("reduce_scatter", sent, received, SUM, dtype_name=wire_dtype)
        return _OnStream(self, event, total, lambda: narrow.decode(received, x.dtype))

    def finalize(self) -> None:
        """Destroys NCCL's communicator and frees MPI's communicators; collective."""
        self._disconnect()
        super().finalize()

    def _disconnect(self):
        if self._nccl is not None:
            if self.watch is not None:
                self.watch.gpu = None
            self._release_graphs()
            self._stream.synchronize()
            self._nccl.destroy()
            self._nccl, self._in_use, self.is_captured_alike = None, {}, True


@watched
@arrays.on_gpu_of_arrays
class NcclCommunicator(OverNccl, MpiCommunicator):
    """Ranks with one GPU each, which move CuPy arrays with NCCL.

    The first collective on CuPy arrays chooses a rank's GPU: it is the GPU of these arrays. A
    program can therefore choose it by ``intra_rank`` after it has made the communicator.

    Args:
        mpi_comm: ``mpi4py.MPI.Comm`` of the ranks.
        allreduce_grad_dtype: dtype in which gradients are summed; None: as in other communicators.
            float16: gradients are sent and summed in float16, but stored in their own dtype.
        binding: the package that calls NCCL: ``nccl4py``, ``cupy``, or ``pynccl``, which is
            :mod:`mpchain.backends.pynccl`; None: the first package that works here.
        elastic: whether the other ranks can continue when ranks are lost. NCCL 2.29 or newer then
            shrinks its communicator, except through CuPy; in all other cases, NCCL makes another
            communicator.

    Attributes:
        is_captured_alike: whether graphs of GPUs have captured the same calls on all ranks so far.
            If not, NCCL can take part in no further captures.

    Example:
        ::

            comm = mpchain.create_communicator("pure_nccl")
            cupy.cuda.Device(comm.intra_rank).use()
            total = comm.allreduce(cupy.ones(3))
    """


def check_one_rank_per_gpu(places: Sequence[tuple[str, str, bytes]]) -> None:
    """Raises RuntimeError if two ranks have the same GPU; NCCL itself only says "invalid usage".

    Args:
        places: for each rank, the host, the GPU's bus, and the GPU's identity. Parts of a GPU (MIG)
            share the bus, and containers may share the name of their host, but every GPU or part
            has a different identity.

    Example:
        >>> check_one_rank_per_gpu([("a", "0000:01:00.0", b"1"), ("a", "0000:01:00.0", b"2")])
    """
    # NCCL's own variable allows GPUs to be shared.
    if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
        return
    identities = [place[2] or place[:2] for place in places]
    for rank, (place, identity) in enumerate(zip(places, identities)):
        other = identities.index(identity)
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
    """The request of an operation on NCCL's stream; :meth:`Wait` does not make the host wait.

    Args:
        comm: the communicator.
        event: the event after the operation.
        result: the array of the operation's result.
        decode: function to call after the operation, which returns the content of the result; None
            if the operation fills the result itself.
    """

    def __init__(self, comm, event, result, decode=None):
        super().__init__(result)
        self._comm, self._event, self._decode = comm, event, decode

    @property
    def is_complete(self) -> bool:
        """Whether the result can be used without waiting."""
        return self._event.done and self._decode is None

    def Test(self) -> bool:
        # The event is queried only once, since the answer may change a moment later. Events of a
        # capture must not be queried.
        is_done = current.graph is None and self._event.done
        if is_done:
            self.Wait()
        return is_done

    def Wait(self) -> Array:
        """Makes the current stream wait, and returns the result.

        All ranks begin later operations in the same order, because the host does not wait.
        """
        with self.result.device:
            self._comm._wait_for(self._event)
            if self._decode is not None:
                self.result[...], self._decode = self._decode(), None
        return self.result
