"""What one process records: spans of time, sums that are under way, memory."""

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

from mpchain.backends import cuda
from mpchain.configuration import config
from mpchain.function_hook import FunctionHook
from mpchain.functions.declaring.written_out import time_calls
from mpchain.utils.memory import pool_bytes, resident_bytes

NAME = "mpchain.profile"
"""The name of the function hook."""

SAMPLING = 100_000_000
"""Nanoseconds from one look at memory to the next: it is a system call."""

_SHOWN = {
    "matrix_product": "matmul",
    "multi_node_batch_normalization": "batch_normalization",
}
"""Public names of functions whose callers cannot be replaced: operators, other ranks' functions."""


class _Functions(FunctionHook):
    """Records functions forward that do not time themselves (see :func:`time_calls`)."""

    name = NAME
    sees_nodes = True  # under compat, too

    def __init__(self, recorder):
        self._recorder = recorder

    def forward_preprocess(self, function, in_data):
        function.profile_start = self._recorder.now()

    def forward_postprocess(self, function, in_data):
        recorder = self._recorder
        end = recorder.now()
        function.profiled_as = what = recorder.calls[function.label]
        recorder.record((function.profile_start, end, what))


class Calls(dict):
    """What the spans of functions are, by name: made once for each place, since they are many.

    Args:
        link: the link that calls the functions; None is outside of links.
        public: name of the public function within which all of them are called; None if there is
            none, and they have names themselves.

    Attributes:
        link: what the span of the link itself is.
        within: :class:`Calls` within public functions, by name. The outermost one gives the name.

    Example:
        >>> Calls(None)["_exp"]
        ('function', 'exp', None, None)
        >>> Calls(None).within["convolution_2d"]["_with_bias"]
        ('function', 'convolution_2d', None, None)
    """

    def __init__(self, link: Any, public: str | None = None):
        super().__init__()
        self.link, self._public = ("link", type(link).__name__, link, None), public
        self.within = None if public else _Within(link)

    def __missing__(self, name: str) -> tuple:
        shown = self._public or _SHOWN.get(name) or name.lstrip("_")
        what = self[name] = "function", shown, self.link[2], None
        return what


class _Within(dict):
    def __init__(self, link):
        super().__init__()
        self._link = link

    def __missing__(self, name):
        self[name] = calls = Calls(self._link, name)
        return calls


@dataclasses.dataclass(slots=True)
class Operation:
    """An operation of all ranks in the background, from its beginning to its end, in nanoseconds.

    Attributes:
        name: what is summed.
        n_bytes: its size.
        start, end: times; the end is None while it is under way.
        summing: time in which this rank summed, sent or received.
        waiting: time in which this rank did nothing but wait for it.
    """

    name: str
    n_bytes: int | None
    start: int
    end: int | None = None
    summing: int = 0
    waiting: int = 0


class Recorder:
    """What the thread that makes it does, while :meth:`start` has been called and not :meth:`stop`.

    All times are in nanoseconds of a monotonic clock of this process.

    Args:
        skip: number of steps to forget.
        steps: number of steps after these, after which ``on_full`` is called; None: no limit.
        on_full: function without arguments.

    Attributes:
        record: function that takes the start and the end of a span, and what it is: a tuple (kind,
            name, link or None, dict of details or None). They are kept in one list, since the
            garbage collector would visit a tuple for each span.
        outside: :class:`Calls` outside of links.
        calls: the same where the thread is now: in a link, in a public function.
        targets: targets of optimizers, by id.
        operations: :class:`Operation` s that have ended.
        under_way: others, by the id of their request.
        memory: tuples (time, bytes resident, bytes used of CuPy's pool).
        next_look: time before which memory is not looked at again.
        hooks: the hooks of functions, if nothing but the recorder's was active when it started.
        open: kinds of spans that are not complete.
        n_steps: number of steps that have ended.
        trainer: the trainer that runs; None if there is none.

    Example:
        >>> recorder = Recorder()
        >>> recorder.start()
        >>> y = F.exp(np.zeros(2))
        >>> recorder.stop()
        >>> [(kind, name) for _, _, kind, name, *_ in recorder.spans]
        [('function', 'exp')]
    """

    def __init__(
        self, skip: int = 0, steps: int | None = None, on_full: Callable[[], Any] = lambda: None
    ):
        self._skip, self._last, self._on_full = skip, steps and skip + steps, on_full
        self.thread = threading.get_ident()
        self._spans, self.operations, self.memory = [], [], []
        self.record = self._spans.extend
        self.outside = self.calls = Calls(None)
        self.targets, self.under_way, self.open = {}, {}, set()
        self.label = self.trainer = self.hooks = self._step_start = None
        self.n_steps = self.work = self.next_look = 0
        self._has_gpu = cuda.available  # asked once, since that takes microseconds
        self.now = _time_of_gpu if self._has_gpu else time.perf_counter_ns
        self._hook = _Functions(self)

    @property
    def spans(self) -> list[tuple]:
        """Tuples (start, end, kind, name, link or None, dict of details or None)."""
        values = iter(self._spans)
        return [(start, end, *what) for start, end, what in zip(values, values, values)]

    def start(self) -> None:
        """Starts to see functions.

        Raises:
            KeyError: another recorder is active in this thread.
        """
        self._step_start = self.now()
        self.sample_memory(self._step_start)
        self._hook.__enter__()
        self.hooks = config.function_hooks if len(config.function_hooks) == 1 else None
        time_calls(self)

    def stop(self) -> None:
        """Stops to see them."""
        time_calls()
        self._hook.__exit__()

    def is_mine(self) -> bool:
        """Returns whether the calling thread is the one that is recorded."""
        return threading.get_ident() == self.thread

    def add(self, start: int, kind: str, name: str, details: dict[str, Any] | None = None) -> int:
        """Adds a span that ends now; returns its end."""
        end = self.now()
        self.record((start, end, (kind, name, None, details)))
        return end

    def sample_memory(self, time: int) -> None:
        """Notes how much memory is in use at a time, and when to do so next."""
        self.next_look = time + SAMPLING
        self.memory.append((time, resident_bytes(), pool_bytes() if self._has_gpu else 0))

    def end_step(self, trainer: Any = None) -> None:
        """Ends a step: a trainer's iteration or, where there is no trainer, an update.

        Args:
            trainer: what calls it; None is the optimizer, which does not count within a trainer.
        """
        if trainer is None and (self.trainer is not None or "evaluation" in self.open):
            return
        now = self.now()
        if trainer is None or self.trainer is trainer:
            self.n_steps = n = self.n_steps + 1
            if n > self._skip:
                what = "step", f"step {n}", None, {"step": n}
                self.record((self._step_start, now, what))
            elif n == self._skip:
                for recorded in (self._spans, self.operations, self.memory):
                    recorded.clear()
                self.next_look = now
        # What a trainer does before its first iteration is no step. Steps are a nanosecond apart:
        # viewers, which add numbers of floating point, would take the next one for a part.
        self.trainer, self._step_start = trainer, now + 1
        if self._last is not None and self.n_steps >= self._last:
            self._on_full()

    def follow(self, request: Any, name: str, n_bytes: int | None, start: int) -> None:
        """Follows an operation that was begun until it is complete."""
        operation = Operation(name, n_bytes, start)
        request = getattr(request, "_request", request)  # within what the watchdog makes of it
        if request.is_complete or not hasattr(request, "go_on"):  # a GPU's, which nobody asks
            self.end(operation)
        else:
            self.under_way[id(request)] = operation

    def end(self, operation: Operation) -> None:
        """Notes that an operation has ended."""
        operation.end = time.perf_counter_ns()
        self.operations.append(operation)


def _time_of_gpu():
    """The time after the GPU's work: else a function would take as long as to ask for its work."""
    cuda.cupy.cuda.get_current_stream().synchronize()
    return time.perf_counter_ns()
