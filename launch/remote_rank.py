"""The launcher's view of one rank."""

from . import messages, report
from .messages import Channel, words
from .output import Errors, Lines

# A traceback that does not end its program in this time was only logged, and is shown.
TIME_TO_DIE = 2.0

# How much of what a rank printed is remembered, for the report of its end.
MOST_BYTES, MOST_LINES = 4096, 10


class Rank:
    """The launcher's view of one rank.

    Args:
        job: The `Job` it belongs to.
        connection: A socket to its supervisor.

    Attributes:
        number: Its number, None before it said hello.
        host: Name of its host.
        code: Exit code of its program, -n if signal n killed it, None before its end.
        ended_itself: Whether its program ended before anybody asked it to.
        has_guard: Whether mpirun, or somebody else, has not ended its guard.
        lost: Why its connection was lost before its program ended; empty if it was not.
        stacks: What its program wrote about where it was.
        exception: The line of its last traceback that names the exception; may be empty.
    """

    def __init__(self, job, connection):
        self._job = job
        self._actions = {
            messages.OUTPUT: lambda data: self._show(job.stdout, self._output.take(data), data),
            messages.ERRORS: lambda data: self._show(job.stderr, self._errors.take(data), data),
            messages.STACKS: self._take_stacks,
            messages.TOLD: lambda data: self._lose_guard(),
            messages.END: self._take_end,
        }
        self.number = None
        self.host = ""
        self.code = None
        self.ended_itself = False
        self.has_guard = True
        self.lost = ""
        self.stacks = b""
        self.exception = ""
        self._last = b""
        messages.watch_over(connection, job.plan.host_timeout)
        self.channel = Channel(job.loop, connection, self._take, self._lose)

    @property
    def name(self) -> str:
        """What messages call it."""
        n = self._job.plan.n
        return f"rank {self.number} of {n}" + (f" on {self.host}" if n > 1 else "")

    @property
    def ended(self) -> bool:
        """Whether the program of this rank ended."""
        return self.code is not None

    @property
    def failed(self) -> bool:
        """Whether it ended with anything but exit code 0."""
        return self.ended and self.code != 0

    @property
    def end(self) -> str:
        """How it ended, with the exception if one was shown."""
        exception = f" ({self.exception})" if self.exception else ""
        return f"{self.name} {report.describe_end(self.code)}{exception}"

    @property
    def showed_cause(self) -> bool:
        """Whether it printed a traceback, or that it aborts the job."""
        return self._errors.showed_cause

    def pass_on(self, number: int):
        """Sends its program a signal that does not end the job."""
        self.channel.send(messages.PASS, words(int(number)))

    def stop(self, number: int, grace: float, where: bool):
        """Sends it a signal, and SIGKILL after some seconds of grace.

        Args:
            number: The signal.
            grace: The seconds.
            where: Whether it is asked before where it is.
        """
        self.channel.send(messages.STOP, words(int(number), grace, int(where)))

    def last_lines(self) -> bytes:
        """What it printed last, unless a traceback that was kept back goes before all that."""
        lines = self._last.splitlines(keepends=True)[-MOST_LINES:]
        return b"" if self._errors.held else b"".join(lines)

    def show_rest(self):
        """Shows what it printed and was kept back."""
        self.exception = self.exception or report.describe_exception(self._errors.unmarked())
        self._show(self._job.stdout, self._output.finish())
        self._show(self._job.stderr, self._errors.finish())

    def _show(self, screen, shown, data=b""):
        screen.put(shown)
        self._last = (self._last + shown)[-MOST_BYTES:]
        self._job.logs.write(self.number, data)

    def _take(self, kind, payload):
        if self.number is None:
            self._take_hello(kind, payload)
        else:
            self._actions[kind](payload)

    def _take_hello(self, kind, payload):
        token, *rest = payload.split(b" ")
        if kind != messages.HELLO or token != self._job.token:
            self._job.forget(self)
            return
        self.number, self.host = int(rest[0]), rest[1].decode()
        prefix = f"[{self.number}] " if self._job.plan.prefix else ""
        raw = self._job.plan.n == 1 and not prefix
        self._output = Lines(None if raw else prefix.encode())
        self._errors = Errors(None if raw else prefix.encode(), self._release_later)
        self._job.welcome(self)

    def _release_later(self):
        errors = self._errors
        self._job.loop.after(TIME_TO_DIE, lambda: self._show(self._job.stderr, errors.release()))

    def _take_stacks(self, data):
        if not self.stacks:
            self._job.logs.write(self.number, b"mpchain-launch: where this rank was:\n")
        self.stacks += data
        self._job.logs.write(self.number, data)

    def _lose_guard(self):
        self.has_guard = False
        self._job.hear_of_guard(self)

    def _take_end(self, payload):
        code, signalled = map(int, payload.split())
        self.code, self.ended_itself = code, not signalled
        self._job.take_end(self)

    def _lose(self, error):
        if not self.ended:
            self.lost = "its supervisor was killed"
            if error and not isinstance(error, ConnectionError):
                self.lost = f"no sign of life from its host: {error.strerror}"
        if self.number is not None:
            self.show_rest()
        self._job.lose(self)
