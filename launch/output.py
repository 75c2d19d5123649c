"""What the ranks print: lines with the number of their rank, and tracebacks in one piece."""

import os
import time

TRACEBACK = b"Traceback (most recent call last):"
CRASH = b"Fatal Python error: "  # what faulthandler writes when a signal ends Python
ABORT = b"application called MPI_Abort("  # MPICH says so in the rank itself
LONGEST_LINE = 1 << 16


class Lines:
    """Cuts what one rank prints into lines and puts a prefix before each.

    Args:
        prefix: Put before each line; None lets bytes pass as they come.
    """

    def __init__(self, prefix: bytes | None):
        self._prefix = prefix
        self._rest = b""

    def take(self, data: bytes) -> bytes:
        """Takes some output; returns what can be shown now."""
        return data if self._prefix is None else b"".join(self._cut(data))

    def finish(self) -> bytes:
        """Whatever was kept, ended by a line feed."""
        return self._end_rest()

    def _cut(self, data):
        lines = (self._rest + data).splitlines(keepends=True)
        # A carriage return at the very end, too, may turn out to be half of a line's end.
        complete = not lines or lines[-1].endswith(b"\n") or len(lines[-1]) > LONGEST_LINE
        self._rest = b"" if complete else lines.pop()
        return [self._prefix + line for line in lines]

    def _end_rest(self):
        rest, self._rest = self._rest, b""
        return self._prefix + rest + b"\n" if rest else b""


class Errors(Lines):
    """Lines of standard error that keeps back what follows the head of a traceback.

    A traceback that ends its program is so shown in one piece, not mixed with those of other ranks,
    and not after them if it is the cause of theirs.

    Args:
        prefix: As in `Lines`.
        on_hold: Called when something begins to be kept back.

    Attributes:
        showed_cause: Whether there was a traceback, or a line that tells of a crash or an abort.
    """

    def __init__(self, prefix, on_hold):
        super().__init__(prefix)
        self._on_hold = on_hold
        self._held = []
        self.showed_cause = False
        self._aborted = False

    @property
    def held(self) -> bool:
        """Whether something is kept back."""
        return bool(self._held)

    def unmarked(self) -> list[bytes]:
        """The lines that are kept back, without prefix."""
        return [line.removeprefix(self._prefix or b"") for line in self._held]

    def release(self) -> bytes:
        """What was kept back."""
        held, self._held = self._held, []
        return b"".join(held)

    def finish(self) -> bytes:
        """Whatever was kept, ended by a line feed."""
        return self.release() + super().finish()

    def _cut(self, data):
        lines = self._before_death_throes(super()._cut(data))
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

    def _before_death_throes(self, lines):
        # In the moment between its abort and its end, MPICH complains that its mpirun has gone.
        last = next((i for i, line in enumerate(lines) if ABORT in line), len(lines))
        shown = [] if self._aborted else lines[: last + 1]
        self._aborted |= last < len(lines)
        return shown


class LogFiles:
    """One file for each rank, with all that it prints, in the order in which it arrives.

    Args:
        folder: Where they are; None for no files.
        n: Number of ranks.
        start: 1 for the first start of the job; later ones add to the files.
        say: Function that tells the user a sentence.
    """

    def __init__(self, folder: str | None, n: int, start: int, say):
        self._files, self._say = [], say
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
            names = [os.path.join(folder, f"rank_{rank}.log") for rank in range(n)]
            mode = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if start > 1 else os.O_TRUNC)
            self._files = [os.open(name, mode, 0o666) for name in names]
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            for rank in range(n):
                self.write(rank, f"mpchain-launch: start {start} of {n} ranks, {when}\n".encode())

    def write(self, rank: int, data: bytes):
        """Adds to the file of a rank; a disk that is full ends the logs, not the job."""
        try:
            while data and self._files:
                data = data[os.write(self._files[rank], data) :]
        except OSError as error:
            self.close()
            self._say(f"the files of --log-dir end here: {error.strerror}")

    def close(self):
        """Closes all files."""
        for file in self._files:
            os.close(file)
        self._files = []
