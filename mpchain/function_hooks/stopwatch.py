"""Timing of named pieces of work on the host or a GPU, for the timer hooks."""

import threading
import time
from typing import IO, Any

from mpchain.backends import cuda
from mpchain.function_hooks.report import TIME_UNITS, print_table, summarize


class Stopwatch:
    """Measures pieces of work and sums their times by name.

    Work on a GPU is timed by events, which waits for its end.

        >>> watch = Stopwatch()
        >>> watch.start("a key", on_gpu=False)
        >>> watch.stop("a key", "load")
        >>> watch.summary()["load"]["occurrence"]
        1

    Attributes:
        call_history: list of (name, seconds), in the order in which the work ended.
    """

    name_title = "Name"

    def __init__(self) -> None:
        self.call_history = []
        self._starts = {}

    def start(self, key: Any, on_gpu: bool) -> None:
        """Starts timing the work that ``key`` identifies."""
        if on_gpu:
            mark = cuda.Event()
            mark.record()
        else:
            mark = time.perf_counter()
        # A link can call itself, and a hook can be active in several threads.
        self._starts.setdefault((key, threading.get_ident()), []).append(mark)

    def stop(self, key: Any, name: str) -> None:
        """Stops timing the work that ``key`` identifies, and records the time under ``name``."""
        marks = self._starts[key, threading.get_ident()]
        mark = marks.pop()
        if not marks:
            del self._starts[key, threading.get_ident()]
        if isinstance(mark, float):
            seconds = time.perf_counter() - mark
        else:
            end = cuda.Event()
            end.record()
            end.synchronize()
            seconds = cuda.cupy.cuda.get_elapsed_time(mark, end) / 1000
        self.call_history.append((name, seconds))

    def total_time(self) -> float:
        """Returns the sum of all times, in seconds; nested work counts twice."""
        return sum(seconds for _, seconds in self.call_history)

    def summary(self) -> dict[str, dict[str, float]]:
        """Returns dicts of ``'elapsed_time'`` (seconds) and ``'occurrence'`` by name."""
        return summarize(self.call_history, ("elapsed_time",))

    def print_report(self, unit: str = "auto", file: IO[str] | None = None) -> None:
        """Prints the summary as a table.

        Args:
            unit: ``'sec'``, ``'ms'``, ``'us'`` or ``'ns'``; ``'auto'`` fits the largest time,
                ``'auto_foreach'`` each time.
            file: the output; None means the standard output.

        Raises:
            ValueError: the unit is unknown.
        """
        titles = {"elapsed_time": "ElapsedTime"}
        print_table(self.summary(), self.name_title, titles, TIME_UNITS, unit, file)
