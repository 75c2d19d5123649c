"""What one process records: spans of time, sums that are under way, memory."""

import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from mpchain import functions
from mpchain.backends import cuda
from mpchain.configuration import config
from mpchain.distributed import functions as distributed_functions
from mpchain.function_hook import FunctionHook
from mpchain.utils.memory import pool_bytes, resident_bytes

NAME = "mpchain.profile"
"""The name of the function hook."""

SAMPLING = 100_000_000
"""Nanoseconds from one look at memory to the next: it is a system call."""

_PUBLIC = {*vars(functions), *vars(distributed_functions)}
_ROOMS = ("mpchain.functions.", "mpchain.distributed.functions.")
# What stands between a public function and its node, and around functions that check types.
_BETWEEN = {
    "mpchain.formulas.text",
    "mpchain.function_node",
    "mpchain.functions.declaration",
    "mpchain.utils.type_check",
}


class _Functions(FunctionHook):
    """Records functions forward; methods of seams record the rest, which costs less than hooks."""

    name = NAME
    sees_nodes = True  # under compat, too

    def __init__(self, recorder):
        # Closures, since they read less than methods: this is done for each function.
        now, record, links, get_frame = recorder.now, recorder.record, recorder.links, sys._getframe
        names, find = {}, self._find  # by the id of code, since its hash takes long
        self._names = names
        self._codes = []  # kept, so that no others get their ids

        def begin(function, in_data):
            function.profile_start = now()

        def end(function, in_data):
            end, found, frame = now(), None, get_frame(3)  # above apply
            try:
                while (name := names[id(frame.f_code)]) is not None:
                    found = name or found
                    frame = frame.f_back
            except KeyError:
                found = find(get_frame(3))
            function.profiled_as = what = links[-1][found or function.label]
            record((function.profile_start, end, what))

        self.forward_preprocess, self.forward_postprocess = begin, end

    def _find(self, frame):
        """Returns the name of the outermost public function, such as convolution_2d, or None."""
        found = None
        while (name := self._look(frame)) is not None:
            found = name or found
            frame = frame.f_back
        return found

    def _look(self, frame):
        """Returns the name of a public function, "" in its inside, None outside."""
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module not in _BETWEEN and not module.startswith(_ROOMS):
            name = None
        elif module in _BETWEEN or name not in _PUBLIC:
            name = ""
        self._codes.append(frame.f_code)
        self._names[id(frame.f_code)] = name
        return name


class Calls(dict):
    """What the spans of functions are, by name, within a link: made once, since they are many.

    Args:
        link: the link; None is outside of links.

    Attributes:
        link: the same for the span of the link itself.

    Example:
        >>> Calls(None)["_exp"]
        ('function', 'exp', None, None)
    """

    def __init__(self, link: Any):
        super().__init__()
        self.link = "link", type(link).__name__, link, None

    def __missing__(self, name: str) -> tuple:
        what = self[name] = "function", name.lstrip("_"), self.link[2], None
        return what


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
        links: :class:`Calls` outside of links, and of the links that compute, the innermost last.
        targets: targets of optimizers, by id.
        operations: :class:`Operation` s that have ended.
        under_way: others, by the id of their request.
        memory: tuples (time, bytes resident, bytes used of CuPy's pool).
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
        self.links, self.targets, self.under_way, self.open = [Calls(None)], {}, {}, set()
        self.label = self.trainer = self.hooks = self._step_start = None
        self.n_steps = self.work = 0
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

    def stop(self) -> None:
        """Stops to see them."""
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
        """Notes how much memory is in use, unless that was done lately."""
        if self.memory and time - self.memory[-1][0] < SAMPLING:
            return
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
            self.n_steps += 1
            if self.n_steps > self._skip:
                number = {"step": self.n_steps}
                what = "step", f"step {self.n_steps}", None, number
                self.record((self._step_start, now, what))
        if self.n_steps == self._skip > 0:
            for recorded in (self._spans, self.operations, self.memory):
                recorded.clear()
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
