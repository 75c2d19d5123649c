"""Shows progress on a stream: a tqdm bar on a terminal, some lines anywhere else."""

import contextlib
import os
import shutil
import stat
import sys
import time
from typing import Any, TextIO

TEXT_LENGTH = 60
"""The number of columns that a bar leaves for the text beside it."""

COLUMNS_VARIABLE = "MPCHAIN_COLUMNS"
"""The environment variable in which mpchain-launch passes the width of its terminal."""


def print_line(text: str, out: TextIO | None = None) -> None:
    """Prints a line, above any progress bars of tqdm.

    Args:
        text: the line.
        out: the stream, an object with ``write``; None means standard output.

    Example:
        >>> print_line("training ends")
        training ends
    """
    stream = sys.stdout if out is None else out
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        print(text, file=stream)
    else:
        tqdm.tqdm.write(text, file=stream)
    if stream is not None and hasattr(stream, "flush"):  # a user's stream may support only write
        stream.flush()


def open_display(
    total: float | None,
    out: TextIO | None = None,
    bar_length: int = 50,
    n_lines: int = 20,
    keep: bool = True,
) -> "TqdmBar | ProgressLines":
    """Returns an object that shows progress: a tqdm bar on a terminal, otherwise a few lines.

    Args:
        total: the progress at the end, in any unit; None if it is unknown.
        out: the stream; None means standard output.
        bar_length: length of the bar in characters.
        n_lines: number of lines that show progress, if there is no terminal or no tqdm. A line is
            also printed after a minute without one.
        keep: whether the bar stays when it is closed.

    Example:
        >>> display = open_display(4, n_lines=2)
        >>> for i in range(5):
        ...     display.show(i, f"{i} done")
         50% 2 done
        100% 4 done
    """
    stream: Any = sys.stdout if out is None else out
    columns = terminal_columns(stream)
    if columns is not None:
        with contextlib.suppress(ImportError):
            return TqdmBar(total, stream, bar_length, keep, columns)
    return ProgressLines(total, stream, n_lines)


def terminal_columns(out: TextIO | None = None) -> int | None:
    """Returns the width of the terminal on which a line can be redrawn; None if there is none.

    The terminal may belong to mpchain-launch, which gets the output of its ranks through pipes.

    Args:
        out: the stream; None means standard output.

    Example:
        >>> import io
        >>> terminal_columns(io.StringIO())
    """
    stream: Any = sys.stdout if out is None else out
    # Open MPI's mpirun gives its processes a pseudo-terminal as standard output, but a pipe as
    # standard error: a bar that is redrawn in place would end up in its log, frame by frame.
    streams: list[Any] = [stream, sys.stderr]
    if all(hasattr(each, "isatty") and each.isatty() for each in streams):
        return shutil.get_terminal_size().columns  # unlike tqdm's own width, this is never 0
    if _is_pipe_to_launcher(stream):
        return int(os.environ[COLUMNS_VARIABLE])
    return None


def _is_pipe_to_launcher(out):
    if COLUMNS_VARIABLE not in os.environ:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(out.fileno()).st_mode)
    except (AttributeError, OSError):  # the stream is not a file
        return False


class TqdmBar:
    """A bar that tqdm redraws in place; for the arguments see :func:`open_display`."""

    def __init__(
        self, total: float | None, out: TextIO, bar_length: int, keep: bool, columns: int
    ) -> None:
        from tqdm import tqdm

        # tqdm's monitor is a thread, which is switched off because processes with threads should
        # not fork.
        bar_class: Any = type("Bar", (tqdm,), {"monitor_interval": 0})
        options = {"nrows": shutil.get_terminal_size().lines}
        if _is_pipe_to_launcher(out):
            # The launcher redraws one line, but cannot move to other lines as a terminal does.
            bar_class.status_printer = staticmethod(_frame_printer)
            options = {"position": 0}
        bar_length = min(bar_length, max(columns - TEXT_LENGTH, 10))
        self._total = total
        form = f"{{percentage:3.0f}}% |{{bar:{bar_length}}}| {{desc}}" if total else "{desc}"
        self._bar = bar_class(
            total=total,
            file=out,
            bar_format=form,
            leave=keep,
            ncols=columns - 1,
            **options,
        )

    def show(self, done: float, text: str) -> None:
        """Redraws the bar at ``done`` with ``text`` beside it."""
        # The last batch of an epoch may contain samples of the next epoch, so that progress exceeds
        # the total.
        self._bar.n = min(done, self._total) if self._total else done
        self._bar.set_description_str(text)

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()


def _frame_printer(file):
    """Returns a function that replaces the present line with a text; later output may replace
    it."""

    widest = 1

    def print_frame(text):
        nonlocal widest
        widest = max(widest, len(text))
        file.write(f"\r{text:{widest}}\r")
        file.flush()

    return print_frame


class ProgressLines:
    """Prints a line for each of ``n_lines`` parts of the total, and after some seconds without one.

    Args:
        total, out, n_lines: see :func:`open_display`.
        seconds: the longest time between two lines.

    Example:
        >>> ProgressLines(10, sys.stdout, n_lines=2).show(5, "half")
         50% half
    """

    def __init__(
        self, total: float | None, out: TextIO | None, n_lines: int, seconds: float = 60
    ) -> None:
        self._total = total
        self._out = out
        self._seconds = seconds
        self._step = total / n_lines if total and n_lines else float("inf")
        self._next = self._step
        self._printed_at = time.monotonic()

    def show(self, done: float, text: str) -> None:
        """Prints ``text`` if a line is due at ``done``."""
        now = time.monotonic()
        if done < self._next and now - self._printed_at < self._seconds:
            return
        self._printed_at = now
        if self._total:
            self._next = max((done // self._step + 1) * self._step, self._step)
            text = f"{min(done / self._total, 1):4.0%} {text}"
        print_line(text, self._out)

    def close(self) -> None:
        """Does nothing."""
