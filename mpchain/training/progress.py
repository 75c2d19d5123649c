"""Progress on a stream: a tqdm bar on a terminal, some lines anywhere else."""

import contextlib
import shutil
import sys
import time
from typing import TextIO

TEXT_LENGTH = 60
"""Columns that a bar leaves to the text beside it."""


def print_line(text: str, out: TextIO | None = None) -> None:
    """Prints a line, above any progress bars of tqdm.

    Args:
        text: the line.
        out: stream; None means standard output.

    Example:
        >>> print_line("training ends")
        training ends
    """
    out = sys.stdout if out is None else out
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        print(text, file=out)
    else:
        tqdm.tqdm.write(text, file=out)
    out.flush()


def open_display(
    total: float | None,
    out: TextIO | None = None,
    bar_length: int = 50,
    n_lines: int = 20,
    keep: bool = True,
) -> "TqdmBar | ProgressLines":
    """Returns an object that shows progress: a bar on a terminal with tqdm, else a few lines.

    Args:
        total: the progress at the end, in any unit; None if it is unknown.
        out: stream; None means standard output.
        bar_length: length of the bar in characters.
        n_lines: number of lines in all without a terminal or tqdm.
        keep: whether the bar stays when it is closed.

    Example:
        >>> display = open_display(4, n_lines=2)
        >>> for i in range(5):
        ...     display.show(i, f"{i} done")
         50% 2 done
        100% 4 done
    """
    out = sys.stdout if out is None else out
    if _is_terminal(out):
        with contextlib.suppress(ImportError):
            return TqdmBar(total, out, bar_length, keep)
    return ProgressLines(total, out, n_lines)


def _is_terminal(out):
    # Open MPI's mpirun gives its processes a pseudo-terminal as standard output, but a pipe as
    # standard error: a bar that is redrawn in place would end up in its log, frame by frame.
    return all(hasattr(stream, "isatty") and stream.isatty() for stream in (out, sys.stderr))


class TqdmBar:
    """A bar that tqdm redraws in place; arguments as :func:`open_display`."""

    def __init__(self, total: float | None, out: TextIO, bar_length: int, keep: bool) -> None:
        from tqdm import tqdm

        # tqdm's monitor is a thread, and processes with threads should not be forked.
        bar_class = type("Bar", (tqdm,), {"monitor_interval": 0})
        size = shutil.get_terminal_size()  # unlike tqdm's own, never 0 (as in some containers)
        bar_length = min(bar_length, max(size.columns - TEXT_LENGTH, 10))
        self._total = total
        form = f"{{percentage:3.0f}}% |{{bar:{bar_length}}}| {{desc}}" if total else "{desc}"
        self._bar = bar_class(
            total=total,
            file=out,
            bar_format=form,
            leave=keep,
            ncols=size.columns - 1,
            nrows=size.lines,
        )

    def show(self, done: float, text: str) -> None:
        """Redraws the bar at ``done`` with ``text`` beside it."""
        # The last batch of an epoch may reach into the next one, beyond the end.
        self._bar.n = min(done, self._total) if self._total else done
        self._bar.set_description_str(text)

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()


class ProgressLines:
    """Prints a line for each of ``n_lines`` parts of the total, and at least one a minute."""

    seconds_between_lines = 60

    def __init__(self, total: float | None, out: TextIO, n_lines: int) -> None:
        self._total = total
        self._out = out
        self._step = total / n_lines if total else float("inf")
        self._next = self._step
        self._printed_at = time.monotonic()

    def show(self, done: float, text: str) -> None:
        """Prints ``text`` if a line is due at ``done``."""
        now = time.monotonic()
        if done < self._next and now - self._printed_at < self.seconds_between_lines:
            return
        self._printed_at = now
        if self._total:
            self._next = (done // self._step + 1) * self._step
            text = f"{min(done / self._total, 1):4.0%} {text}"
        print_line(text, self._out)

    def close(self) -> None:
        """Does nothing."""
