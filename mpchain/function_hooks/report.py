"""Stopwatches for named pieces of work, and the tables of measured quantities that hooks print."""

import threading
import time
from collections.abc import Iterable
from typing import IO, Any

from mpchain.backends import cuda

TIME_UNITS = {"sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
BYTE_UNITS = {"TB": 1024.0**4, "GB": 1024.0**3, "MB": 1024.0**2, "KB": 1024.0, "B": 1.0}


def summarize(
    history: Iterable[tuple[Any, ...]], quantities: tuple[str, ...]
) -> dict[str, dict[str, float]]:
    """Sums measurements by name.

        >>> summarize([("f", 1.0), ("g", 2.0), ("f", 3.0)], ("seconds",))["f"]
        {'seconds': 4.0, 'occurrence': 2}

    Args:
        history: tuples (name, value of each quantity).
        quantities: the names of the quantities.

    Returns:
        A dict from each name, in the order of first appearance, to a dict of the sum of each
        quantity and of ``'occurrence'``, the number of measurements.
    """
    summary = {}
    for name, *values in history:
        row = summary.setdefault(name, {**dict.fromkeys(quantities, 0), "occurrence": 0})
        for quantity, value in zip(quantities, values):
            row[quantity] += value
        row["occurrence"] += 1
    return summary


def print_table(
    summary: dict[str, dict[str, float]],
    name_title: str,
    titles: dict[str, str],
    units: dict[str, float],
    unit: str,
    file: IO[str] | None,
) -> None:
    """Prints what :func:`summarize` returned as a right-aligned table, one line per name.

        >>> summary = {"f": {"s": 2.0, "occurrence": 3}}
        >>> print_table(summary, "Name", {"s": "Time"}, TIME_UNITS, "ms", None)
        Name       Time  Occurrence
           f  2000.00ms           3

    Args:
        summary: the result of :func:`summarize`.
        name_title: the title of the column of names.
        titles: the title of the column of each quantity.
        units: sizes of units by name, from large to small.
        unit: the name of a unit; ``'auto'`` chooses a unit for the largest value,
            ``'auto_foreach'`` for each value.
        file: the output; None means the standard output.

    Raises:
        ValueError: the unit is unknown.
    """
    if unit not in (*units, "auto", "auto_foreach"):
        allowed = ", ".join([*units, "auto", "auto_foreach"])
        raise ValueError(f"print_report: unit must be one of {allowed}, not {unit!r}")
    values = [row[quantity] for row in summary.values() for quantity in titles]
    if unit == "auto":
        unit = _suitable(max(values, default=0), units)
    table = [(name_title, *titles.values(), "Occurrence")]
    for name, row in summary.items():
        cells = [_in_unit(row[quantity], units, unit) for quantity in titles]
        table.append((name, *cells, str(row["occurrence"])))
    widths = [max(map(len, column)) for column in zip(*table)]
    for line in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)), file=file)


def _suitable(value, units):
    """Returns the name of the largest unit that does not exceed ``value``; if all do, the name of
    the smallest unit."""
    return next((name for name, size in units.items() if abs(value) >= size), list(units)[-1])


def _in_unit(value, units, unit):
    unit = _suitable(value, units) if unit == "auto_foreach" else unit
    return f"{value / units[unit]:.2f}{unit}"


class Stopwatch:
    """Measures pieces of work and sums their times by name.

    Work on a GPU is timed by CUDA events; :meth:`stop` waits for the end of the work.

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

    def start(self, key: object, on_gpu: bool) -> None:
        """Starts timing the work that ``key`` identifies."""
        if on_gpu:
            mark = cuda.Event()
            mark.record()
        else:
            mark = time.perf_counter()
        # The starts are stored by thread and key, because a hook can be active in several threads,
        # and in stacks, because a link can call itself.
        self._starts.setdefault((key, threading.get_ident()), []).append(mark)

    def stop(self, key: object, name: str) -> None:
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
        """Returns the sum of all times, in seconds; nested work counts more than once."""
        return sum(seconds for _, seconds in self.call_history)

    def summary(self) -> dict[str, dict[str, float]]:
        """Returns, for each name, a dict of ``'elapsed_time'`` in seconds and ``'occurrence'``, the
        number of pieces of work."""
        return summarize(self.call_history, ("elapsed_time",))

    def print_report(self, unit: str = "auto", file: IO[str] | None = None) -> None:
        """Prints the summary as a table.

        Args:
            unit: ``'sec'``, ``'ms'``, ``'us'`` or ``'ns'``; ``'auto'`` chooses a unit for the
                largest time, ``'auto_foreach'`` for each time.
            file: the output; None means the standard output.

        Raises:
            ValueError: the unit is unknown.
        """
        titles = {"elapsed_time": "ElapsedTime"}
        print_table(self.summary(), self.name_title, titles, TIME_UNITS, unit, file)
