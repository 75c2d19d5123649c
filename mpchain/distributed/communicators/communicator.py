"""The communicator of one process, and the behavior that all communicators share."""

import collections
import contextlib
import functools
import math
import operator

import numpy as np

from mpchain import configuration
from mpchain.distributed.communicators.arrays import (
    WIRE_DTYPES,
    check_array,
    check_arrays,
    contiguous,
    describe,
    make_room,
    partition,
)
from mpchain.distributed.communicators.half_precision import HALF_PRECISION
from mpchain.distributed.watch import CollectiveMismatchError


class Completed:
    """The request of an operation that is finished already."""

    is_complete = True

    def __init__(self, result=None):
        self.result = result

    def Test(self):
        """Returns True."""
        return True

    def Wait(self):
        """Returns the result."""
        return self.result

    def steps(self):
        """Steps of waiting for the result within another operation: none."""
        return self.result
        yield


class Communicator:
    """A group of ranks that exchange arrays and objects; this class is the group of one process.

    Here every collective is the identity. Subclasses provide the transport: the object methods,
    :meth:`barrier`, :meth:`iallreduce` and the methods whose names begin with an underscore. All
    checks, all shapes and dtypes, and everything that follows from the transport are here.

    Arrays are NumPy or CuPy arrays of dtype int32, int64, float16, float32 or float64; float16 is
    summed in float32. Received arrays are on the kind of device that they were sent from.

    Operations whose names begin with i (``iallreduce``, ...) only begin. Every rank must begin the
    same ones in the same order, and leave the arrays alone until they are complete. They return a
    request: its ``Test()`` lets messages progress, also those of all other requests, and says
    whether the operation is complete; its ``Wait()`` waits for that and returns the result.

    A communicator is for one thread at a time; threads that communicate at the same time have one
    each, of :meth:`split`, made in the same order on all ranks.

    Args:
        micro_shards (int): not None makes training reproducible (:func:`create_communicator`).

    Attributes:
        rank, size: this process's number among the ranks, and how many there are.
        intra_rank, intra_size: the same among the ranks of this host.
        inter_rank, inter_size: this host's number among the hosts, and how many there are.
        mpi_comm: the ``mpi4py.MPI.Comm`` that carries the messages; None in one process.
        micro_shards: as given.
        timeout: seconds after which a rank that waits for others that do not work ends the job; may
            be set.
    """

    rank = 0
    size = 1
    intra_rank = 0
    intra_size = 1
    inter_rank = 0
    inter_size = 1
    mpi_comm = None
    timeout = math.inf
    within_config_scope = False

    def __init__(self, *, micro_shards=None):
        if micro_shards is not None and (micro_shards < 1 or micro_shards % self.size):
            raise ValueError(
                f"micro_shards must be a multiple of the number of ranks, {self.size}, "
                f"but is {micro_shards}"
            )
        self.micro_shards = micro_shards
        self._config = {"batched_copy": True, "allreduce_grad_dtype": None}
        self._to_myself = collections.deque()

    # Transport

    def barrier(self):
        """Waits until every rank has come here."""

    def bcast_obj(self, obj, max_buf_len=256 * 1024 * 1024, root=0):
        """Returns the root's ``obj`` on every rank; pieces of ``max_buf_len`` bytes travel."""
        self._check_rank("bcast_obj", "root", root)
        return obj

    def gather_obj(self, obj, root=0):
        """Returns the list of all ranks' objects at the root, None elsewhere."""
        self._check_rank("gather_obj", "root", root)
        return [obj]

    def allgather_obj(self, obj):
        """Returns the list of all ranks' objects on every rank."""
        return [obj]

    def scatter_obj(self, objs, root=0):
        """Returns this rank's element of the root's ``objs``, which has one per rank."""
        self._check_rank("scatter_obj", "root", root)
        (obj,) = objs
        return obj

    def alltoall_obj(self, objs):
        """Returns the list of what each rank has at this rank's place in its ``objs``."""
        return list(objs)

    def ibarrier(self):
        """Begins to wait until every rank has come here."""
        return Completed()

    def ibcast(self, x, root=0):
        """Begins to fill a contiguous array with the root's, of the same shape and dtype."""
        self._check_rank("ibcast", "root", root)
        self._check_contiguous("ibcast", x)
        return Completed(x)

    def iallgather(self, x):
        """Begins to gather all ranks' arrays, which have the same shape and dtype.

        Returns:
            A request whose result is a new array of shape (size, ...).
        """
        return Completed(check_array("iallgather", "x", x)[None].copy())

    def ireduce_scatter(self, x):
        """Begins to sum over the ranks the arrays at this rank's place in their ``x``.

        Args:
            x: contiguous array of shape (size, ...), dtype int32, int64, float32 or float64.

        Returns:
            A request whose result is a new array of shape ``x.shape[1:]``.
        """
        self._check_parts("ireduce_scatter", x)
        return Completed(x[0].copy())

    def iallreduce(self, x, wire_dtype=None):
        """Begins to sum a contiguous array over the ranks, in place.

        The result has the same bits on every rank.

        Args:
            x: contiguous array of dtype int32, int64, float32 or float64. One from
                :meth:`make_buffers` is summed faster.
            wire_dtype (str): ``float16`` or ``bfloat16``: a float array travels rounded to that,
                but is summed in its own dtype; within a host, where ranks share memory, nothing
                travels. None: exactly.

        Returns:
            A request whose result is ``x``.
        """
        self._check_summable_in_place("iallreduce", x)
        if wire_dtype is not None and (wire_dtype not in HALF_PRECISION or x.dtype.kind != "f"):
            raise ValueError(
                f"iallreduce: wire_dtype must be one of {', '.join(HALF_PRECISION)}, for float "
                f"arrays; it is {wire_dtype!r}, for {x.dtype}"
            )
        return self.begin_sum(x, wire_dtype)

    def begin_sum(self, x, wire_dtype=None):
        """As :meth:`iallreduce`, without checks; so sums of arrays that :meth:`make_buffers` made
        may begin in an order that differs between ranks."""
        return Completed(x)

    def begin(self, steps):
        """Begins an operation that is made of others.

        Args:
            steps: generator that begins sums and gathers over these ranks, one after another, each
                after it has the result of the one before by
                ``result = yield from request.steps()``. It goes on whenever a request is asked; so
                other operations may be begun before or after one of its sums, on each rank.

        Returns:
            A request whose result is what the generator returns.
        """
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return Completed(end.value)

    def make_buffers(self, specifications):
        """Makes host arrays that :meth:`iallreduce` sums faster than others; collective.

        Ranks on one host share their memory, and sum in place.

        Args:
            specifications: pairs of a number of elements and a dtype, the same on all ranks.

        Returns:
            list of flat arrays of zeros.
        """
        return [np.zeros(n, dtype) for n, dtype in specifications]

    def _send_header(self, header, identity, dest, tag):
        """Returns None; where the receiver expects others, its identities and :meth:`_place`."""
        raise NotImplementedError("one process has no other rank to send to")

    def _recv_header(self, source, expected, tag):
        """Returns the header, the rank that it came from, and None; where another message is
        expected, the identity and place of this."""
        raise NotImplementedError("one process has no other rank to receive from")

    def _exchange(self, outgoing, incoming):
        """Moves contiguous arrays; ``outgoing`` and ``incoming`` are pairs (other rank, array)."""

    def _broadcast(self, array, root):
        """Fills a contiguous array with the root's."""

    def _sum(self, array):
        """Sums a contiguous array over the ranks, in place."""

    def _sum_at(self, array, root):
        """Sums a contiguous array over the ranks, in place at the root; elsewhere it is lost."""

    def gradient_dtype(self, dtype):
        """Returns the dtype in which gradients of ``dtype`` are summed."""
        return WIRE_DTYPES[dtype]

    # Point to point

    def send(self, data, dest, tag=0, *, identity=None):
        """Sends an array, or a tuple of arrays, and waits until the receiver is there.

        A message from a rank to itself is kept until it is received.

        Args:
            data: array or tuple of arrays.
            dest (int): the receiver's rank.
            tag (int): the message's tag.
            identity (str): what the message is, in words; the receiver must expect the same.

        Raises:
            CollectiveMismatchError: on both ranks: the receiver expects another message.
        """
        self._check_rank("send", "dest", dest)
        is_tuple = isinstance(data, (tuple, list))
        arrays = [check_array("send", "data", x) for x in (data if is_tuple else [data])]
        if dest == self.rank:
            copies = [x.copy() for x in arrays]
            self._to_myself.append((tag, tuple(copies) if is_tuple else copies[0], identity))
            return
        header = is_tuple, [describe(x) for x in arrays]
        unlike = self._send_header(header, identity, dest, tag)
        if unlike is not None:
            raise _unlike("send", (dest, *unlike), (self.rank, identity, self._place()))
        self._exchange([(dest, contiguous(x)) for x in arrays], [])

    def recv(self, source, tag=0, *, identity=None):
        """Receives what :meth:`send` sent: an array or a tuple of arrays.

        Args:
            source (int): the sender's rank.
            tag (int): the message's tag; None takes any.
            identity: what the message must be, see :meth:`send`; or a tuple of what it may be.

        Raises:
            CollectiveMismatchError: on both ranks: it is another message.
        """
        self._check_rank("recv", "source", source)
        expected = identity if isinstance(identity, tuple) else (identity,)
        if source == self.rank:
            data, sent = self._take_own_message("recv", tag)
            unlike = None if sent in expected else (sent, self._place())
        else:
            data, source, unlike = self._recv_header(source, expected, tag)
        if unlike is not None:
            raise _unlike("recv", (self.rank, expected, self._place()), (source, *unlike))
        if source == self.rank:
            return data
        is_tuple, descriptions = data
        arrays = [make_room(description) for description in descriptions]
        self._exchange([], [(source, x) for x in arrays])
        return tuple(arrays) if is_tuple else arrays[0]

    def _place(self):
        """Says what this rank has called, and where, for reports."""
        return "a call"

    def send_obj(self, obj, dest, tag=0):
        """Sends any object that can be pickled."""
        self._check_rank("send_obj", "dest", dest)
        self._to_myself.append((tag, obj, None))

    def recv_obj(self, source, status=None, tag=None):
        """Receives an object.

        Args:
            source (int): the sender's rank; under MPI also ``MPI.ANY_SOURCE``.
            status (mpi4py.MPI.Status): filled with the sender and tag, where given.
            tag (int): the message's tag; None or ``MPI.ANY_TAG`` takes any.
        """
        self._check_rank("recv_obj", "source", source)
        return self._take_own_message("recv_obj", tag)[0]

    def _take_own_message(self, function, tag):
        for i, (sent_tag, message, identity) in enumerate(self._to_myself):
            if tag is None or tag < 0 or tag == sent_tag:
                del self._to_myself[i]
                return message, identity
        raise RuntimeError(
            f"{function}: rank {self.rank} waits for a message with tag {tag} from itself, "
            "but has sent none: it would wait for ever"
        )

    # Collectives on arrays

    def bcast(self, x, root=0):
        """Returns the root's array on every rank.

        At the root that is ``x`` itself; on the others ``x`` may be None.
        """
        self._check_rank("bcast", "root", root)
        if self.rank == root:
            x = check_array("bcast", "x", x)
            result = contiguous(x)
            self.bcast_obj(describe(x), root=root)
        else:
            result = make_room(self.bcast_obj(None, root=root))
        self._broadcast(result, root)
        return x if self.rank == root else result

    def gather(self, x, root=0):
        """Returns the tuple of all ranks' arrays at the root, None elsewhere; shapes may differ."""
        self._check_rank("gather", "root", root)
        x = check_array("gather", "x", x)
        descriptions = self.gather_obj(describe(x), root)
        received = self._move({root: x}, dict(enumerate(descriptions or [])))
        return tuple(received.values()) if self.rank == root else None

    def allgather(self, x):
        """Returns the tuple of all ranks' arrays on every rank; shapes may differ."""
        x = check_array("allgather", "x", x)
        descriptions = self.allgather_obj(describe(x))
        outgoing = dict.fromkeys(range(self.size), x)
        return tuple(self._move(outgoing, dict(enumerate(descriptions))).values())

    def scatter(self, xs, root=0):
        """Returns this rank's array of the root's ``xs``: one per rank (None on other ranks)."""
        self._check_rank("scatter", "root", root)
        outgoing, descriptions = {}, None
        if self.rank == root:
            outgoing = dict(enumerate(check_arrays("scatter", "xs", xs, self.size)))
            descriptions = [describe(x) for x in outgoing.values()]
        return self._move(outgoing, {root: self.scatter_obj(descriptions, root)})[root]

    def alltoall(self, xs):
        """Returns the tuple of the arrays that each rank has at this rank's place in its ``xs``."""
        xs = check_arrays("alltoall", "xs", xs, self.size)
        descriptions = self.alltoall_obj([describe(x) for x in xs])
        return tuple(self._move(dict(enumerate(xs)), dict(enumerate(descriptions))).values())

    def allreduce(self, x):
        """Returns the sum of all ranks' arrays, a new array, on every rank."""
        x = check_array("allreduce", "x", x)
        self._check_alike("allreduce", x)
        total = x.astype(WIRE_DTYPES[x.dtype], order="C")
        self._sum(total)
        return self._finite("allreduce", total.astype(x.dtype, copy=False))

    def reduce(self, x, root=0):
        """Returns the sum of all ranks' arrays, a new array, at the root, None elsewhere."""
        self._check_rank("reduce", "root", root)
        x = check_array("reduce", "x", x)
        self._check_alike("reduce", x)
        total = x.astype(WIRE_DTYPES[x.dtype], order="C")
        self._sum_at(total, root)
        if self.rank == root:
            return self._finite("reduce", total.astype(x.dtype, copy=False))
        return None

    def reduce_scatter(self, xs):
        """Returns the sum over the ranks of the arrays at this rank's place in their ``xs``.

        The sum is taken in the order of the ranks. It is ``alltoall`` followed by a local sum, and
        so moves no more than a reduction does.
        """
        parts = self.alltoall(xs)
        if len({(part.shape, part.dtype) for part in parts}) > 1:
            held = ", ".join(f"rank {r}: {p.shape} {p.dtype}" for r, p in enumerate(parts))
            raise ValueError(f"reduce_scatter: the arrays for rank {self.rank} differ: {held}")
        dtype = parts[0].dtype
        total = parts[0].astype(WIRE_DTYPES[dtype])
        for part in parts[1:]:
            total += part
        return total.astype(dtype, copy=False)

    def _move(self, outgoing, descriptions):
        """Sends ``outgoing`` (rank -> array); returns what was described (rank -> new array)."""
        incoming = {rank: make_room(description) for rank, description in descriptions.items()}
        if self.rank in incoming:
            incoming[self.rank][...] = outgoing[self.rank]
        self._exchange(
            [(rank, contiguous(x)) for rank, x in outgoing.items() if rank != self.rank],
            [(rank, x) for rank, x in incoming.items() if rank != self.rank],
        )
        return incoming

    # Objects, and shares of samples

    def share_of(self, n):
        """Returns the range (begin, end) of this rank's part of ``n`` samples.

        The parts are contiguous and as equal as possible, the first being the longer ones. With
        micro-shards that holds for these, and a rank's part is made of whole ones.
        """
        n_shards = self.micro_shards or self.size
        first = self.rank * n_shards // self.size
        last = (self.rank + 1) * n_shards // self.size - 1
        return partition(n, first, n_shards)[0], partition(n, last, n_shards)[1]

    def allreduce_obj(self, obj):
        """Returns the sum of all ranks' objects, by their own ``+``, in the order of ranks."""
        return functools.reduce(operator.add, self.allgather_obj(obj))

    # Life cycle and configuration

    def split(self, color, key):
        """Returns the communicator of the ranks with the same ``color``, ordered by ``key``."""
        part = Communicator(micro_shards=self.micro_shards)
        part._config.update(self._config)
        return part

    def __deepcopy__(self, memo):
        """Returns the communicator itself: copies of a model talk to the same ranks."""
        return self

    def finalize(self):
        """Releases what the communicator holds; it must not be used afterwards."""

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc_value, traceback):
        if exc_type is None:  # releasing is collective: another rank may never come there
            self.finalize()

    def set_config(self, name, value=True):
        """Sets a configuration entry: ``batched_copy`` or ``allreduce_grad_dtype``."""
        if name not in self._config:
            raise ValueError(
                f"set_config: no entry {name!r}; there are {', '.join(sorted(self._config))}"
            )
        self._config[name] = value

    def get_config(self, name=None):
        """Returns a configuration entry, or all of them as a dict."""
        if name is None:
            return dict(self._config)
        if name not in self._config:
            raise ValueError(
                f"get_config: no entry {name!r}; there are {', '.join(sorted(self._config))}"
            )
        return self._config[name]

    @contextlib.contextmanager
    def config_scope(self):
        """Context manager: attributes set on the communicator within are configuration entries."""
        self.within_config_scope = True
        try:
            yield self
        finally:
            object.__setattr__(self, "within_config_scope", False)

    def __setattr__(self, name, value):
        if self.within_config_scope:
            self.set_config(name, value)
        else:
            object.__setattr__(self, name, value)

    # Checks

    def _check_rank(self, function, argument, rank):
        if not 0 <= rank < self.size:
            raise ValueError(
                f"{function}: {argument} must be a rank from 0 to {self.size - 1}, not {rank}"
            )

    def _check_contiguous(self, function, x):
        check_array(function, "x", x)
        if isinstance(x, np.generic) or not x.flags.c_contiguous:
            raise ValueError(f"{function}: x must be contiguous, but has strides {x.strides}")

    def _check_summable_in_place(self, function, x):
        check_array(function, "x", x)
        if isinstance(x, np.generic) or WIRE_DTYPES[x.dtype] != x.dtype or not x.flags.c_contiguous:
            raise ValueError(
                f"{function}: x must be contiguous and not float16, to be summed in place: "
                f"dtype {x.dtype}, strides {x.strides}"
            )

    def _check_parts(self, function, x):
        self._check_summable_in_place(function, x)
        if x.ndim == 0 or len(x) != self.size:
            raise ValueError(
                f"{function}: x must hold {self.size} arrays, one per rank, but has shape {x.shape}"
            )

    def _check_alike(self, function, x):
        """In debug mode, raises ValueError on all ranks unless shape and dtype agree."""
        if configuration.is_debug():
            held = self.allgather_obj((x.shape, str(x.dtype)))
            if len(set(held)) > 1:
                text = ", ".join(
                    f"rank {r}: {shape} {dtype}" for r, (shape, dtype) in enumerate(held)
                )
                raise ValueError(
                    f"{function}: shapes and dtypes must be the same on all ranks: {text}"
                )

    def _finite(self, function, x):
        """Returns ``x``; in debug mode, raises ValueError unless all its elements are finite."""
        if configuration.is_debug() and x.dtype.kind == "f" and not np.isfinite(x).all():
            raise ValueError(f"{function}: the sum over the ranks has elements that are not finite")
        return x


def _unlike(function, expected, sent):
    """The error of a message that is not the one that is expected.

    Args:
        expected: rank, identities and place of the receiver.
        sent: rank, identity and place of the sender.
    """
    receiver, identities, where = expected
    sender, identity, whence = sent
    return CollectiveMismatchError(
        f"{function}: the message is not the one that is expected:\n"
        f"  rank {receiver} expects {identities[0] or 'any array'}, by {where}\n"
        f"  rank {sender} sends {identity or 'any array'}, by {whence}"
    )
