"""The launcher's view of one rank."""

import signal
import socket
from typing import Any

from . import messages, report
from .messages import Channel, words
from .output import Errors, Lines
from .rank import WHERE
from .standstill import STOPPED

TYPE_CHECKING = False  # importing typing would slow the start
if TYPE_CHECKING:
    from .job import Job

# If a program has not ended this many seconds after a traceback, the traceback did not end the
# program, and is shown.
TIME_TO_DIE = 2.0

# A program is idle if its state is none of these (running, or waiting for a disk), it uses less
# than this fraction of one core, and it neither reads nor writes files.
ACTIVE = ("R", "D")
LEAST_ACTIVITY = 0.05
# The system does not count bytes that a program receives from a network, but they wake the program
# up. Timers do so, too, but a thread that only polls wakes up less often per second than this.
LEAST_WAKES = 1.0

# This is the most output of a rank that is kept for the report of its end.
MOST_BYTES, MOST_LINES = 4096, 10
# A small terminal has this many lines.
LINES_IN_SIGHT = 24


class Rank:
    """The launcher's view of one rank.

    Args:
        job: The `Job` to which the rank belongs.
        connection: A socket to the rank's supervisor.

    Attributes:
        number: The rank; None before its supervisor has introduced itself.
        place: The number under which the rank is shown: the number of a lost rank that it replaced,
            or its own.
        channel: The `Channel` to the supervisor.
        host: Name of the host.
        process: Process id of the supervisor.
        bound: The cores to which the program is bound, or the reason why it is not bound; empty if
            no binding was requested.
        heard: The `Loop.time` at which the supervisor last sent a message.
        active: The `Loop.time` at which the program last worked.
        awake: The `Loop.time` at which the program last woke up again and again, as if it was
            receiving.
        moved: The `Loop.time` at which the program was last seen not to be stopped (SIGSTOP).
        is_stopped: Whether the program was stopped (SIGSTOP) when its state was last reported.
        phase: The latest startup phase that the program has begun, as in start_program.py, or 0.
        done: Whether the program is over and did not fail; only MPI_Finalize may be left.
        code: Exit code of the program, -n if signal n killed it, None before its end.
        ended_itself: Whether the program ended before the launcher asked it to end.
        has_guard: Whether the guard still runs.
        lost: The reason why the connection was lost before the program ended; otherwise empty.
        oom_kills: The number of processes that the host's kernel has meanwhile ended because memory
            ran out; -1 if unknown.
        stacks: The stacks that the program wrote.
        exception: The line of the last traceback that names the exception; may be empty.
    """

    def __init__(self, job: "Job", connection: socket.socket):
        self._job = job
        self._actions = {
            messages.OUTPUT: lambda data: self._show(job.stdout, self._output.take(data), data),
            messages.ERRORS: self._take_errors,
            messages.STACKS: self._take_stacks,
            messages.REPORT: self._take_report,
            messages.TOLD: lambda data: self._lose_guard(),
            messages.PHASE: self._take_phase,
            messages.DONE: self._take_done,
            messages.END: self._take_end,
            messages.BEAT: self._take_beat,
            messages.NOTE: lambda data: job.losses.note(self, data),
        }
        self.number: Any = None
        self.place: Any = None
        self.code: Any = None
        self.host = self.bound = self.lost = self.exception = ""
        self.stacks = self._last = b""
        self.process = self.phase = self._shown_until = 0
        self.oom_kills = -1
        self.heard = self.active = self.awake = self.moved = self._asked = job.loop.time
        self._seconds, self._n_bytes, self._n_wakes = 0.0, "0", 0
        self.is_stopped = self.done = self.ended_itself = False
        self.has_guard = True
        if job.plan.hosts:
            messages.watch_over(connection, job.plan.host_timeout)
        self.channel = Channel(job.loop, connection, self._take, self._lose)
        self.channel.longest = messages.LONGEST_HELLO

    @property
    def name(self) -> str:
        """The rank's name in messages."""
        n = self._job.plan.n
        return f"rank {self.number} of {n}" + (f" on {self.host}" if n > 1 else "")

    @property
    def ended(self) -> bool:
        """Whether the program of this rank has ended."""
        return self.code is not None

    @property
    def failed(self) -> bool:
        """Whether the program ended, and not with exit code 0."""
        return self.ended and self.code != 0

    @property
    def has_finished(self) -> bool:
        """Whether the program came to its end without a failure."""
        return self.done and self.code in (None, 0)

    @property
    def cause(self) -> str:
        """The exception in brackets, if the program showed one; otherwise empty."""
        return f" ({self.exception})" if self.exception else ""

    @property
    def fate(self) -> str:
        """A text that says how the program ended."""
        return report.describe_end(self.code, self.oom_kills)

    @property
    def end(self) -> str:
        """A text that says how the program ended, with the exception if the program showed one."""
        return f"{self.name} {self.fate}{self.cause}"

    @property
    def showed_cause(self) -> bool:
        """Whether the program printed a traceback, or a message that it aborts the job."""
        return self._errors.showed_cause

    def pass_on(self, number: int) -> None:
        """Sends a signal to the program, without ending the job."""
        self.channel.send(messages.PASS, words(int(number)))

    def ask(self, what: bool) -> None:
        """Asks the supervisor for a heartbeat, and if `what`, also for the state of the program."""
        self.channel.send(messages.BEAT, b"1" if what else b"")

    def ask_where(self) -> None:
        """Asks the program for its stacks, without ending it."""
        self.pass_on(WHERE)

    def stop(self, number: int, grace: float, where: bool) -> None:
        """Sends the program a signal, and SIGKILL after some seconds of grace.

        Args:
            number: The signal.
            grace: The seconds.
            where: Whether to ask the program for its stacks first.
        """
        self.channel.send(messages.STOP, words(int(number), grace, int(where)))

    def kill(self) -> None:
        """Kills the program as if another process did; the job may continue without this rank."""
        self.pass_on(signal.SIGKILL)

    def swap_places(self, other: "Rank") -> None:
        """Swaps the numbers under which this rank and another rank are shown."""
        self.place, other.place = other.place, self.place
        for rank in (self, other):
            rank._mark_lines()

    def _mark_lines(self):
        """Makes later lines begin with the rank's number."""
        self._prefix = f"[{self.place}] ".encode() if self._job.plan.prefix else b""
        raw = self._job.plan.n == 1 and not self._prefix
        self._output.prefix = self._errors.prefix = None if raw else self._prefix
        # mpchain's exception hook writes this heading, which repeats the prefix.
        heading = f"rank {self.place} of {self._job.plan.n}:\n"
        self._errors.heading = heading.encode() if self._prefix else b""

    def announce_loss(self, number: int) -> None:
        """Tells the program that another rank is lost, because MPI may not notice the loss."""
        self.channel.send(messages.LOST, words(number))

    def last_lines(self) -> bytes:
        """Returns the program's last lines, unless a held traceback will be shown instead."""
        lines = self._last.splitlines(keepends=True)[-MOST_LINES:]
        return b"" if self._errors.held else b"".join(lines)

    @property
    def last_line(self) -> bytes:
        """The last line that the program printed, without prefix."""
        return (self._words() or [b""])[-1]

    def is_seen_at(self, other: "Rank") -> bool:
        """Returns whether another rank (or this rank) has just shown the same last lines."""
        since = self._job.merger.n_lines - other._shown_until
        return since <= LINES_IN_SIGHT - MOST_LINES and self._words() == other._words()

    def _words(self):
        lines = self.last_lines().splitlines()
        return [line.removeprefix(self._prefix) for line in lines]

    def show_rest(self) -> None:
        """Shows the output that was held back."""
        self.exception = self.exception or report.describe_exception(self._errors.unmarked())
        self._show(self._job.stdout, self._output.finish())
        self._show(self._job.stderr, self._errors.finish(), whole=True)

    def _show(self, screen, shown, data=b"", whole=False):
        if shown:
            self._shown_until = self._job.merger.put(screen, shown, self.place, whole)
        self._last = (self._last + shown)[-MOST_BYTES:]
        self._job.logs.write(self.place, data)

    def _take(self, kind, payload):
        self.heard = self._job.loop.time
        if self.number is None:
            self._take_hello(kind, payload)
        else:
            self._actions[kind](payload)

    def _take_hello(self, kind, payload):
        token, *rest = payload.split(b" ")
        if kind != messages.HELLO or token != self._job.token:
            self._job.forget(self)
            return
        self.number, self.host, self.process = int(rest[0]), rest[1].decode(), int(rest[2])
        self.bound = b" ".join(rest[3:]).decode()
        self.place = self.number
        self.channel.longest = messages.LONGEST
        raw = self._job.plan.n == 1 and not self._job.plan.prefix
        draw = None if raw or not self._job.has_terminal else self._job.stdout.draw
        self._output = Lines(None, draw)
        self._errors = Errors(None, self._release_later, draw, self._job.plan.is_verbose)
        self._mark_lines()
        self._job.welcome(self)

    def _take_errors(self, data):
        self._show(self._job.stderr, self._errors.take(data), data)
        self.show_same(self._job.cause)

    def held_lines(self) -> list[bytes]:
        """Returns the lines that are held back, without prefix."""
        return self._errors.unmarked()

    def show_same(self, lines: list[bytes]) -> None:
        """Shows the held traceback now if it equals these lines, so that the two are merged."""
        if lines and self._errors.unmarked() == lines:
            self._show(self._job.stderr, self._errors.release(), whole=True)

    def _release_later(self):
        release = lambda: self._show(self._job.stderr, self._errors.release(), whole=True)
        self._job.loop.after(TIME_TO_DIE, release)

    def _take_stacks(self, data):
        if not self.stacks:
            self._job.logs.write(self.place, b"mpchain-launch: where this rank was:\n")
        self.stacks += data
        self._job.logs.write(self.place, data)

    def _take_report(self, data):
        if page := self._job.plan.page:
            page.take(self.place, data)

    def _lose_guard(self):
        self.has_guard = False
        self._job.on_guard_end(self)

    def _take_phase(self, data):
        self.phase = int(data)
        self._job.standstill.note_phase()

    def _take_done(self, data):
        self.done = True
        self._job.on_program_end()

    def _take_beat(self, payload):
        if not payload:
            return
        state, seconds, n_bytes, n_wakes = payload.decode().split()
        now, used = self.heard, float(seconds) - self._seconds
        computes = used > LEAST_ACTIVITY * (now - self._asked)
        if int(n_wakes) - self._n_wakes > LEAST_WAKES * (now - self._asked):
            self.awake = now
        if state in ACTIVE or computes or n_bytes != self._n_bytes:
            self.active = now
        self.is_stopped = state in STOPPED
        if not self.is_stopped:
            self.moved = now
        self._seconds, self._n_bytes, self._asked = float(seconds), n_bytes, now
        self._n_wakes = int(n_wakes)

    def _take_end(self, payload):
        code, signalled, self.oom_kills = map(int, payload.split())
        self.code, self.ended_itself = code, not signalled
        self._job.standstill.note_progress()
        self._job.take_end(self)

    def _lose(self, error):
        if not self.ended:
            self.lost = "its supervisor was killed"
            if error and not isinstance(error, ConnectionError):
                self.lost = f"no heartbeat from its host: {error.strerror}"
        if self.number is not None:
            self.show_rest()
        self._job.lose(self)
