"""Shows the output of ranks: prefixes each line with its rank, and keeps tracebacks together."""

import os
import re
import time
from collections.abc import Callable
from typing import Any

from .loop import Writer

TRACEBACK = b"Traceback (most recent call last):"
CRASH = b"Fatal Python error: "  # faulthandler writes this when a signal ends Python
ABORT = b"application called MPI_Abort("  # MPICH prints this in the rank itself
# A rank of MPICH prints these lines after its mpirun has ended, which the launcher reports itself.
DEATH_THROES = re.compile(rb"PMIU_write error; fd=|write_line (error; fd=|failure )")
# Open MPI prints these six lines in each rank after another rank was lost.
LOSS_OF_OPEN_MPI = b"*** An error occurred in PMIx Event Notification"
REST_OF_OPEN_MPI = re.compile(rb"\[[^\]\n]*:\d+\] \*\*\* ")
FOLDED = b"Open MPI ends this rank since another one is gone (--verbose shows its message)\n"
# After a rank has called MPI_Abort, Open MPI prints ten lines between two of these rules.
RULE = b"-" * 74 + b"\n"
ABORT_OF_OPEN_MPI = b"MPI_ABORT was invoked on rank"
LONGEST_LINE = 1 << 20
# This variable tells ranks the width of the terminal, because their output goes into pipes.
COLUMNS_VARIABLE = "MPCHAIN_COLUMNS"
ERASE_LINE = b"\r\x1b[K"


class Screen(Writer):
    """The launcher's standard output or error, or the terminal that is both.

    On a terminal, a line that a rank redraws, such as a progress bar, stays below all other lines.

    Args:
        loop, file, write, on_full, on_error: The same as in `Writer`.

    Attributes:
        live: The bytes of the line that is redrawn; empty if there is no such line.
        reader: Function that is called with all new output, or None.
    """

    live = b""
    reader: Callable[[bytes], object] | None = None

    def put(self, data: bytes) -> None:
        """Adds bytes, which end with a line feed if there is a live line."""
        if data and self.reader:
            self.reader(data)
        if data and self.live:
            data = ERASE_LINE + data + self.live
        super().put(data)

    def draw(self, text: bytes) -> None:
        """Replaces the live line; an empty text removes it."""
        text = fit(text, columns_of(1))
        if text != self.live:
            super().put(ERASE_LINE + text)
            self.live = text


def columns_of(descriptor: int) -> int:
    """Returns the width of a terminal; 0 for other files.

    Example:
        >>> with open(os.devnull) as file:
        ...     columns_of(file.fileno())
        0
    """
    try:
        return os.get_terminal_size(descriptor).columns or 80
    except OSError:
        return 0


def fit(text: bytes, columns: int) -> bytes:
    """Cuts a line so that it fits in one row of a terminal; the last column stays empty.

    Example:
        >>> fit(b"100% done", 6)
        b'100% '
    """
    if b"\x1b" in text:  # color codes take up no columns
        return text
    return text.decode(errors="replace")[: max(columns - 1, 0)].encode()


class Lines:
    """Splits the output of one rank into lines and puts a prefix before each line.

    Args:
        prefix: The bytes before each line; None passes all bytes unchanged.
        draw: Function that redraws a line on the terminal, for lines that end with a carriage
            return; None if there is no terminal, so that these lines are shown like other lines.

    Attributes:
        prefix: The current prefix, which may be changed.

    Example:
        >>> lines = Lines(b"[1] ")
        >>> lines.take(b"one\\ntw"), lines.take(b"o\\n"), lines.finish()
        (b'[1] one\\n', b'[1] two\\n', b'')
    """

    def __init__(self, prefix: bytes | None, draw: Callable[[bytes], object] | None = None):
        self.prefix, self._drawn = prefix, b""
        self._draw: Any = draw
        self._rest = bytearray()
        self._is_inside = False  # whether the beginning of the current line was shown

    def take(self, data: bytes) -> bytes:
        """Adds output of the rank; returns the text that can be shown now."""
        return data if self.prefix is None else b"".join(self._cut(data))

    def finish(self) -> bytes:
        """Returns the rest of the output, with a final line feed."""
        return self._end_rest()

    def _cut(self, data):
        if self._draw:
            return self._cut_and_draw(data)
        rest = self._rest
        # The rest contains no line break, except perhaps a final carriage return, which may be the
        # first half of a line break.
        start = max(0, len(rest) - 1)
        rest += data
        end = 1 + max(rest.rfind(b"\n", start), rest.rfind(b"\r", start, len(rest) - 1))
        if not end and len(rest) > LONGEST_LINE:
            end = len(rest)
        lines = bytes(rest[:end]).splitlines(keepends=True)
        del rest[:end]
        return [self._begin(line) + line for line in lines]

    def _cut_and_draw(self, data):
        *lines, rest = (bytes(self._rest) + data).split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        prefix = self.prefix or b""
        shown = [prefix + _last_frame(line).rstrip(b" ") + b"\n" for line in lines]
        drawn, is_redrawn = b"", b"\r" in rest
        if is_redrawn:
            frame = _last_frame(rest)
            rest = b"\r" + frame + b"\r" * rest.endswith(b"\r")
            drawn = prefix + frame.rstrip(b" ") if frame.strip() else b""
        self._rest[:] = rest
        if drawn != self._drawn:  # the live line may belong to another rank
            self._draw(drawn)
            self._drawn = drawn
        return shown

    def _begin(self, line):
        prefix = b"" if self._is_inside else self.prefix or b""
        self._is_inside = not line.endswith((b"\n", b"\r"))
        return prefix

    def _end_rest(self):
        if self._draw:
            has_text = _last_frame(self._rest).strip()
            line = b"".join(self._cut_and_draw(b"\n"))
            return line if has_text else b""
        if not self._rest and not self._is_inside:
            return b""
        rest = bytes(self._rest) + b"\n"
        self._rest.clear()
        return self._begin(rest) + rest


def _last_frame(line):
    """Returns a line as a terminal shows it after its carriage returns."""
    return next((bytes(frame) for frame in reversed(line.split(b"\r")) if frame), b"")


class Errors(Lines):
    """Lines of standard error; lines after the header of a traceback are held back.

    The traceback that ends a program is therefore shown in one piece, and before the tracebacks
    that it causes on other ranks.

    Args:
        prefix, draw: The same as in `Lines`.
        on_hold: Function that is called when lines begin to be held back.
        is_verbose: Whether known, uninformative messages of MPI libraries are shown in full.

    Attributes:
        heading: A line to omit, because the prefix says the same; empty if no line is omitted.
        showed_cause: Whether there was a traceback, or a line about a crash or an abort.

    Example:
        >>> errors = Errors(b"[1] ", on_hold=lambda: None)
        >>> errors.take(b"a warning\\nTraceback (most recent call last):\\n")
        b'[1] a warning\\n'
        >>> errors.held, errors.finish()
        (True, b'[1] Traceback (most recent call last):\\n')
    """

    def __init__(
        self,
        prefix: bytes | None,
        on_hold: Callable[[], object],
        draw: Callable[[bytes], object] | None = None,
        is_verbose: bool = False,
    ):
        super().__init__(prefix, draw)
        self._on_hold, self._is_verbose = on_hold, is_verbose
        self._held = []
        self.heading = b""
        self.showed_cause = False
        self._is_in_throes = self._is_in_loss = self._is_in_abort = False
        self._rule = b""  # a line that begins a message of Open MPI if the next line fits

    @property
    def held(self) -> bool:
        """Whether lines are held back."""
        return bool(self._held)

    def unmarked(self) -> list[bytes]:
        """Returns the lines that are held back, without prefix."""
        return [line.removeprefix(self.prefix or b"") for line in self._held]

    def release(self) -> bytes:
        """Returns the lines that were held back, and no longer holds them."""
        held, self._held = self._held, []
        return b"".join(held)

    def finish(self) -> bytes:
        """Returns the rest of the output, with a final line feed."""
        return self.release() + self._rule + super().finish()

    def _cut(self, data):
        lines = super()._cut(data)
        if self.heading:
            heading = (self.prefix or b"") + self.heading
            lines = [line for line in lines if line != heading]
        lines = lines if self._is_verbose else self._without_death_throes(lines)
        heads = [i for i, line in enumerate(lines) if TRACEBACK in line or CRASH in line]
        self.showed_cause |= bool(heads) or any(ABORT in line for line in lines)
        if self._held:
            self._held += lines
            return []
        if not heads:
            return lines
        self._held = lines[heads[0] :]
        self._on_hold()
        return lines[: heads[0]]

    def _without_death_throes(self, lines):
        shown = []
        for line in lines:
            text = line.removeprefix(self.prefix)
            if self._is_in_abort:
                self._is_in_abort = text != RULE
                continue
            rule, self._rule = self._rule, line if text == RULE else b""
            if rule and text.startswith(ABORT_OF_OPEN_MPI):
                self._is_in_abort = True
                shown.append(line.rstrip() + b" (--verbose shows all of this message)\n")
                continue
            shown += [rule] if rule else []
            if self._rule:
                continue
            goes_on = self._is_in_throes and text.rstrip() == b":"
            self._is_in_throes = goes_on or bool(DEATH_THROES.search(line))
            if begins := LOSS_OF_OPEN_MPI in text:
                shown.append((self.prefix or b"") + FOLDED)
            self._is_in_loss = begins or (self._is_in_loss and bool(REST_OF_OPEN_MPI.match(text)))
            if not self._is_in_throes and not self._is_in_loss:
                shown.append(line)
        return shown


class LogFiles:
    """One file for each rank with all its output, in the order of arrival.

    Args:
        folder: The folder of the files; None writes no files.
        n: The number of ranks.
        start: 1 for the first start of the job; later starts append to the files.
        say: Function that prints a message to the user.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     logs = LogFiles(folder, n=2, start=1, say=print)
        ...     logs.write(1, b"hello\\n"), logs.close()
        ...     sorted(os.listdir(folder))
        (None, None)
        ['rank_0.log', 'rank_1.log']
    """

    def __init__(self, folder: str | None, n: int, start: int, say: Callable[[str], object]):
        self._files, self._say = [], say
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
            names = [os.path.join(folder, f"rank_{rank}.log") for rank in range(n)]
            mode = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if start > 1 else os.O_TRUNC)
            self._files = [os.open(name, mode, 0o666) for name in names]
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            for rank in range(n):
                self.write(rank, f"mpchain-launch: start {start} of {n} ranks, {when}\n".encode())

    def write(self, rank: int, data: bytes) -> None:
        """Appends to the file of a rank; a full disk ends the logs, not the job."""
        try:
            while data and self._files:
                data = data[os.write(self._files[rank], data) :]
        except OSError as error:
            self.close()
            self._say(
                f"the files of --log-dir could not be written, and are incomplete: {error.strerror}"
            )

    def close(self) -> None:
        """Closes all files."""
        for file in self._files:
            os.close(file)
        self._files = []
