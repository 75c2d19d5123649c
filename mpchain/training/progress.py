"""Progress on a stream: a tqdm bar on a terminal, a line now and then anywhere else."""

import shutil
import sys
import time

TEXT_LENGTH = 60
"""Columns that a bar leaves to the text beside it."""


def print_line(text, out=None):
    """Prints a line to ``out`` (standard output for None), above the progress bars if there are.

    Args:
        text: the line.
        out: stream.
    """
    out = sys.stdout if out is None else out
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        print(text, file=out)
    else:
        tqdm.tqdm.write(text, file=out)
    out.flush()


def open_display(total, out=None, bar_length=50, n_lines=20, keep=True):
    """Returns what shows progress on ``out``: a bar, or a few lines.

    Args:
        total: the progress at the end, in any unit; None if it is not known.
        out: stream; None means standard output.
        bar_length: length of the bar in characters.
        n_lines: number of lines in all where there is no terminal, or no tqdm.
        keep: whether the bar stays when it is closed.
    """
    out = sys.stdout if out is None else out
    tqdm = _import_tqdm() if _is_terminal(out) else None
    if tqdm is None:
        return ProgressLines(total, out, n_lines)
    return TqdmBar(tqdm, total, out, bar_length, keep)


def _is_terminal(out):
    # Open MPI's mpirun gives its processes a pseudo-terminal as standard output, but a pipe as
    # standard error: a bar that is redrawn in place would end up in its log, frame by frame.
    return all(hasattr(stream, "isatty") and stream.isatty() for stream in (out, sys.stderr))


def _import_tqdm():
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm


class TqdmBar:
    """A bar that is redrawn in place."""

    def __init__(self, tqdm, total, out, bar_length, keep):
        # tqdm's monitor is a thread, and processes with threads should not be forked.
        bar_class = type("Bar", (tqdm,), {"monitor_interval": 0})
        size = shutil.get_terminal_size()  # unlike tqdm's own, never 0 (as in some containers)
        bar_length = min(bar_length, max(size.columns - TEXT_LENGTH, 10))
        self._total = total
        self._bar = bar_class(
            total=total,
            file=out,
            bar_format=f"{{percentage:3.0f}}% |{{bar:{bar_length}}}| {{desc}}"
            if total
            else "{desc}",
            leave=keep,
            ncols=size.columns - 1,
            nrows=size.lines,
        )

    def show(self, done, text):
        """Redraws the bar at ``done`` with ``text`` beside it."""
        # The last batch of an epoch may reach into the next one, beyond the end.
        self._bar.n = min(done, self._total) if self._total else done
        self._bar.set_description_str(text)

    def close(self):
        """Ends the bar."""
        self._bar.close()


class ProgressLines:
    """Lines, one each time that another part of the total is done, or a minute is over."""

    seconds_between_lines = 60

    def __init__(self, total, out, n_lines):
        self._total = total
        self._out = out
        self._step = total / n_lines if total else float("inf")
        self._next = self._step
        self._printed_at = time.monotonic()

    def show(self, done, text):
        """Prints ``text`` if a line is due at ``done``."""
        now = time.monotonic()
        if done < self._next and now - self._printed_at < self.seconds_between_lines:
            return
        self._printed_at = now
        if self._total:
            self._next = (done // self._step + 1) * self._step
            text = f"{min(done / self._total, 1):4.0%} {text}"
        print_line(text, self._out)

    def close(self):
        """Does nothing: lines stay as they are."""
