"""What the ranks print: lines with the number of their rank, and tracebacks in one piece."""

TRACEBACK = b"Traceback (most recent call last):"
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
        showed_cause: Whether there was a traceback, or a line that tells of an abort.
    """

    def __init__(self, prefix, on_hold):
        super().__init__(prefix)
        self._on_hold = on_hold
        self._held = []
        self.showed_cause = False
        self._aborted = False

    def release(self) -> bytes:
        """What was kept back."""
        held, self._held = self._held, []
        return b"".join(held)

    def finish(self) -> bytes:
        """Whatever was kept, ended by a line feed."""
        return self.release() + super().finish()

    def _cut(self, data):
        lines = self._before_death_throes(super()._cut(data))
        self.showed_cause |= any(TRACEBACK in line or ABORT in line for line in lines)
        if self._held:
            self._held += lines
            return []
        first = next((i for i, line in enumerate(lines) if TRACEBACK in line), None)
        if first is None:
            return lines
        self._held = lines[first:]
        self._on_hold()
        return lines[:first]

    def _before_death_throes(self, lines):
        # In the moment between its abort and its end, MPICH complains that its mpirun has gone.
        last = next((i for i, line in enumerate(lines) if ABORT in line), len(lines))
        shown = [] if self._aborted else lines[: last + 1]
        self._aborted |= last < len(lines)
        return shown
