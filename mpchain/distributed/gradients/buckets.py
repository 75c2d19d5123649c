"""Averaging gradients over ranks in flat buckets, while backward continues.

Communicators know only arrays and objects; this module adds methods to them that average the
gradients of models, and that copy models.
"""

import collections
import contextlib
import itertools
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.requests import Request
from mpchain.distributed.gradients import replication
from mpchain.distributed.gradients.compression import bfloat16, configured, exact, float16
from mpchain.distributed.gradients.control import ControlMessage
from mpchain.distributed.gradients.persistents import named_persistents
from mpchain.distributed.gradients.reducer import Reducer
from mpchain.distributed.gradients.transport import GpuTransport, HostTransport
from mpchain.link import Link
from mpchain.observers import observed, span
from mpchain.serializer import AbstractSerializer
from mpchain.typing import Array
from mpchain.utils.flat_layout import FlatLayout, layouts
from mpchain.variable import Parameter, Variable, own_grad

BUCKET_BYTES = 4 * 1024 * 1024
"""Bytes of gradients in one bucket. Larger buckets start later; smaller buckets need more
messages."""

GPU_BUCKET_BYTES = 25 * 1024 * 1024
FIRST_GPU_BUCKET_BYTES = 1024 * 1024
"""Bytes in one bucket on GPUs, where starting a sum costs more; a small first one starts early."""
NCCL_BYTES = 16
"""Bytes that NCCL loads at once from arrays aligned to this size; the smallest element has two
bytes."""

N_ROOMS = 3
"""Number of slots of a bucket on a host. Only one is used, unless a program holds gradients."""

MOST_PENDING = 2
"""The most pending sums once backward has ended: with more, buckets leave the cache in the
meantime."""


class GradientReducer(Reducer):
    """Averages gradients over the ranks, bucket by bucket.

    In the first step rank 0 records the order in which backward finishes the gradients, and all
    ranks lay the gradients out in that order in flat buckets of one dtype each. In later steps, a
    bucket is summed over the ranks as soon as its last gradient is final, while backward continues.
    All ranks start the sums in the same order, whatever the order of their own backward.

    A gradient is multiplied by the rank's share of the samples when it is copied into its bucket
    (unless its loss was multiplied), and the ranks count how many of them have each gradient. The
    sum is therefore the mean; a gradient that no rank has stays None. Afterwards ``param.grad`` is
    a view into the bucket, or a copy if gradients are summed in another dtype than their own. If a
    program still holds such views when the next step begins, the bucket uses another slot on this
    rank; if a program holds the views of several steps, it gets copies from then on.

    With one rank gradients stay unchanged.

    Args:
        comm: the communicator of the ranks.
        zero_fill: whether a gradient that only some of the ranks with samples have counts as zeros
            on the other ranks.
        compression: the function that sends a bucket, such as
            :func:`mpchain.distributed.gradients.compression.float16`. It is called with the
            communicator and the :class:`Bucket`, starts to replace the bucket's ``values`` with
            their sum over the ranks, and returns a request with ``Test()`` and ``Wait()``. None
            uses the communicator's configuration; its default is exact sums.
        message: see :class:`Reducer`. The message also counts the ranks that have each gradient.

    Attributes:
        compression: the argument of the same name.
        answers: the sums over the ranks of the additional scalars that each rank sent in this step.

    Example:
        >>> param = mpchain.Parameter(np.zeros(2, np.float32))
        >>> reducer = GradientReducer(comm)
        >>> reducer.watch({"/W": param})
        >>> reducer.begin(n_samples=3)
        >>> param.grad = np.ones(2, np.float32)
        >>> reducer.finish(), param.grad
        (3, array([1., 1.], dtype=float32))
    """

    answers: Sequence[float] = ()
    can_be_replayed = True

    def __init__(
        self,
        comm: Communicator,
        *,
        zero_fill: bool = True,
        compression: Callable[[Communicator, "Bucket"], Any] | None = None,
        message: ControlMessage | None = None,
    ):
        super().__init__(comm, zero_fill, message)
        self.compression = configured(comm) if compression is None else compression
        self._pending = collections.deque()

    @property
    def is_exact(self) -> bool:
        return self.compression is exact

    def renewed(self) -> "GradientReducer":
        return type(self)(self._comm, zero_fill=self._zero_fill, compression=self.compression)

    def watch(self, params: Mapping[str, Parameter]) -> None:
        super().watch(params)
        self._names = {id(param): name for name, param in self._params.items()}
        self._order = {}  # names in the order in which gradients became final in the first step
        self._buckets: Any = None  # becomes a list once the ranks have agreed on the order
        self._places = {}  # maps a parameter's id to its bucket and name

    def begin(
        self,
        n_samples: float | None = None,
        *,
        losses_are_weighted: bool = False,
        **options: Any,
    ) -> None:
        if self._pending:
            raise RuntimeError(
                "GradientReducer.begin: an exception ended the previous step while sums of "
                "gradients were pending, so the ranks cannot continue: restart from a snapshot"
            )
        self._means = {}
        super().begin(n_samples, **options)
        self._losses_are_weighted = losses_are_weighted
        # This is the factor of all gradients; None if it is not known yet.
        self._known_factor = float(self._n_samples > 0) if losses_are_weighted else None
        self._n_started = 0
        # A single bucket is sent after backward, so this rank need not know earlier which gradients
        # are ready.
        self.overlaps = self._comm.size > 1 and (not self._buckets or len(self._buckets) > 1)
        for bucket in self._buckets or ():
            bucket.begin(losses_are_weighted)

    def take(self, param: Variable) -> bool:
        place = self._places.get(id(param))
        if place is None:
            if self._buckets is None and id(param) in self._names:
                self._order[self._names[id(param)]] = None
            return False
        bucket, name = place
        return bucket.take(name, self._known_factor or self._factor())

    @observed("gradients", "copy gradients")
    def ready(self, param: Variable) -> None:
        if self.take(param):
            waiting = self._buckets[self._n_started :]
            for bucket in itertools.takewhile(operator.attrgetter("is_full"), waiting):
                self._send(bucket)
        while self._pending and self._pending[0].Test():
            self._pending.popleft()

    def finish(self) -> float:
        self.start()
        # The reducer drops its references to the means, so that it holds no memory until the next
        # step.
        means, self._means = self.means(), {}
        params = list(map(self._params.__getitem__, means))
        are_set = map(operator.is_, map(own_grad, params), means.values())
        if not (self._n_samples and all(are_set)):
            for param, mean in zip(params, means.values()):
                param.grad = mean
        return self.n_samples()

    def start(self) -> None:
        """Starts all sums. Afterwards the parameters' gradients may be replaced."""
        counts = [self._n_samples, self._n_samples > 0]
        if self._comm.size == 1:
            self._means = {name: param.grad for name, param in self._params.items()}
            self.message.begin(counts)
            return
        if self._buckets is None:
            self._lay_out()
        self._send_rest()
        for bucket in self._buckets or ():
            counts += bucket.presence()
        counts += self._questions()
        self._pending.append(self.message.begin(counts))

    def _questions(self):
        """Returns additional scalars for the message to sum; the number of scalars is the same on
        all ranks."""
        return []

    def means(self) -> dict[str, Array | None]:
        """Completes the sums; returns the means over all ranks by name, None where no rank has a
        gradient. The means are views into the buckets, or copies; with one rank, they are its
        gradients."""
        counts = self._complete()
        if self._comm.size > 1:
            for bucket in self._buckets:
                self._means.update(bucket.gradients())
            if 0 in counts:
                self._means.update({n: None for n, k in zip(self._bucket_of, counts) if k == 0})
        return self._means

    def _complete(self):
        """Completes the sums; returns for each gradient the number of ranks that have it, in the
        order of the buckets."""
        for request in self._pending:
            request.Wait()
        self._pending.clear()
        n_samples, n_ranks, *counts = self.message.wait()
        if n_samples != self._n_total:
            self._check_total(n_samples)
        if self._comm.size > 1:
            n = len(self._bucket_of)
            self.answers, counts = counts[n:], counts[:n]
            if not self._zero_fill:
                self._check_presence(dict(zip(self._bucket_of, counts)), n_ranks)
        return counts

    # These methods serve graphs of GPUs, which can hold sums but no messages between hosts.

    def why_not_in_graphs(self) -> str | None:
        """Returns the reason why a GPU's graph cannot hold the sums; None if it can hold them."""
        if self._comm.size == 1:
            return None
        if self._buckets is None or not all(b.transport.is_on_gpu for b in self._buckets):
            return "gradients have not been summed on GPUs before"
        if not self._comm.sums_gradients or self.compression not in (exact, float16, bfloat16):
            return "gradients are compressed by code whose state may change"
        return None

    @contextlib.contextmanager
    def in_graph(self) -> Iterator[None]:
        """Context manager: inside the block, :meth:`ready` begins sums that a graph captures, in
        buckets of the graph. The gradients must come from losses that are already weighted."""
        buckets = self._buckets or []
        self._losses_are_weighted, self._n_samples, self._n_started = True, 1, 0
        self._known_factor = 1.0
        try:
            for bucket in buckets:
                bucket.begin_in_graph()
            yield
        finally:
            self._pending.clear()
            for bucket in buckets:
                bucket.transport.end_in_graph()

    def begin_launch(self, n_samples: float | None, **options: Any) -> None:
        """Begins a step whose sums are held in a graph; see :meth:`begin`."""
        super().begin(n_samples, **options)

    def sum_in_graph(self) -> list[bool]:
        """Completes the sums that a graph holds, and sets the gradients.

        Returns:
            For each gradient, whether this rank has it; an empty list with one rank. A graph is
            usable only if all ranks have the same gradients.
        """
        if self._comm.size == 1:
            return []
        self._send_rest()
        while self._pending:
            self._wait_for_first()
        for bucket in self._buckets:
            for name, mean in bucket.gradients().items():
                self._params[name].grad = mean if bucket.had(name) else None
        return [is_there for bucket in self._buckets for is_there in bucket.presence()]

    def tell(self, presence: Sequence[bool]) -> float:
        """Sends the message of :meth:`finish` to the other ranks, given the result of
        :meth:`sum_in_graph`. Returns the number of samples, as :meth:`finish` does."""
        self.message.begin([self._n_samples, self._n_samples > 0, *presence])
        self._check_total(self.message.wait()[0])
        return self.n_samples()

    def serialize(self, serializer: AbstractSerializer) -> None:
        compression: Any = self.compression
        if hasattr(compression, "serialize"):
            compression.serialize(serializer["compression"], self._comm)

    def _factor(self):
        """Returns the factor of this rank's gradients; 0 if the gradients do not count."""
        if self._known_factor is None:
            self._known_factor = self.weight(self._n_samples)
        return self._known_factor

    def _wait_for_first(self):
        self._pending[0].Wait()
        self._pending.popleft()

    def _send(self, bucket):
        """Starts the sum of the next bucket, in the order that all ranks share."""
        request = Request()
        with span("bucket", f"bucket {self._n_started}", self, (bucket,)) as seen:
            if self._comm.sums_gradients:
                request = self.compression(self._comm, bucket)
            seen.result = request
        self._pending.append(request)
        self._n_started += 1

    def _send_rest(self):
        """Starts all remaining sums at the end of the step, when no other work is left."""
        for bucket in self._buckets[self._n_started :]:
            bucket.take_rest(self._factor())
            if len(self._pending) >= MOST_PENDING:
                self._wait_for_first()
            self._send(bucket)

    def _lay_out(self):
        """Agrees with the other ranks on the order of parameters, and divides them into buckets."""
        params = self._params
        order = self._comm.bcast_obj([*self._order, *sorted(params.keys() - self._order)])
        if unlike := params.keys() ^ set(order):
            raise ValueError(
                f"parameters must be initialized on all ranks or on none, but ranks 0 and "
                f"{self._comm.rank} differ in {', '.join(sorted(unlike))}"
            )
        self._buckets = self._make_buckets(order)
        self._bucket_of = {name: bucket for bucket in self._buckets for name in bucket.names}
        self._places = {id(params[n]): (bucket, n) for n, bucket in self._bucket_of.items()}
        # Sums of counts may still be pending in the array that is replaced here, so they are
        # completed first.
        self.n_samples(), self.n_empty()
        total = self._total
        specifications = [bucket.transport.specification for bucket in self._buckets]
        self._total, *arrays = self._comm.make_buffers([(2, total.dtype), *specifications], N_ROOMS)
        self._total[...] = total
        arrays = arrays[N_ROOMS - 1 :]
        for i, bucket in enumerate(self._buckets):
            bucket.transport.allocate(arrays[i * N_ROOMS : (i + 1) * N_ROOMS])
            bucket.begin(self._losses_are_weighted)

    def _make_buckets(self, order):
        """Returns the buckets of parameters, whose names are given in the order of their
        gradients."""
        params = self._params
        on_gpu = self._transport().is_on_gpu
        n_bytes = (GPU_BUCKET_BYTES, FIRST_GPU_BUCKET_BYTES) if on_gpu else (BUCKET_BYTES,)
        found = layouts(((name, params[name]) for name in order), *n_bytes)
        if on_gpu:  # NCCL sums unaligned arrays element by element
            found = [layout.aligned(NCCL_BYTES // 2) for layout in found]
        return [
            Bucket(layout, params, self._comm.gradient_dtype(layout.dtype), self._transport())
            for layout in found
        ]

    def _transport(self):
        """Returns the class of the buckets' transports."""
        on_gpu = any(param.xp is not np for param in self._params.values())
        return GpuTransport if on_gpu else HostTransport

    def _check_presence(self, counts, n_ranks):
        lacking = sorted(name for name, n in counts.items() if 0 < n < n_ranks)
        if lacking:
            held = self._comm.allgather_obj(
                [self._n_samples == 0 or self._bucket_of[name].had(name) for name in lacking]
            )
            text = "; ".join(
                f"{name} on rank {', '.join(str(r) for r, has in enumerate(held) if not has[i])}"
                for i, name in enumerate(lacking)
            )
            raise ValueError(
                "gradients are None on some ranks only; use zero_fill=True to count them as zeros "
                f"there: {text}"
            )


class Bucket:
    """Gradients of one dtype in one flat array.

    Args:
        layout: the offsets of the gradients in the array.
        params: dict from name to parameter, with at least the parameters of the layout.
        wire_dtype: the dtype in which the gradients are summed.
        transport: the class that copies gradients into the array, :class:`HostTransport` or
            :class:`GpuTransport`.
        length: the number of elements of the array; None uses the total size of the gradients.

    Attributes:
        layout: the argument of the same name.
        names: the parameters' names, in the order of the gradients.
        transport: an instance of the class ``transport``.

    Example:
        >>> model = L.Linear(2, 2)
        >>> params = dict(model.namedparams())
        >>> (layout,) = layouts(params.items())
        >>> bucket = Bucket(layout, params, np.dtype(np.float32))
        >>> bucket.transport.allocate([np.zeros(*bucket.transport.specification)])
        >>> bucket.values.size, bucket.views()["/W"].shape
        (6, (2, 2))
    """

    def __init__(
        self,
        layout: FlatLayout,
        params: Mapping[str, Parameter],
        wire_dtype: np.dtype,
        transport: type[HostTransport] = HostTransport,
        length: int | None = None,
    ):
        self.layout, self.names = layout, list(layout.slices)
        self._params = {name: params[name] for name in self.names}
        length = layout.size if length is None else length
        self.transport = transport(layout, self._params, wire_dtype, length)
        self.nbytes = length * wire_dtype.itemsize

    @property
    def values(self) -> Array:
        """The flat array, of ``wire_dtype``."""
        return self.transport.filled().values

    def views(self) -> dict[str, Array]:
        """Returns the parts of ``values`` by parameter name, in the shapes of the parameters."""
        return self.transport.filled().views

    def begin_sum(self, comm: Communicator, wire_dtype: str | None = None) -> Request:
        """Begins to replace ``values`` with their sum over the ranks; for ``wire_dtype`` see
        :meth:`mpchain.distributed.Communicator.iallreduce`."""
        return self.transport.begin_sum(comm, wire_dtype)

    def begin(self, losses_are_weighted: bool = False) -> None:
        """Starts a step with an empty bucket. If losses are weighted, no gradient is multiplied."""
        self._taken = {}
        self.transport.begin(losses_are_weighted)

    def begin_in_graph(self) -> None:
        """Starts a step in the memory of the GPU graph that is being captured."""
        self._taken = {}
        transport: Any = self.transport  # the transport of gradients on a GPU
        transport.begin_in_graph()

    @property
    def is_full(self) -> bool:
        """Whether the gradients of all parameters are in the bucket."""
        return len(self._taken) == len(self._params)

    def take(self, name: str, factor: float) -> bool:
        """Copies the final gradient of a parameter, times ``factor``, into the bucket; the gradient
        may be None.

        Returns:
            Whether the gradients of all parameters are in the bucket.
        """
        if name in self._taken:
            raise RuntimeError(f"the gradient of {name} became final twice in one step")
        grad = None if factor == 0 else self._params[name].grad
        self._taken[name] = grad is not None
        self.transport.put(name, grad, factor)
        return self.is_full

    def take_rest(self, factor: float) -> None:
        """Copies all gradients into the bucket that are not in it yet."""
        if not self._taken and factor == 1:
            if self.transport.put_all(map(own_grad, self._params.values())):
                self._taken = dict.fromkeys(self._params, True)
                return
        for name in self._params:
            if name not in self._taken:
                self.take(name, factor)

    def had(self, name: str) -> bool:
        """Returns whether this rank had a gradient for the parameter."""
        return self._taken[name]

    def presence(self) -> list[bool]:
        """Returns the result of :meth:`had` for each of :attr:`names`."""
        return list(map(self._taken.__getitem__, self._params))

    def gradients(self) -> dict[str, Array]:
        """Returns a dict from each name to its part of ``values``, in the dtype of the gradients.

        The parts are copies while the program holds parts of all other slots: it might still hold
        views of this slot, too, when the next step begins and needs memory.
        """
        views, copies = self.views(), self.transport.all_others_are_held()
        if self.transport.keeps_dtype and not copies:
            return views
        dtype = self.layout.dtype
        return {name: view.astype(dtype, copy=copies) for name, view in views.items()}


def bcast_data(self: Communicator, model: Link) -> None:
    """Copies parameters and persistent values of ``model`` from rank 0 to all ranks.

    A parameter that only some ranks have initialized is initialized on the others. A value that
    rank 0 lacks comes from the lowest rank that has it.

    Example:
        >>> comm.bcast_data(L.Linear(3, 2))  # now the same on all ranks
    """
    with model.device.create_context():
        replication.replicate(self, dict(model.namedparams()), named_persistents(model))


def multi_node_mean_grad(self: Communicator, model: Link, zero_fill: bool = False) -> None:
    """Replaces the gradients of ``model`` by their means over the ranks.

    Memory for the gradients is kept for the next call as long as the model exists.

    Args:
        model: the model; its parameters must be the same on all ranks.
        zero_fill: whether a gradient that is None on some ranks counts as zeros there. A gradient
            that is None on all ranks stays None.

    Raises:
        ValueError: a gradient is None on some ranks only, and ``zero_fill`` is False.

    Example:
        >>> model = L.Linear(1, 1)
        >>> model.W.grad = np.full((1, 1), comm.rank, np.float32)
        >>> comm.multi_node_mean_grad(model)
        >>> model.W.grad
        array([[0.]], dtype=float32)
    """
    params = dict(model.namedparams(include_uninit=False))
    kind = (
        zero_fill,
        self.get_config("allreduce_grad_dtype"),
        self.size,  # a loss of ranks changes the size
        [(name, id(p), p.shape, p.dtype, p.device) for name, p in params.items()],
    )
    kept = vars(self).setdefault("_reducers", weakref.WeakKeyDictionary())
    kind_before, reducer = kept.pop(model, (None, None))
    if kind_before != kind:
        reducer = GradientReducer(self, zero_fill=zero_fill)
        reducer.watch(params)
    with model.device.create_context():
        reducer.begin()
        reducer.finish()
    kept[model] = kind, reducer  # a reducer whose step failed is not kept


Communicator.bcast_data = Communicator.broadcast_data = bcast_data
Communicator.multi_node_mean_grad = Communicator.allreduce_grad = multi_node_mean_grad
