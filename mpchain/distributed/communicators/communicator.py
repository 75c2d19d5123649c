"""The communicator of one process, and the behavior that all communicators share."""

import collections
import contextlib
import functools
import math
import operator
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from mpchain import annexes, backend, configuration
from mpchain.backends.dtypes import is_floating
from mpchain.distributed.communicators import arrays
from mpchain.distributed.communicators.point_to_point import PointToPoint
from mpchain.distributed.communicators.requests import Request
from mpchain.typing import Array, DTypeLike

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from mpchain.link import Link


@arrays.on_gpu_of_arrays
class Communicator(PointToPoint):
    """Ranks that send each other arrays and objects; this class is the group of one process.

    Here every collective is the identity. Subclasses provide the transport: the object methods,
    :meth:`barrier`, :meth:`begin_sum`, :meth:`make_buffers`, the methods other than
    :meth:`iallreduce` that only start an operation, and some methods whose names begin with an
    underscore. Most checks, the shapes and dtypes of results, and everything that follows from the
    transport are here.

    Arrays are NumPy or CuPy arrays of dtype int32, int64, float16, bfloat16, float32 or float64,
    and are received on the kind of device that they were sent from. float16 and bfloat16 are summed
    in float32.

    Operations whose names begin with i (``iallreduce``, ...) only start. Every rank must start the
    same operations in the same order, and must not use the arrays until they are complete. They
    return a request: ``Test()`` lets messages progress, also those of all other requests, and
    returns whether the operation is complete; ``Wait()`` waits until it is, and returns the result.

    Only one thread at a time may use a communicator. Threads that communicate at the same time need
    separate communicators from :meth:`split`, created in the same order on all ranks.

    Attributes:
        rank, size: the id of this process among the ranks, and the number of ranks.
        intra_rank, intra_size: the rank and the number of ranks on this host.
        inter_rank, inter_size: this host's number among the hosts, and the number of hosts.
        mpi_comm: the ``mpi4py.MPI.Comm`` that carries the messages; None in one process.
        gpu: the ``cupy.cuda.Device`` that connects this rank to the others; None if there is none.
        timeout: seconds after which a rank that waits for others that do not work ends the job; may
            be set.
        sums_gradients: whether multi-node optimizers sum gradients over the ranks.
        lost_ranks: the reasons why ranks were lost, by rank id in the whole job.
        dependents: objects whose ``fit_to_ranks()`` :meth:`shrink` calls, so that they forget what
            depends on the number of ranks; keys of a weak dictionary, in the order of their
            creation.
        spares: the spare processes that can replace lost ranks; None if there are none.
        watch: the watchdog of the communicator's collectives; None in one process.
        hosts: the ranks of each host.
        is_connected: whether NCCL already connects the ranks.
        uses_nccl: whether arrays on GPUs are summed there, by NCCL.
        is_captured_alike: whether all ranks have captured the same collectives in graphs of GPUs.
        n_captures: the number of captures that were begun.
        within_config_scope: whether attributes that are set become configuration entries; see
            :meth:`config_scope`.

    Example:
        >>> mpchain.create_communicator().allreduce(np.arange(3.0))  # the sum over the ranks
        array([0., 1., 2.])
    """

    owned: Sequence[Any] = ()  # MPI communicators that this communicator created
    elasticity: Any = None
    # `renew` copies the attributes with these names to the new communicator.
    passed_on: Collection[str] = ()

    # Subclasses define `join`; mpchain.distributed.gradients and optimizers set all other names.
    if TYPE_CHECKING:
        divided: Any
        n_draw_keys: int

        def join(self, mpi_comm: Any) -> None: ...
        def batch(
            self,
            /,
            n: int | None = None,
            *,
            mine: slice | None = None,
            weight: ArrayLike | None = None,
        ) -> contextlib.AbstractContextManager[slice]: ...
        def bcast_data(self, model: Link) -> None: ...
        def broadcast_data(self, model: Link) -> None: ...
        def multi_node_mean_grad(self, model: Link, zero_fill: bool = False) -> None: ...
        def allreduce_grad(self, model: Link, zero_fill: bool = False) -> None: ...

    rank = 0
    size = 1
    intra_rank = 0
    intra_size = 1
    inter_rank = 0
    inter_size = 1
    mpi_comm: Any = None
    gpu: Any = None
    timeout = math.inf
    sums_gradients = is_captured_alike = True
    uses_nccl = is_connected = False
    n_captures = 0
    watch: Any = None
    hosts = [[0]]
    within_config_scope = False
    _micro_shards = None

    def __init__(self):
        self._config = {"batched_copy": True, "allreduce_grad_dtype": None}
        self._to_myself = collections.deque()
        self.n_crossing = collections.Counter()
        self.lost_ranks: dict[int, str] = {}
        self.dependents: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        self.spares: Any = None
        self.needs_all = weakref.WeakKeyDictionary()

    # Subclasses override these methods, which transport messages.

    def barrier(self) -> None:
        """Waits until every rank has called ``barrier``.

        >>> comm.barrier()
        """

    def bcast_obj(self, obj: object, max_buf_len: int = 256 * 1024 * 1024, root: int = 0) -> Any:
        """Returns the root's ``obj`` on every rank; it is sent in pieces of ``max_buf_len`` bytes.

        >>> comm.bcast_obj({"seed": 3})
        {'seed': 3}
        """
        self.check_rank("bcast_obj", "root", root)
        return obj

    def gather_obj(self, obj: object, root: int = 0) -> list | None:
        """Returns the list of all ranks' objects at the root, None elsewhere.

        >>> comm.gather_obj("from rank 0")
        ['from rank 0']
        """
        self.check_rank("gather_obj", "root", root)
        return [obj]

    def allgather_obj(self, obj: object) -> list:
        """Returns the list of all ranks' objects on every rank.

        >>> comm.allgather_obj(comm.rank)
        [0]
        """
        return [obj]

    def scatter_obj(self, objs: Sequence | None, root: int = 0) -> Any:
        """Returns this rank's element of the root's ``objs``, which holds one object per rank.

        >>> comm.scatter_obj(["for rank 0"])
        'for rank 0'
        """
        self.check_rank("scatter_obj", "root", root)
        if objs is None:
            raise TypeError("scatter_obj: objs must hold an object for each rank, not be None")
        (obj,) = objs
        return obj

    def alltoall_obj(self, objs: Sequence) -> list:
        """Returns a list, by rank: from each rank's ``objs``, the object at the index of this rank.

        >>> comm.alltoall_obj(["from 0 to 0"])
        ['from 0 to 0']
        """
        return list(objs)

    def ibarrier(self) -> Request:
        """Begins to wait until every rank has called ``ibarrier``.

        >>> comm.ibarrier().Test()
        True
        """
        return Request()

    def ibcast(self, x: Array, root: int = 0) -> Request:
        """Begins to fill a contiguous array with the root's array of the same shape and dtype.

        >>> comm.ibcast(np.ones(2)).Wait()
        array([1., 1.])
        """
        self.check_rank("ibcast", "root", root)
        arrays.check_contiguous("ibcast", x)
        return Request(x)

    def iallgather(self, x: Array, out: Array | None = None) -> Request:
        """Begins to gather all ranks' arrays, which have the same shape and dtype.

        Args:
            x: the array.
            out: None, or, on all ranks, an array for the result: a contiguous host array of shape
                (size, ...). If it starts at the address of an array from :meth:`make_buffers`,
                hosts send gathered data to each other only once.

        Returns:
            A request whose result is a new array of shape (size, ...), or ``out``. The ranks of a
            host share a result in a buffer; it stays valid until this rank gathers in the buffer
            again.

        >>> comm.iallgather(np.ones(2)).Wait()
        array([[1., 1.]])
        """
        x = arrays.check_room("iallgather", x, out, self.size)
        if out is None:
            return Request(x[None].copy())
        out[0] = x
        return Request(out)

    def ireduce_scatter(self, x: Array, wire_dtype: str | None = None) -> Request:
        """Begins to sum ``x[r]`` over the ranks for each rank r, which gets only that sum.

        Args:
            x: contiguous array of shape (size, ...), dtype int32, int64, float32 or float64. An
                array from :meth:`make_buffers`, in that shape, is summed in place: hosts send each
                other only sums, and the elements for other ranks are undefined afterwards.
            wire_dtype: ``float16``, ``bfloat16`` or None; see :meth:`iallreduce`.

        Returns:
            A request whose result is a new array of shape ``x.shape[1:]``, or this rank's part of
            the buffer.

        >>> comm.ireduce_scatter(np.ones((comm.size, 2))).Wait()
        array([1., 1.])
        """
        arrays.check_pieces("ireduce_scatter", x, self.size, wire_dtype)
        return Request(x[0].copy())

    def iallreduce(
        self,
        x: Array,
        wire_dtype: str | None = None,
        *,
        factor: float | None = None,
        parts: Sequence[Array] | None = None,
    ) -> Request:
        """Begins to sum a contiguous array over the ranks, in place.

        The result has the same bits on every rank.

        Args:
            x: contiguous array of dtype int32, int64, float32 or float64. An array from
                :meth:`make_buffers` is summed faster.
            wire_dtype: ``float16`` or ``bfloat16``: a float array is rounded to that dtype in
                messages, but summed in its own dtype; ranks that share memory send no messages.
                ``sparse``: messages have only the elements that are not 0, of a float array on the
                host; the sum is exact. None: the sum is exact.
            factor: number by which this rank's array is multiplied first. All ranks pass a factor,
                or none does.
            parts: flat contiguous arrays of the dtype of ``x`` with as many elements together. This
                rank then adds their concatenation instead of ``x``, which only gets the sum; NCCL
                copies none of the parts. They have the same sizes on all ranks, and must not change
                before the request is complete.

        Returns:
            A request whose result is ``x``.

        >>> comm.iallreduce(np.ones(2)).Wait()
        array([1., 1.])
        """
        arrays.check_addends("iallreduce", x, wire_dtype)
        if factor is None and parts is None:
            return self.begin_sum(x, wire_dtype)
        arrays.check_parts("iallreduce", parts, x)
        return self._begin_sum_of_products(x, wire_dtype, factor, parts)

    def _begin_sum_of_products(self, x, wire_dtype, factor, parts):
        if parts is not None:
            backend.get_array_module(x).concatenate(parts, out=x.reshape(-1))
        if factor is not None:
            x *= x.dtype.type(factor)
        return self.begin_sum(x, wire_dtype)

    def begin_sum(self, x: Array, wire_dtype: str | None = None) -> Request:
        """Does the same as :meth:`iallreduce`, without checks, factor and parts.

        Sums of arrays from :meth:`make_buffers` may begin in an order that differs between ranks.
        """
        return Request(x)

    def sum_now(self, x: Array, place: str | None = None) -> Array:
        """Sums an array from :meth:`make_buffers` over the ranks, in place, and waits for them.

        For a few elements it takes half the time of :meth:`iallreduce`.

        Args:
            x: the array.
            place: the site of the call, for reports; by default it is looked up, which takes some
                microseconds.

        >>> (x,) = comm.make_buffers([(2, np.float64)])
        >>> x[:] = 1
        >>> comm.sum_now(x)
        array([1., 1.])
        """
        return self.begin_sum(x).Wait()

    def begin(self, steps: Iterator[None]) -> Request:
        """Begins an operation that consists of other operations.

        Args:
            steps: generator that begins sums and gathers over these ranks, one after another. It
                gets the result of each of them by ``result = yield from request.steps()``, and
                continues whenever a program calls ``Test`` or ``Wait`` of a request. Other
                operations may be begun before or after one of its sums, on each rank.

        Returns:
            A request whose result is the return value of the generator.

        >>> def twice(x):
        ...     x = yield from comm.iallreduce(x).steps()
        ...     return (yield from comm.iallreduce(x).steps())
        >>> comm.begin(twice(np.ones(2))).Wait()
        array([1., 1.])
        """
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return Request(end.value)

    def make_buffers(
        self, specifications: Iterable[tuple[int, DTypeLike]], n_slots: int = 1
    ) -> list[Array]:
        """Makes host arrays that :meth:`iallreduce` sums faster than others; collective.

        Ranks on one host share their memory, and sum in place.

        Args:
            specifications: pairs (number of elements, dtype), the same on all ranks.
            n_slots: the number of slots, which are arrays, for each specification. In a sum, each
                rank chooses one of its slots. All slots but the first take no memory before they
                are used.

        Returns:
            Flat arrays of zeros; the slots of a specification follow one another.

        >>> comm.make_buffers([(2, "float32"), (1, "int64")])
        [array([0., 0.], dtype=float32), array([0])]
        """
        return [np.zeros(n, dtype) for n, dtype in specifications for _ in range(n_slots)]

    def _broadcast(self, array, root):
        """Fills a contiguous array with the root's array."""

    def _sum(self, array):
        """Sums a contiguous array over the ranks, in place."""

    def _sum_at(self, array, root):
        """Sums a contiguous array over the ranks, in place at the root; others lose its values."""

    def gradient_dtype(self, dtype: np.dtype) -> np.dtype:
        """Returns the dtype in which gradients of ``dtype`` are summed.

        >>> comm.gradient_dtype(np.dtype("float16"))
        dtype('float32')
        """
        summed: Any = arrays.summed_dtype(dtype)  # None for dtypes that ranks refuse to sum
        return summed

    # These methods are collectives on arrays.

    def bcast(self, x: Array | None, root: int = 0) -> Array:
        """Returns the root's array on every rank.

        At the root, the result is ``x`` itself; on the other ranks ``x`` may be None.

        >>> comm.bcast(np.ones(2))
        array([1., 1.])
        """
        self.check_rank("bcast", "root", root)
        if self.rank == root:
            mine = arrays.check_array("bcast", "x", x)
            result = arrays.contiguous(mine)
            self.bcast_obj(arrays.describe(mine), root=root)
        else:
            mine = result = arrays.make_room(self.bcast_obj(None, root=root))
        self._broadcast(result, root)
        return mine

    def gather(self, x: Array, root: int = 0) -> tuple[Array, ...] | None:
        """Returns the tuple of all ranks' arrays at the root, None elsewhere; shapes may differ.

        >>> comm.gather(np.ones(2))
        (array([1., 1.]),)
        """
        self.check_rank("gather", "root", root)
        x = arrays.check_array("gather", "x", x)
        descriptions = self.gather_obj(arrays.describe(x), root)
        received = self._move({root: x}, dict(enumerate(descriptions or [])))
        return tuple(received.values()) if self.rank == root else None

    def allgather(self, x: Array) -> tuple[Array, ...]:
        """Returns the tuple of all ranks' arrays on every rank; shapes may differ.

        >>> comm.allgather(np.ones(2))
        (array([1., 1.]),)
        """
        x = arrays.check_array("allgather", "x", x)
        descriptions = self.allgather_obj(arrays.describe(x))
        outgoing = dict.fromkeys(range(self.size), x)
        return tuple(self._move(outgoing, dict(enumerate(descriptions))).values())

    def scatter(self, xs: Sequence[Array] | None, root: int = 0) -> Array:
        """Returns this rank's array of the root's ``xs``, which holds one per rank; others pass
        None.

        >>> comm.scatter([np.ones(2)])
        array([1., 1.])
        """
        self.check_rank("scatter", "root", root)
        outgoing, descriptions = {}, None
        if self.rank == root:
            outgoing = dict(enumerate(arrays.check_arrays("scatter", "xs", xs, self.size)))
            descriptions = [arrays.describe(x) for x in outgoing.values()]
        return self._move(outgoing, {root: self.scatter_obj(descriptions, root)})[root]

    def alltoall(self, xs: Sequence[Array]) -> tuple[Array, ...]:
        """Returns a tuple, by rank: from each rank's ``xs``, the array at the index of this rank.

        >>> comm.alltoall([np.ones(2)])
        (array([1., 1.]),)
        """
        xs = arrays.check_arrays("alltoall", "xs", xs, self.size)
        descriptions = self.alltoall_obj([arrays.describe(x) for x in xs])
        return tuple(self._move(dict(enumerate(xs)), dict(enumerate(descriptions))).values())

    def allreduce(self, x: Array) -> Array:
        """Returns the sum of all ranks' arrays, a new array, on every rank.

        >>> comm.allreduce(np.ones(2))
        array([1., 1.])
        """
        total = self._addend("allreduce", x)
        self._sum(total)
        return self._rounded("allreduce", total, x.dtype)

    def reduce(self, x: Array, root: int = 0) -> Array | None:
        """Returns the sum of all ranks' arrays, a new array, at the root, None elsewhere.

        >>> comm.reduce(np.ones(2))
        array([1., 1.])
        """
        self.check_rank("reduce", "root", root)
        total = self._addend("reduce", x)
        self._sum_at(total, root)
        return self._rounded("reduce", total, x.dtype) if self.rank == root else None

    def _addend(self, function, x):
        """Returns a copy of an array in the dtype in which it is summed."""
        x = arrays.check_array(function, "x", x)
        self._check_alike(function, x)
        return x.astype(arrays.summed_dtype(x.dtype), order="C")

    def _rounded(self, function, total, dtype):
        """Returns a sum in the dtype of the addends; in debug mode, raises ValueError unless it is
        finite."""
        total = total.astype(dtype, copy=False)
        if configuration.is_debug() and is_floating(dtype) and not np.isfinite(total).all():
            raise ValueError(f"{function}: the sum over the ranks has non-finite elements")
        return total

    def reduce_scatter(self, xs: Sequence[Array]) -> Array:
        """Returns the sum over the ranks of the arrays at the index of this rank in each rank's
        ``xs``.

        The addends are added in the order of the ranks. The method is an :meth:`alltoall` followed
        by a local sum, which moves no more data than a reduction does.

        >>> comm.reduce_scatter([np.ones(2)])
        array([1., 1.])
        """
        parts = self.alltoall(xs)
        if len({(part.shape, part.dtype) for part in parts}) > 1:
            held = ", ".join(f"rank {r}: {p.shape} {p.dtype}" for r, p in enumerate(parts))
            raise ValueError(
                f"reduce_scatter: all ranks must pass arrays of the same shape and dtype for rank "
                f"{self.rank}: {held}"
            )
        dtype = parts[0].dtype
        total = parts[0].astype(arrays.summed_dtype(dtype))
        for part in parts[1:]:
            total += part
        return total.astype(dtype, copy=False)

    def _move(self, outgoing, descriptions):
        """Sends ``outgoing`` (rank -> array); returns the received arrays (rank -> new array)."""
        incoming = {
            rank: arrays.make_room(description) for rank, description in descriptions.items()
        }
        if self.rank in incoming:
            incoming[self.rank][...] = outgoing[self.rank]
        self._exchange(
            [(rank, arrays.contiguous(x)) for rank, x in outgoing.items() if rank != self.rank],
            [(rank, x) for rank, x in incoming.items() if rank != self.rank],
        )
        return incoming

    # These methods communicate objects and divide samples.

    @property
    def micro_shards(self) -> int | None:
        """The number of micro-shards into which reproducible training divides batches, or None.

        It is at least the number of ranks. ``create_communicator`` sets it; updaters and
        optimizers read it.
        """
        return self._micro_shards

    @micro_shards.setter
    def micro_shards(self, n: int | None) -> None:
        if n is not None and n < self.size:
            raise ValueError(
                f"micro_shards must be at least the number of ranks, {self.size}, but is {n}: "
                "create_communicator(micro_shards=...) sets it, to the same number for all "
                "numbers of ranks that must give the same bits"
            )
        self._micro_shards = n

    @property
    def own_shards(self) -> range:
        """The indices of this rank's micro-shards; without micro-shards, only the rank itself.

        If the number of micro-shards is not divisible by the number of ranks, some ranks have one
        micro-shard more than others.

        >>> comm.own_shards
        range(0, 1)
        """
        n = self._micro_shards or self.size
        return range(*(rank * n // self.size for rank in (self.rank, self.rank + 1)))

    def share_of(self, n: int) -> tuple[int, int]:
        """Returns the range (begin, end) of this rank's part of ``n`` samples.

        The parts are contiguous and as equal as possible; the first ones are the longer ones. With
        micro-shards, the samples are divided in this way among the micro-shards, and a rank's part
        consists of the samples of :attr:`own_shards`.

        >>> comm.share_of(10)
        (0, 10)
        """
        n_shards, own = self._micro_shards or self.size, self.own_shards
        if len(own) == 1:
            return arrays.partition(n, own[0], n_shards)
        return arrays.partition(n, own[0], n_shards)[0], arrays.partition(n, own[-1], n_shards)[1]

    def allreduce_obj(self, obj: object) -> Any:
        """Returns the sum of all ranks' objects by their own ``+``, in the order of the ranks.

        >>> comm.allreduce_obj([comm.rank])
        [0]
        """
        return functools.reduce(operator.add, self.allgather_obj(obj))

    # These methods split, configure and end a communicator.

    def split(self, color: int, key: int) -> "Communicator":
        """Returns the communicator of the ranks with the same ``color``, ordered by ``key``.

        >>> comm.split(color=0, key=comm.rank).size
        1
        """
        return self._configure(Communicator())

    def _configure(self, part):
        """Copies this communicator's configuration to ``part``, which has some of its ranks;
        returns ``part``."""
        part._config.update(self._config)
        part.micro_shards, part.timeout = self.micro_shards, self.timeout
        return part

    def renewed(self) -> "Communicator":
        """Returns a new communicator for the same ranks, which has no record of models.

        >>> comm.renewed().size
        1
        """
        return self._configure(Communicator())

    def refuse_to_lose_ranks(self, obj: object, why: str) -> None:
        """Records that training cannot continue without lost ranks as long as an object exists.

        Args:
            obj: the object, such as a data set that is divided among the ranks.
            why: the reason, such as the division among the ranks, for the message of
                :meth:`shrink`.
        """
        self.needs_all[obj] = why

    def __deepcopy__(self, memo: dict) -> "Communicator":
        """Returns the communicator itself: copies of a model talk to the same ranks."""
        return self

    def record_failures(self, folder: str) -> None:
        """Lets a later failure of the job write the file ``flight_recorder.txt`` to a folder.

        The file lists the last calls of each rank: up to 64 collectives, with their arguments, the
        location of the call, and the times when it was begun and done. A
        :class:`~mpchain.training.Trainer` with a multi-node optimizer asks for it in its own
        folder. A single process writes no file.

        Args:
            folder: the folder.

        >>> comm.record_failures("result")
        """

    def unwatched(self) -> contextlib.AbstractContextManager[None]:
        """Context manager: the watchdog takes the collectives within it for parts of another
        operation.

        >>> with comm.unwatched():
        ...     comm.barrier()
        """
        return contextlib.nullcontext() if self.watch is None else self.watch.within()

    def _enter(self):
        """Notes in the watchdog's record that an announced collective begins."""
        if self.watch is not None and self.watch.announced is not None:
            self.watch.enter()

    def finalize(self) -> None:
        """Releases the communicator's resources; it must not be used afterwards."""

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:  # finalize is collective; after an error, other ranks may not call it
            self.finalize()

    def set_config(self, name: str, value: object = True) -> None:
        """Sets a configuration entry: ``batched_copy`` or ``allreduce_grad_dtype``.

        >>> comm.set_config("batched_copy", True)
        """
        self._check_entry("set_config", name)
        self._config[name] = value

    def get_config(self, name: str | None = None) -> Any:
        """Returns a configuration entry, or all of them as a dict.

        >>> comm.get_config("batched_copy")
        True
        """
        if name is None:
            return dict(self._config)
        self._check_entry("get_config", name)
        return self._config[name]

    @contextlib.contextmanager
    def config_scope(self) -> Iterator["Communicator"]:
        """Context manager: attributes that are set within it become entries of the configuration.

        >>> with comm.config_scope():
        ...     comm.batched_copy = True
        """
        self.within_config_scope = True
        try:
            yield self
        finally:
            self.within_config_scope = False

    def __setattr__(self, name: str, value: object) -> None:
        if self.within_config_scope and name != "within_config_scope":
            self.set_config(name, value)
        else:
            super().__setattr__(name, value)

    # These methods handle lost ranks; this class cannot lose any.

    def end_work(self, *, for_good: bool = False) -> None:
        """Aborts pending work on GPUs that waits for lost ranks. Any thread may call this method,
        and repeatedly; only the communicator's own thread may pass ``for_good``, which also frees
        the resources of NCCL."""

    @property
    def is_elastic(self) -> bool:
        """Whether the other ranks can continue after ranks are lost."""
        return False

    def agree(self) -> None:
        """Waits until every rank has called it, and agrees that none was lost before; collective.

        Raises:
            RanksLost: ranks are lost; either all surviving ranks raise it or none does.

        >>> comm.agree()
        """

    def in_memory_checkpoint(self, objects: Mapping[str, Any]) -> Any:
        """Returns the :class:`~mpchain.distributed.InMemoryCheckpoint` of some objects.

        Raises:
            MissingAnnexError: :mod:`mpchain.annexes` does not list ``recovery``.

        Example:
            >>> comm.in_memory_checkpoint({"model": L.Linear(3, 2)}).iteration
            0
        """
        asker = f"{type(self).__name__}.in_memory_checkpoint"
        recovery = annexes.load("recovery", "distributed.recovery", asker)
        return recovery.InMemoryCheckpoint(self, objects)

    def shrink(self, *, goes_back: bool = True) -> bool:
        """Removes the lost ranks from this communicator; all surviving ranks call it.

        All pending operations are dropped. Ranks are numbered anew, in the same order. Call the
        method after a :class:`~mpchain.distributed.RanksLost`, which all calls raise until then.
        :class:`~mpchain.distributed.InMemoryCheckpoint` does so, and restores the training state.

        Args:
            goes_back: whether this rank can go back to an earlier state with the other ranks; if
                not, it is about to start anew.

        Returns:
            Whether all ranks can go back.

        Raises:
            RuntimeError: training cannot continue without the lost ranks. The message says why;
                start training again from its last checkpoint.

        >>> comm.shrink()
        True
        """
        return True

    # These methods check arguments.

    def _check_entry(self, function, name):
        if name not in self._config:
            known = ", ".join(sorted(self._config))
            raise ValueError(f"{function}: name must be one of {known}, not {name!r}")

    def _check_alike(self, function, x):
        """In debug mode, raises ValueError on all ranks unless shape and dtype agree."""
        if configuration.is_debug():
            held = self.allgather_obj((x.shape, str(x.dtype)))
            if len(set(held)) > 1:
                ranks = enumerate(held)
                text = ", ".join(f"rank {r}: {shape} {dtype}" for r, (shape, dtype) in ranks)
                raise ValueError(
                    f"{function}: shapes and dtypes must be the same on all ranks: {text}"
                )
