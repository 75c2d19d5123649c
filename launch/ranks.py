"""The launcher's view of one rank."""

import contextlib
import signal

from . import messages
from .messages import Channel, words
from .output import Errors, Lines

# A traceback that does not end its program in this time was only logged, and is shown.
TIME_TO_DIE = 2.0


def describe_end(code: int) -> str:
    """How a process ended, in words.

    Args:
        code: Its exit code, or -n if signal n killed it.
    """
    if code >= 0:
        return f"ended with exit code {code}"
    name = f"signal {-code}"
    with contextlib.suppress(ValueError):
        name = f"{signal.Signals(-code).name} ({name})"
    cause = ", perhaps because memory ran out" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{cause}"


class Rank:
    """The launcher's view of one rank.

    Args:
        job: The `Job` it belongs to.
        connection: A socket to its supervisor.
    """

    def __init__(self, job, connection):
        self._job = job
        self._actions = {
            messages.OUTPUT: lambda data: job.stdout.put(self._output.take(data)),
            messages.ERRORS: lambda data: job.stderr.put(self._errors.take(data)),
            messages.TOLD: lambda data: self._lose_guard(),
            messages.END: self._take_end,
        }
        self.number = None
        self.code = None
        self.ended_itself = False
        self.has_guard = True
        self.channel = Channel(job.loop, connection, self._take, self._lose)

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"rank {self.number} of {self._job.plan.n}"

    @property
    def ended(self) -> bool:
        """Whether the program of this rank ended."""
        return self.code is not None

    @property
    def failed(self) -> bool:
        """Whether it ended with anything but exit code 0."""
        return self.ended and self.code != 0

    @property
    def showed_cause(self) -> bool:
        """Whether it printed a traceback, or that it aborts the job."""
        return self._errors.showed_cause

    def stop(self, number: int, grace: float):
        """Sends it a signal now, and SIGKILL after some seconds of grace."""
        self.channel.send(messages.STOP, words(int(number), grace))

    def show_rest(self):
        """Shows what it printed and was kept back."""
        self._job.stdout.put(self._output.finish())
        self._job.stderr.put(self._errors.finish())

    def _take(self, kind, payload):
        if self.number is None:
            self._take_hello(kind, payload)
        else:
            self._actions[kind](payload)

    def _take_hello(self, kind, payload):
        token, _, number = payload.partition(b" ")
        if kind != messages.HELLO or token != self._job.token:
            self._job.forget(self)
            return
        self.number = int(number)
        prefix = f"[{self.number}] " if self._job.plan.prefix else ""
        raw = self._job.plan.n == 1 and not prefix
        self._output = Lines(None if raw else prefix.encode())
        self._errors = Errors(None if raw else prefix.encode(), self._release_later)
        self._job.welcome(self)

    def _release_later(self):
        self._job.loop.after(TIME_TO_DIE, lambda: self._job.stderr.put(self._errors.release()))

    def _lose_guard(self):
        self.has_guard = False
        self._job.hear_of_guard(self)

    def _take_end(self, payload):
        code, signalled = map(int, payload.split())
        self.code, self.ended_itself = code, not signalled
        self.show_rest()
        self._job.take_end(self)

    def _lose(self):
        if self.number is not None:
            self.show_rest()
        self._job.lose(self)
