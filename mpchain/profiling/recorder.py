"""Records one process: spans of time, pending all-reduces, and memory."""

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from mpchain.backends import cuda
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.progress import PendingOperation
from mpchain.distributed.communicators.requests import Request
from mpchain.distributed.watch.fingerprints import Request as WatchedRequest
from mpchain.function_node import FunctionNode
from mpchain.observers import Observer, Span
from mpchain.typing import Arrays
from mpchain.utils.memory import pool_bytes, resident_bytes

SHORTEST = 10_000
"""Number of nanoseconds below which a call of a pending operation's ``go_on`` counts as waiting,
because it did no work."""

SAMPLING = 100_000_000
"""Number of nanoseconds between two samples of the memory in use, because a sample needs a system
call."""

_SHOWN = {
    "matrix_product": "matmul",
    "multi_node_batch_normalization": "batch_normalization",
}
"""Maps labels to public names, for functions that no public function calls, such as operators."""

_CALLS_A_USERS = "forget"
"""Name of the public function that calls a user's function, in which functions keep their names."""

_KINDS = {"gradients": "communication", "extension": "extensions"}
"""Maps kinds of spans to names in the trace; other kinds appear under their own names."""

_AFTER_THESE = {"forward", "optimizer", "evaluation"}
"""Kinds of spans after which a sample of the memory in use is taken: after forward, for example,
most arrays are alive."""

_OTHER_COLLECTIVES = {"split", "finalize", "make_buffers"}


@dataclasses.dataclass(slots=True)
class Operation:
    """A collective operation in the background, with its times in nanoseconds.

    Attributes:
        name: the name of the operation.
        n_bytes: the size of its data.
        start, end: times; the end is None while the operation is pending.
        summing: time that this rank spent summing, sending or receiving.
        waiting: time that this rank spent waiting for other ranks.
    """

    name: str
    n_bytes: int | None
    start: int
    end: int | None = None
    summing: int = 0
    waiting: int = 0


class Recorder(Observer):
    """Records one thread's work in a ``with`` block.

    All times are in nanoseconds of a monotonic clock of this process.

    Args:
        skip: number of steps to leave out at the beginning.
        steps: number of recorded steps after which ``on_full`` is called; None means no limit.
        on_full: function without arguments, which usually ends the recording.
        on_communicator: function that is called with each new communicator of several ranks.

    Attributes:
        record: function that takes a tuple: the start and the end of a span, and a description,
            which is a tuple (kind, name, link or None, dict of details or None). All three are
            kept in one flat list, because the garbage collector would visit a tuple per span.
        targets: the links that optimizers update, by id.
        operations: :class:`Operation` s that have ended.
        memory: tuples (time, resident bytes of the process, used bytes of CuPy's memory pool).
        open: kinds of the spans that have not ended, except links, calls and progress of
            operations; inside such a span, no other span of its kind is recorded.
        n_steps: number of steps that have ended.

    Example:
        >>> with Recorder() as recorder:
        ...     y = F.exp(np.zeros(2))
        >>> [(kind, name) for _, _, kind, name, *_ in recorder.spans]
        [('function', 'exp')]
    """

    def __init__(
        self,
        skip: int = 0,
        steps: int | None = None,
        on_full: Callable[[], Any] = lambda: None,
        on_communicator: Callable[[Any], Any] = lambda comm: None,
    ):
        self._skip, self._last, self._on_full = skip, steps and skip + steps, on_full
        self._on_communicator = on_communicator
        self._thread = threading.get_ident()
        self._spans, self.operations, self.memory = [], [], []
        self.record = self._spans.extend
        # These are the link and the public function in which the thread currently runs.
        self._link = self._public = None
        # The keys contain ids of links; the values keep the links alive, so ids are not reused.
        self._known: dict[tuple, tuple] = {}
        self.targets, self.open = {}, set()
        self._pending: dict[int, Operation] = {}  # the keys are ids of requests
        self._label = self._trainer = self._step_start = None
        self.n_steps = self._work = self._next_look = 0
        self._has_gpu = cuda.available  # the check takes microseconds, so it is made once
        self.now = _time_of_gpu if self._has_gpu else time.perf_counter_ns
        self._beginnings = {"link": self._begin_link, "call": self._begin_call}
        self._beginnings |= {"progress": self._begin_look, "wait": self._begin_wait}
        self._endings = {"link": self._end_link, "call": self._end_call}
        self._endings |= {"progress": self._end_look, "wait": self._end_wait}
        self._endings |= {"collective": self._end_collective, "bucket": self._end_bucket}

    @property
    def spans(self) -> list[tuple]:
        """The spans: tuples (start, end, kind, name, link or None, dict of details or None)."""
        values = iter(self._spans)
        return [(start, end, *what) for start, end, what in zip(values, values, values)]

    def __enter__(self) -> Self:
        self._step_start = self.now()
        self.sample_memory(self._step_start)
        return super().__enter__()

    def is_mine(self) -> bool:
        """Returns whether the calling thread is the recorded one."""
        return threading.get_ident() == self._thread

    def add(self, start: int, kind: str, name: str, details: dict[str, Any] | None = None) -> int:
        """Adds a span that ends now; returns its end."""
        end = self.now()
        self.record((start, end, (kind, name, None, details)))
        return end

    def sample_memory(self, time: int) -> None:
        """Records how much memory is in use, and sets the time of the next sample."""
        self._next_look = time + SAMPLING
        self.memory.append((time, resident_bytes(), pool_bytes() if self._has_gpu else 0))

    # The methods below record functions.

    def forward_preprocess(self, function: FunctionNode, in_data: Arrays) -> None:
        function.observed_as = self.now()

    def forward_postprocess(self, function: FunctionNode, in_data: Arrays) -> None:
        end, start = self.now(), function.observed_as
        what = self._what(function.label, self._link, self._public, in_data)
        function.observed_as = what
        self.record((start, end, what))

    def differentiates(self, function: object) -> int:
        return self.now()

    def differentiated(self, function: FunctionNode, begun: int) -> None:
        what = function.observed_as or self._what(function.label, None, None, ())
        self.record((begun, self.now(), what))

    def _what(self, label, link, public, inputs):
        """Returns the description of a function's span. To save memory, spans with the same link
        and shapes share one description."""
        name = public or _SHOWN.get(label) or label.lstrip("_")
        key = id(link), name, tuple([(x.shape, x.dtype) for x in inputs if x is not None])
        if key not in self._known:
            shapes = ", ".join(f"{dtype} {shape}" for shape, dtype in key[2])
            self._known[key] = "function", name, link, {"inputs": shapes} if shapes else None
        return self._known[key]

    # The methods below record spans.

    def begins(self, span: Span) -> Any:
        return self._beginnings.get(span.kind, self._begin)(span)

    def ends(self, span: Span, begun: object) -> None:
        if begun is not None:
            self._endings.get(span.kind, self._end)(span, begun)

    def _begin(self, span):
        """Returns the start time of a span, or None if the span is inside a span of its kind."""
        if span.kind in self.open:
            return None
        self.open.add(span.kind)
        if span.kind == "bucket":
            self._label = span.name
        return self.now()

    def _end(self, span, start):
        kind = span.kind
        self.open.discard(kind)
        end = self.now()
        self.record((start, end, (_KINDS.get(kind, kind), span.name, None, None)))
        if kind in _AFTER_THESE and end >= self._next_look:
            self.sample_memory(end)
        if span.has_failed:
            return
        if kind == "optimizer":
            self.targets[id(span.thing.target)] = span.thing.target
            self._end_step(None)
        elif kind == "extensions":
            self._end_step(span.thing)

    def _begin_link(self, span):
        outer = self._link, self._public
        self._link, self._public = span.thing, None
        return self.now(), outer

    def _end_link(self, span, begun):
        start, (self._link, self._public) = begun
        if not span.has_failed:
            link = span.thing
            what = self._known.setdefault((id(link), None), ("link", span.name, link, None))
            self.record((start, self.now(), what))

    def _begin_call(self, span):
        if self._public is not None or span.name == _CALLS_A_USERS:
            return None
        self._public = span.name
        return True

    def _end_call(self, span, begun):
        self._public = None

    def _end_step(self, trainer):
        """Ends a step: a trainer's iteration or, where there is no trainer, an update."""
        if trainer is None and (self._trainer is not None or "evaluation" in self.open):
            return
        now = self.now()
        if trainer is None or self._trainer is trainer:
            self.n_steps = n = self.n_steps + 1
            if n > self._skip:
                what = "step", f"step {n}", None, {"step": n}
                self.record((self._step_start, now, what))
            elif n == self._skip:
                for recorded in (self._spans, self.operations, self.memory):
                    recorded.clear()
                self._next_look = now
        # A trainer's work before its first iteration is not part of a step. Steps are a nanosecond
        # apart; otherwise rounding errors would make viewers nest the next step in this one.
        self._trainer, self._step_start = trainer, now + 1
        if self._last is not None and self.n_steps >= self._last:
            self._on_full()

    # The methods below record communication.

    def communicator(self, comm: Communicator) -> None:
        if comm.size > 1:
            self._on_communicator(comm)

    def _end_collective(self, span, start):
        self.open.discard("collective")
        if span.name in _OTHER_COLLECTIVES:
            return
        n_bytes = getattr(span.args[0], "nbytes", None) if span.args else None
        details = None if n_bytes is None else {"bytes": n_bytes}
        self.add(start, "communication", span.name, details)
        if isinstance(span.result, (Request, WatchedRequest)) and self._label is None:
            self._follow(span.result, span.name, n_bytes, start)

    def _end_bucket(self, span, start):
        self.open.discard("bucket")
        self._label = None
        if not span.has_failed:
            self._follow(span.result, span.name, span.args[0].nbytes, start)

    def _begin_look(self, span):
        return time.perf_counter_ns()

    def _end_look(self, span, start):
        request, took = span.thing, time.perf_counter_ns() - start
        operation = self._pending.get(id(request))
        if took >= SHORTEST:
            name = operation.name if operation else self._label or "operation"
            self.record((start, start + took, ("communication", f"sum: {name}", None, None)))
            self._work += took
            if operation:
                operation.summing += took
        if operation and request.is_complete:
            self._end_operation(self._pending.pop(id(request)))

    def _begin_wait(self, span):
        operation = self._pending.get(id(span.thing))
        if "wait" in self.open or (operation is None and span.thing is not None):
            return None
        self.open.add("wait")
        return time.perf_counter_ns(), self._work, operation

    def _end_wait(self, span, begun):
        start, before, operation = begun
        self.open.discard("wait")
        if operation is not None:
            self.add(start, "communication", f"wait: {operation.name}")
            end = operation.end or time.perf_counter_ns()
            operation.waiting += max(0, end - start - (self._work - before))
        elif time.perf_counter_ns() - start >= SHORTEST:
            self.add(start, "communication", f"wait: {span.name}")

    def _follow(self, request, name, n_bytes, start):
        """Follows a pending operation until it is complete."""
        operation = Operation(name, n_bytes, start)
        request = request.request if isinstance(request, WatchedRequest) else request
        if isinstance(request, PendingOperation) and not request.is_complete:
            self._pending[id(request)] = operation
        else:  # requests on a GPU are not polled
            self._end_operation(operation)

    def _end_operation(self, operation):
        operation.end = time.perf_counter_ns()
        self.operations.append(operation)


def _time_of_gpu():
    """Waits until the GPU has finished its queued work, and returns the time. Without this wait, a
    function's time would only be the time to launch its kernels."""
    cuda.cupy.cuda.get_current_stream().synchronize()
    return time.perf_counter_ns()
