"""Averaging gradients so that each rank gets only the gradients of its own slice of the
parameters."""

import collections
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.requests import Request
from mpchain.distributed.gradients.buckets import Bucket, GradientReducer
from mpchain.distributed.gradients.transport import HostTransport
from mpchain.kernels.steps import square_sum
from mpchain.typing import Array
from mpchain.utils.flat_layout import FlatLayout
from mpchain.variable import Parameter


class ScatteringReducer(GradientReducer):
    """Sums each slice of the gradients on the one rank that updates the slice.

    The sum costs half as much communication as a sum on all ranks, but leaves the parameters'
    ``grad`` None. If a rank asks for whole gradients in a step, all ranks gather the slices.

    If all ranks ask for the norm of all gradients, it is computed from sums in the message. The
    message then waits until this rank has its slices.

    Gradients on GPUs that NCCL does not connect, and gradients of parameters without a layout, are
    summed on all ranks.

    Args:
        comm, zero_fill, compression: see :class:`GradientReducer`; the compression must be exact
            or half precision.

    Attributes:
        layouts: layouts of the flat arrays of parameters. Rank i has slice i of each array
            (``FlatLayout.part``).
        asks: whether this rank asks for whole gradients in this step.
        needs_norm: whether this rank asks for the norm of all gradients in this step.
        square_norm: the square of the norm; None if a rank did not ask, or if slices are on GPUs.

    Example:
        >>> param = mpchain.Parameter(np.zeros(2, np.float32))
        >>> reducer = ScatteringReducer(comm)
        >>> reducer.watch({"/W": param})
        >>> reducer.begin(n_samples=3)
        >>> param.grad = np.ones(2, np.float32)
        >>> reducer.finish(), param.grad  # whole, on one rank
        (3, array([1., 1.], dtype=float32))
    """

    layouts: Sequence[FlatLayout] = ()
    can_be_replayed = asks = needs_norm = False
    square_norm: float | None = None

    def __init__(
        self,
        comm: Communicator,
        *,
        zero_fill: bool = True,
        compression: Callable[[Communicator, Bucket], Any] | None = None,
    ):
        super().__init__(comm, zero_fill=zero_fill, compression=compression)
        self._gathering = Gathering(comm)

    def _divided(self):
        return [x for x in self._buckets or () if isinstance(x, ScatteredBucket)]

    def _questions(self):
        own, divided = 0.0, self._divided()
        # If NCCL sums the norm, neither MPI nor the host has to wait for the GPU.
        has_norm = self.needs_norm and not any(x.transport.is_on_gpu for x in divided)
        if has_norm:
            while self._pending:
                self._wait_for_first()
            own = math.fsum(square_sum(x) for bucket in divided for x in bucket.pieces().values())
        return [self.asks, has_norm, own]

    def means(self) -> dict[str, Array | None]:
        self.pieces = self.square_norm = None
        if divided := self._divided():
            counts = self._complete()
            n_asking, n_with_norm, square_norm = self.answers
            self.has_gathered = n_asking > 0
            self.square_norm = square_norm if n_with_norm == self._comm.size else None
            if self.has_gathered:
                self._gathering.gather(bucket.piece_and_use() for bucket in divided)
            else:
                counts = dict(zip(self._bucket_of, counts))
                self.pieces = {
                    name: piece if counts[name] else None
                    for bucket in divided
                    for name, piece in bucket.pieces().items()
                }
                for name in self.pieces:
                    self._params[name].grad = None
        return super().means()

    def _make_buckets(self, order):
        params, comm = self._params, self._comm
        transport, buckets = self._transport(), []
        if comm.sums_gradients and (comm.uses_nccl or not transport.is_on_gpu):
            buckets = [
                ScatteredBucket(layout, params, comm.gradient_dtype(layout.dtype), transport, comm)
                for layout in self.layouts
            ]
        names = {name for bucket in buckets for name in bucket.names}
        buckets += super()._make_buckets([name for name in order if name not in names])
        last = {name: i for i, name in enumerate(order)}
        return sorted(buckets, key=lambda bucket: max(last[name] for name in bucket.names))


class ScatteredBucket(Bucket):
    """Gradients of one dtype in one flat array, which has an equal slice for each rank.

    Args:
        layout, params, wire_dtype, transport: see :class:`Bucket`.
        comm: the communicator of the ranks.

    Example:
        >>> params = dict(L.Linear(2, 2).namedparams())
        >>> layout = FlatLayout(np.float32)
        >>> layout.append("/W", (2, 2))
        >>> bucket = ScatteredBucket(layout, params, np.dtype(np.float32), HostTransport, comm)
        >>> bucket.transport.allocate([np.zeros(*bucket.transport.specification)])
        >>> bucket.begin(), bucket.take("/W", factor=1)
        (None, True)
        >>> _ = bucket.begin_sum(comm).Wait()
        >>> bucket.pieces()["/W"]
        array([0., 0., 0., 0.], dtype=float32)
    """

    _is_whole = False
    _request: Any = None  # a request whose result is this rank's slice

    def __init__(
        self,
        layout: FlatLayout,
        params: Mapping[str, Parameter],
        wire_dtype: np.dtype,
        transport: type[HostTransport],
        comm: Communicator,
    ):
        self._rank, self._size = comm.rank, comm.size
        length = self._size * -(-layout.size // self._size)
        super().__init__(layout, params, wire_dtype, transport, length)
        self._parts_of_rank = layout.part(comm.rank, comm.size)

    def begin(self, losses_are_weighted: bool = False) -> None:
        self._is_whole, self._request = False, None
        super().begin(losses_are_weighted)

    def begin_sum(self, comm: Communicator, wire_dtype: str | None = None) -> Request:
        self._request = comm.ireduce_scatter(self.values.reshape(self._size, -1), wire_dtype)
        return self._request

    def pieces(self) -> dict[str, Array]:
        """Returns this rank's slice of each gradient, flat, in the gradients' dtype."""
        own, pieces = self._request.result, {}
        for name, part in self._parts_of_rank.items():
            begin = self.layout.slices[name].start - self._rank * own.size
            has = part.start < part.stop
            piece = own[begin + part.start : begin + part.stop] if has else own[:0]
            pieces[name] = piece.astype(self.layout.dtype, copy=False)
        return pieces

    def piece_and_use(self) -> tuple[Array, Callable[[Array], None]]:
        """Returns a pair for :meth:`Gathering.gather`: this rank's slice, and the function that
        sets the whole gradients."""
        return self._request.result, self._set_whole

    def _set_whole(self, values):
        self.values[...] = values
        self._is_whole = True

    def gradients(self) -> dict[str, Array]:
        """Returns the gradients by name if all ranks have gathered them; otherwise an empty
        dict."""
        return super().gradients() if self._is_whole else {}


class Gathering:
    """Gathers flat arrays, of which each rank has an equal slice.

    Args:
        comm: the communicator of the ranks.

    Example:
        >>> Gathering(comm).gather([(np.ones(2), print)])
        [1. 1.]
    """

    def __init__(self, comm: Communicator):
        self._comm, self._rooms = comm, []

    def gather(self, pieces: Iterable[tuple[Array, Callable[[Array], None]]]) -> None:
        """Gathers several arrays; two are pending at a time, so that copies overlap messages.

        Args:
            pieces: pairs of this rank's slice, which has the same size on all ranks, and a function
                that is called with the whole array. The function must not keep a reference to the
                array.
        """
        pending = collections.deque()
        for i, (piece, use) in enumerate(pieces):
            if len(pending) == 2:
                _use_first(pending)
            room = self._room(i % 2, piece) if isinstance(piece, np.ndarray) else None
            pending.append((self._comm.iallgather(piece, room), use))
        while pending:
            _use_first(pending)

    def _room(self, i, piece):
        n_bytes = piece.nbytes * self._comm.size
        if not self._rooms or self._rooms[0].nbytes < n_bytes:
            self._rooms = self._comm.make_buffers([(-(-n_bytes // 8), np.int64)] * 2)
        flat = self._rooms[i].view(piece.dtype)[: piece.size * self._comm.size]
        return flat.reshape(self._comm.size, -1)


def _use_first(pending):
    request, use = pending.popleft()
    use(request.Wait().reshape(-1))
