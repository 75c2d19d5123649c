"""The communicator of processes under ``mpirun``; no other module here imports mpi4py."""

import contextlib
import math
import pickle
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.distributed import global_except_hook
from mpchain.distributed.communicators import arrays, mailbox, progress
from mpchain.distributed.communicators.buffers import Buffer, SharedBuffer
from mpchain.distributed.communicators.communicator import Communicator
from mpchain.distributed.communicators.elastic import (
    Elasticity,
    can_lose_ranks,
    finalize_unless_lost,
    renew,
)
from mpchain.distributed.communicators.requests import Request
from mpchain.distributed.objects import allgather
from mpchain.distributed.shared_memory import FILLED, make_shared_arrays
from mpchain.distributed.watch import Watch, call_at_end, check_timeout, creating, watched
from mpchain.typing import Array, DTypeLike

LARGE = 2**20
"""Bytes above which an object for one rank is sent as two messages: its size, then its bytes."""

LARGE_PART = 2**14
"""Bytes of a part above which an array is divided into as many parts as the largest host has ranks;
a smaller array is divided into as many parts as the smallest host has ranks."""

# Each operation and each buffer has two tags for its messages.
_N_TAGS = 10_000
_FIRST_BUFFER_TAG = 2 * _N_TAGS + 2
_N_BUFFER_TAGS = 6_000  # every MPI library supports tags up to 32767

_NARROW = {"sparse": progress.SPARSE, **arrays.HALF_PRECISION}


def load_mpi() -> ModuleType:
    """Returns ``mpi4py.MPI``; importing it initializes MPI.

    Raises:
        RuntimeError: mpi4py or the MPI library is missing.
    """
    try:
        if "mpi4py.MPI" not in sys.modules and can_lose_ranks():
            import mpi4py

            mpi4py.rc.finalize = False  # MPI_Finalize may hang after a loss of ranks
            call_at_end(finalize_unless_lost)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            f"several ranks need mpi4py and an MPI library, but {error}: "
            "pip install 'mpchain[mpi]', or, on a cluster with its own MPI, pip install mpi4py"
        ) from error
    return MPI


@watched
@arrays.on_gpu_of_arrays
class MpiCommunicator(mailbox.Mailbox, Communicator):
    """Ranks that send each other NumPy arrays, CuPy arrays and objects with MPI.

    CuPy arrays are copied to host memory and back, unless the MPI library is CUDA-aware and the
    caller says so. The constructor is collective. With several ranks it installs
    :func:`mpchain.distributed.global_except_hook.add_hook`, since the other ranks would wait
    forever for a rank that ended by an exception.

    Args:
        mpi_comm: ``mpi4py.MPI.Comm`` of the ranks.
        cuda_aware: whether to hand CuPy arrays to MPI directly.
        elastic: whether the other ranks can continue when ranks are lost
            (:class:`~mpchain.distributed.RanksLost`).

    Raises:
        RuntimeError: ``elastic`` is set, but MPI cannot lose ranks, or was started without this
            ability.

    Example:
        ::

            from mpi4py import MPI
            comm = MpiCommunicator(MPI.COMM_WORLD)
            total = comm.allreduce(np.ones(3))
    """

    @creating()
    def __init__(self, mpi_comm: Any, *, cuda_aware: bool = False, elastic: bool = False):
        super().__init__()
        self._mpi, self._cuda_aware = load_mpi(), cuda_aware
        if elastic:
            self.elasticity = Elasticity(self, self._mpi)
            mpi_comm = mpi_comm.Dup()  # revoking a duplicate leaves the user's communicator intact
        self.join(mpi_comm)
        # `renew` copies these attributes; other modules add more.
        self.passed_on = {*vars(self), "passed_on"}

    def join(self, mpi_comm: Any) -> None:
        """Gives this communicator the ranks of an MPI communicator; collective."""
        self.mpi_comm = mpi_comm
        self.rank, self.size = mpi_comm.rank, mpi_comm.size
        self._n_operations = self._n_buffers = 0
        self._tag_of_steps = None  # set while a compound operation takes a step
        self._buffers = weakref.WeakValueDictionary()  # buffers, keyed by address
        # mpchain's messages must not match the user's messages on mpi_comm, nor may background
        # operations match the user's collectives.
        self._messages = mpi_comm.Dup()
        self.owned = [self._messages]
        self._everyone = progress.Group(
            self._mpi, self._messages, list(range(self.size)), self._own(mpi_comm.Dup())
        )
        self._find_hosts()
        before, self.watch = self.watch, None
        if self.size > 1:
            global_except_hook.add_hook()
            self.watch = Watch.over(
                self._mpi,
                mpi_comm,
                self._host,
                check_timeout(None) if before is None else before.timeout,
                is_elastic=self.is_elastic,
                replaced=before,
            )

    def _own(self, mpi_comm):
        """Returns an MPI communicator, which :meth:`finalize` will free."""
        self.owned.append(mpi_comm)
        return mpi_comm

    def _find_hosts(self):
        self._host = self._own(self._split_by_host())
        self.intra_rank, self.intra_size = self._host.rank, self._host.size
        progress.share_cores(self.intra_size)
        leader = self._host.bcast(self.rank)
        hosts = {}
        for rank, its_leader in enumerate(allgather(self.mpi_comm, leader)):
            hosts.setdefault(its_leader, []).append(rank)
        self.hosts = [hosts[leader] for leader in sorted(hosts)]
        self.inter_rank, self.inter_size = sorted(hosts).index(leader), len(hosts)
        # If all ranks are on one host, a shared array counts the barriers that each rank has
        # reached.
        self._door = None
        if self.inter_size == 1 < self.size:
            shared = make_shared_arrays(self._host, [(1, np.int64)])
            self._door = None if shared is None else shared[0]

    def _split_by_host(self):
        """Returns the MPI communicator of the ranks that share memory with this one."""
        return self.mpi_comm.Split_type(self._mpi.COMM_TYPE_SHARED, self.rank)

    def barrier(self) -> None:
        """Waits until every rank has called ``barrier``.

        Collectives that wait inside MPI begin with a barrier: a rank that waits there cannot
        advance its pending operations, and another rank may wait for these operations before it
        reaches the collective.
        """
        if (door := self._door) is not None:
            door.come_to(FILLED)
            progress.wait_until(lambda: door.all_came_to(FILLED))
        elif self.size > 1:
            self._wait([self._messages.Ibarrier()])

    def _wait(self, requests):
        """Waits for MPI's requests, while pending operations continue."""
        progress.wait_until(lambda: self._mpi.Request.Testall(requests))

    # These methods communicate objects.

    def bcast_obj(self, obj: object, max_buf_len: int = 256 * 1024 * 1024, root: int = 0) -> Any:
        self.check_rank("bcast_obj", "root", root)
        self.barrier()
        data = _pickled(obj).copy() if self.rank == root else None
        size = np.array([0 if data is None else data.size], np.int64)
        self.mpi_comm.Bcast(size, root)
        if data is None:
            data = np.empty(size[0], np.uint8)
        step = min(max_buf_len, arrays.PIECE)
        for start in range(0, data.size, step):
            self.mpi_comm.Bcast(data[start : start + step], root)
        return obj if self.rank == root else pickle.loads(data)

    def gather_obj(self, obj: object, root: int = 0) -> list | None:
        self.check_rank("gather_obj", "root", root)
        self.barrier()
        data = _pickled(obj)
        heads = self.mpi_comm.gather(_head(data), root)
        objects = self._receive_rest({root: data}, dict(enumerate(heads or [])))
        return list(objects.values()) if self.rank == root else None

    def allgather_obj(self, obj: object) -> list:
        self.barrier()
        data = _pickled(obj)
        limit = LARGE // self.size  # all messages are padded to the size of the largest
        heads = allgather(self.mpi_comm, _head(data, limit))
        outgoing = dict.fromkeys(range(self.size), data)
        return list(self._receive_rest(outgoing, dict(enumerate(heads)), limit).values())

    def scatter_obj(self, objs: Sequence | None, root: int = 0) -> Any:
        self.check_rank("scatter_obj", "root", root)
        self.barrier()
        outgoing, heads = {}, None
        if self.rank == root:
            if objs is None:
                raise TypeError("scatter_obj: objs must hold an object for each rank, not be None")
            outgoing = {rank: _pickled(obj) for rank, obj in enumerate(objs)}
            heads = [_head(data) for data in outgoing.values()]
        return self._receive_rest(outgoing, {root: self.mpi_comm.scatter(heads, root)})[root]

    def alltoall_obj(self, objs: Sequence) -> list:
        self.barrier()
        outgoing = {rank: _pickled(obj) for rank, obj in enumerate(objs)}
        heads = self.mpi_comm.alltoall([_head(data) for data in outgoing.values()])
        return list(self._receive_rest(outgoing, dict(enumerate(heads))).values())

    def _receive_rest(self, outgoing, heads, limit=LARGE):
        """Sends and receives large objects, whose headers are sizes; returns all objects by
        sender."""
        large = {r: np.empty(head, np.uint8) for r, head in heads.items() if isinstance(head, int)}
        if self.rank in large:
            large[self.rank] = outgoing[self.rank]
        self._exchange(
            [(r, x) for r, x in outgoing.items() if r != self.rank and x.size > limit],
            [(r, x) for r, x in large.items() if r != self.rank],
        )
        return {r: pickle.loads(large.get(r, head)) for r, head in heads.items()}

    def send_obj(self, obj: object, dest: int, tag: int = 0) -> None:
        if dest == self.rank:
            super().send_obj(obj, dest, tag)
            return
        self.check_rank("send_obj", "dest", dest)
        data = _pickled(obj)
        if data.size > LARGE:
            # The send is synchronous, so that the messages without tags that follow find their
            # receiver waiting.
            self._wait([self.mpi_comm.issend(data.size, dest, tag)])
            self._exchange([(dest, data)], [])
        else:
            self._wait([self.mpi_comm.isend(_head(data), dest, tag)])

    def recv_obj(self, source: int, status: object = None, tag: int | None = None) -> Any:
        if source == self.rank:
            return super().recv_obj(source, status, tag)
        if source != self._mpi.ANY_SOURCE:
            self.check_rank("recv_obj", "source", source)
        head, source = self._recv_head(self.mpi_comm, source, tag, status)
        return self._receive_rest({}, {source: head})[source]

    def _recv_head(self, comm, source, tag, status=None):
        """Receives a small object; returns it with the rank that sent it."""
        status = self._mpi.Status() if status is None else status
        tag = self._mpi.ANY_TAG if tag is None else tag
        found = []

        def probe():
            message = comm.improbe(source, tag, status)
            return found.append(message) or message is not None

        progress.wait_until(probe)
        return found[-1].recv(status), status.Get_source()

    # These methods communicate arrays.

    def _send_header(self, header, dest, tag):
        header = (*header, self._place())
        *_, is_answered, _ = header
        if not is_answered:
            # The send is synchronous, so that the messages without tags that follow find their
            # receiver waiting.
            self._wait([self.mpi_comm.issend(header, dest, tag)])
            return None
        request = self.mpi_comm.isend(header, dest, tag)
        answer, _ = self._recv_head(self._messages, dest, 0)
        self._wait([request])
        return answer

    def _recv_header(self, source, tag):
        return self._recv_head(self.mpi_comm, source, tag)

    def _answer(self, answer, rank):
        self._wait([self._messages.isend(answer, rank, 0)])

    def _place(self):
        return "a call" if self.watch is None else self.watch.text()

    def _exchange(self, outgoing, incoming):
        with self._for_mpi(*(x for _, x in incoming), write=True) as received:
            with self._for_mpi(*(x for _, x in outgoing)) as sent:
                requests = [
                    self._messages.Irecv(piece, source, 0)  # pending operations use other tags
                    for (source, _), x in zip(incoming, received, strict=True)
                    for piece in arrays.byte_pieces(x)
                ]
                requests += [
                    self._messages.Isend(piece, dest, 0)
                    for (dest, _), x in zip(outgoing, sent, strict=True)
                    for piece in arrays.byte_pieces(x)
                ]
                self._wait(requests)

    def _broadcast(self, array, root):
        self.barrier()
        with self._for_mpi(array, write=self.rank != root) as (buffer,):
            for piece in arrays.byte_pieces(buffer):
                self.mpi_comm.Bcast(piece, root)

    def _sum(self, array):
        self.barrier()
        with self._for_mpi(array, write=True) as (buffer,):
            for piece in arrays.pieces(buffer):
                self.mpi_comm.Allreduce(self._mpi.IN_PLACE, piece)

    def _sum_at(self, array, root):
        self.barrier()
        with self._for_mpi(array, write=self.rank == root) as (buffer,):
            for piece in arrays.pieces(buffer):
                here = self.rank == root
                self.mpi_comm.Reduce(
                    self._mpi.IN_PLACE if here else piece, piece if here else None, root=root
                )

    # These operations run in the background.

    def ibarrier(self) -> Request:
        self._check_no_part("ibarrier")
        self._enter()
        request = self._everyone.library_comm.Ibarrier()
        return progress.PendingOperation(self._everyone.until_complete([request]))

    def ibcast(self, x: Array, root: int = 0) -> Request:
        self.check_rank("ibcast", "root", root)
        arrays.check_contiguous("ibcast", x)
        self._check_no_part("ibcast")
        self._enter()
        buffer = self._host_copy(x)
        requests = [self._everyone.library_comm.Ibcast(p, root) for p in arrays.byte_pieces(buffer)]
        return _begin(self._everyone.until_complete(requests), x, buffer)

    def iallgather(self, x: Array, out: Array | None = None) -> Request:
        x = arrays.contiguous(arrays.check_room("iallgather", x, out, self.size))
        self._enter()
        made = None if out is None else self._made(out)
        if out is not None and made is not None and made.array.nbytes >= out.nbytes:
            return progress.PendingOperation(_shaped(made.gather(x.reshape(-1), self.size), out))
        buffer = self._host_copy(x)
        gathered = np.empty((self.size, *x.shape), x.dtype) if out is None else out
        gathered[self.rank] = buffer
        # The rows are views, even if each has a single element.
        rows = list(gathered.reshape(self.size, -1))
        steps = self._everyone.exchange(rows, [buffer] * self.size, self._next_tag())
        return _begin(steps, _like(x, gathered), gathered)

    def ireduce_scatter(self, x: Array, wire_dtype: str | None = None) -> Request:
        arrays.check_pieces("ireduce_scatter", x, self.size, wire_dtype)
        self._enter()
        narrow = arrays.HALF_PRECISION.get(wire_dtype)
        if isinstance(x, np.ndarray) and x.size:
            made = self._made(x)
            if made is not None and made.fits(x):
                mine = x[self.rank]
                return _begin(made.sum_pieces(narrow), mine, mine)
        buffer = self._host_copy(x)
        parts = list(buffer.reshape(self.size, -1))
        total = np.empty(x.shape[1:], x.dtype)
        tag = self._next_tag()
        steps = progress.sum_slice(self._everyone, parts, total.reshape(-1), tag, narrow)
        return _begin(steps, _like(x, total), total)

    def begin_sum(self, x: Array, wire_dtype: str | None = None) -> Request:
        if self.size == 1 or x.size == 0:
            return Request(x)
        narrow = _NARROW.get(wire_dtype)
        if isinstance(x, np.ndarray):
            made = self._made(x)
            if made is not None and made.fits(x):
                return _begin(made.sum(narrow), x, x)
        # All ranks must start the library's sums in the same order, which the sums of an operation
        # with several steps may not do.
        buffer = self._host_copy(x, to_host=self._tag_of_steps is not None)
        if cuda.is_gpu_array(buffer):
            steps = progress.sum_by_library(self._everyone, buffer)
        else:
            steps = progress.sum_over(self._everyone, buffer, self._next_tag(), narrow)
        return _begin(steps, x, buffer)

    def _made(self, x):
        """Returns the buffer that begins at the address of an array, or None."""
        base = x.base  # a buffer's whole array has it as its base
        address = base.address if isinstance(base, Buffer) else x.__array_interface__["data"][0]
        return self._buffers.get(address)

    def _next_tag(self):
        """Returns a tag that no other pending operation uses.

        All steps of one operation share its tag: one step follows the other, but ranks may begin
        them in different orders relative to other operations.
        """
        if self._tag_of_steps is not None:
            return self._tag_of_steps
        self._n_operations = (self._n_operations + 1) % _N_TAGS
        return 2 * self._n_operations + 1

    def begin(self, steps: Iterator[None]) -> Request:
        return progress.PendingOperation(self._as_parts(steps, self._next_tag()))

    def _as_parts(self, steps, tag):
        while True:
            with self._parts(tag):
                try:
                    next(steps)
                except StopIteration as end:
                    return end.value
            yield

    @contextlib.contextmanager
    def _parts(self, tag):
        """Context manager: operations inside the block use the tag of another operation, as its
        parts."""
        outer, self._tag_of_steps = self._tag_of_steps, tag
        try:
            with self.unwatched():
                yield
        finally:
            self._tag_of_steps = outer

    def _check_no_part(self, name):
        if self._tag_of_steps is not None:
            raise RuntimeError(
                f"{name} cannot be part of another operation; only sums and gathers can"
            )

    def _host_copy(self, x, to_host=False):
        """Returns ``x`` itself if MPI can use it, otherwise a copy in page-locked host memory."""
        if isinstance(x, np.ndarray):
            return x
        if self._cuda_aware and not to_host:
            cuda.cupy.cuda.get_current_stream().synchronize()
            return x
        memory = cuda.cupy.cuda.alloc_pinned_memory(max(x.nbytes, 1))
        buffer = np.frombuffer(memory, x.dtype, x.size).reshape(x.shape)
        return x.get(out=buffer)

    @contextlib.contextmanager
    def _for_mpi(self, *arrays, write=False):
        """Yields buffers that MPI can use for ``arrays``; with ``write``, copies the buffers
        back."""
        buffers = [self._host_copy(x) for x in arrays]
        yield buffers
        if write:
            for x, buffer in zip(arrays, buffers, strict=True):
                if buffer is not x:
                    backend.copyto(x, buffer)

    # These methods make buffers.

    def make_buffers(
        self, specifications: Iterable[tuple[int, DTypeLike]], n_slots: int = 1
    ) -> list[Array]:
        if self.size == 1:
            return super().make_buffers(specifications, n_slots)
        self.barrier()
        sizes = [len(host) for host in self.hosts]
        shared = None
        if max(sizes) > 1:
            shared = make_shared_arrays(self._host, specifications, n_slots)
        if not all(allgather(self.mpi_comm, shared is not None)):
            shared = None
        groups = {}  # maps each slice to the group of ranks that sum it
        for part in range(self.intra_rank, max(sizes), self.intra_size):
            ranks = [host[part % len(host)] for host in self.hosts]
            groups[part] = progress.Group(self._mpi, self._messages, ranks)
        made = []
        for i, (n, dtype) in enumerate(specifications):
            tag = _FIRST_BUFFER_TAG + 2 * (self._n_buffers % _N_BUFFER_TAGS)
            self._n_buffers += 1
            if shared is None:
                made += [Buffer(np.zeros(n, dtype), self._everyone, tag) for _ in range(n_slots)]
            else:
                # A rank of a smaller host sums several slices of a large array.
                is_large = n * np.dtype(dtype).itemsize > LARGE_PART * max(sizes)
                n_parts = max(sizes) if is_large else min(sizes)
                places = self.hosts, self.rank, tag
                made += [
                    SharedBuffer(shared[i], r, groups, n_parts, *places) for r in range(n_slots)
                ]
        for buffer in made:
            self._buffers[buffer.address] = buffer
        return [np.asarray(buffer) for buffer in made]

    # These methods configure, split and end the communicator.

    @property
    def timeout(self) -> float:
        """Seconds that a rank waits for others before it ends the job with a report."""
        return math.inf if self.watch is None else self.watch.timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        if self.watch is not None:
            self.watch.timeout = check_timeout(seconds)

    def record_failures(self, folder: str) -> None:
        if self.watch is not None:
            self.watch.record_in(folder)
            global_except_hook.recorder.record = self._record

    def _record(self, text):
        return text if self.watch is None else self.watch.record(text)

    def split(self, color: int, key: int) -> "MpiCommunicator":
        self.barrier()
        part = type(self)(self.mpi_comm.Split(color, key), **self._options())
        part.owned.append(part.mpi_comm)
        if self.is_elastic and part.size > 1:
            self.refuse_to_lose_ranks(part, "comm.split has made a communicator of some ranks")
        return self._configure(part)

    @property
    def is_elastic(self) -> bool:
        return self.elasticity is not None

    def agree(self) -> None:
        if self.elasticity is not None:
            self.elasticity.agree()

    def shrink(self, *, goes_back: bool = True) -> bool:
        return True if self.elasticity is None else self.elasticity.shrink(goes_back)

    def renewed(self) -> "MpiCommunicator":
        return self._configure(renew(self))

    def _options(self):
        return {"cuda_aware": self._cuda_aware}

    def finalize(self) -> None:
        """Frees the MPI communicators that this communicator made; collective.

        The arrays of :meth:`make_buffers` stay valid.
        """
        if self.owned:
            self.barrier()
        if self.elasticity is not None:
            self.elasticity.retire()
        if self.watch is not None:
            self.watch.stop()
            self.watch = None
        for mpi_comm in self.owned:
            if mpi_comm != self._mpi.COMM_NULL:
                mpi_comm.Free()
        self.owned = []


@watched
@arrays.on_gpu_of_arrays
class DummyCommunicator(MpiCommunicator):
    """A communicator for benchmarks, which does everything except sum gradients."""

    sums_gradients = False


def _pickled(obj):
    return np.frombuffer(pickle.dumps(obj, 5), np.uint8)


def _head(data, limit=LARGE):
    """Returns the first message: a pickled object, or only its size if it is large."""
    return data.size if data.size > limit else data.tobytes()


def _like(x, array):
    """Returns ``array``, or, if ``x`` is on a GPU, an uninitialized array of the same shape and
    dtype on the GPU."""
    if isinstance(x, np.ndarray):
        return array
    return arrays.make_room((*arrays.describe(array)[:2], True))


def _begin(steps, result, buffer):
    return progress.PendingOperation(_copied(steps, result, buffer))


def _shaped(steps, out):
    """Runs the steps, as a generator; returns their result in the shape of ``out``."""
    whole = yield from steps
    return whole.reshape(out.shape)


def _copied(steps, result, buffer):
    """Runs the steps, as a generator, and copies the buffer to the result; returns the result."""
    yield from steps
    if buffer is not result:
        backend.copyto(result, buffer)
    return result
