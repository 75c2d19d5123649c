"""One job of N ranks, from its start to the exit code and the line that explains it."""

import contextlib
import os
import select
import signal
import socket
import sys

from .loop import Loop, Writer
from .messages import words
from .plan import Plan
from .processes import adopt_orphans, kill_descendants, shell_code, signal_session, spawn
from .rank import VARIABLE
from .ranks import Rank, describe_end

# For ranks to end after mpirun, and for mpirun to end after ranks that failed, or that did not.
TIME_TO_FOLLOW = 1.0
TIME_TO_CLOSE = 30.0
MOST_KEPT_OF_MPIRUN = 1 << 16

# What Open MPI says when, now and then, it fails to start for a reason that is gone a moment later.
PASSING_FAILURE = b"listener thread failed to start"
MOST_STARTS = 3


def say(text: str):
    """Prints one line of the launcher's own on standard error."""
    with contextlib.suppress(OSError, AttributeError):  # standard error may be closed
        print(f"mpchain-launch: {text}", file=sys.stderr, flush=True)


class Job:
    """Runs a plan.

    Args:
        plan: What to run.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.token = os.urandom(16).hex().encode()
        self.loop = Loop()
        self.stdout = self._screen(1)
        self.stderr = self._screen(2)
        self._connections = []
        self._ranks = {}
        self._ends = []
        self._first_without_guard = None
        self._verdict = None
        self._signals = 0
        self._stop_signal = None
        self._starter_words = b""
        self._starter_code = None
        self._starts = 0

    def run(self) -> int:
        """Runs the job to its end, whatever happens; returns the exit code."""
        adopt_orphans()
        spared = _children()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=self.plan.n)
        self.loop.on_readable(self._listener, self._accept)
        self.loop.on_signal(signal.SIGCHLD, lambda number: self._collect())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves SIGHUP
                self.loop.on_signal(number, self._interrupt)
        if self.plan.timeout is not None:
            self.loop.after(self.plan.timeout, self._time_out)
        try:
            self._start()
            self.loop.run(until=self._finished)
        finally:
            self._listener.close()
            kill_descendants(spared)
        return self._explain()

    def _start(self):
        self._starts += 1
        self._starter_words = b""
        host, port = self._listener.getsockname()
        contact = words(host, port, self.token.decode(), self.plan.n, self.plan.starter.patience)
        environment = {**os.environ, **self.plan.variables, VARIABLE: contact.decode()}
        self._words, end = os.pipe()
        os.set_blocking(self._words, False)
        self.loop.on_readable(self._words, self._keep_words)
        self._starter = spawn(self.plan.command, environment, end, end)
        os.close(end)

    def _finished(self):
        if self._starter_code is None or self._connections:
            return False
        return not len(self.stdout) and not len(self.stderr)

    # What happens on the side of the ranks

    def _accept(self):
        self._connections.append(Rank(self, self._listener.accept()[0]))
        self._pause_or_resume()

    def welcome(self, rank: Rank):
        """Takes a rank whose supervisor has said hello."""
        if rank.number in self._ranks or rank.number >= self.plan.n:
            sentence = f"{self._starter_name} started two processes as {rank.name}"
            self._end(sentence, 1, signal.SIGTERM)
        self._ranks[rank.number] = rank
        if self._stop_signal:
            rank.stop(self._stop_signal, self.plan.grace)

    def forget(self, rank: Rank):
        """Closes the connection of a rank, or of a stranger."""
        rank.channel.close()
        self._connections.remove(rank)

    def take_end(self, rank: Rank):
        """Learns that the program of a rank ended."""
        self._ends.append(rank)
        if rank.failed and rank.ended_itself and rank.has_guard:
            code = shell_code(rank.code)
            self._end(
                f"{rank.name} {describe_end(rank.code)}{self._fate_of_others}", code, signal.SIGTERM
            )

    def hear_of_guard(self, rank: Rank):
        """Learns that mpirun, or somebody else, ended the guard of a rank."""
        self._first_without_guard = self._first_without_guard or rank

    def lose(self, rank: Rank):
        """Learns that the supervisor of a rank is gone, as it should be after the program."""
        self._connections.remove(rank)
        if rank.number is not None and not rank.ended:
            sentence = f"{rank.name} was lost: its supervisor was killed{self._fate_of_others}"
            self._end(sentence, 128 + signal.SIGKILL, signal.SIGTERM)
        if not self._connections and len(self._ranks) == self.plan.n:
            seconds = TIME_TO_FOLLOW if self._verdict else TIME_TO_CLOSE
            self.loop.after(seconds, self._end_starter)

    # What happens on the side of mpirun

    def _collect(self):
        if self._starter_code is not None:
            return
        ended, status = os.waitpid(self._starter, os.WNOHANG)
        if ended:
            self._keep_words()
            if self._failed_in_passing():
                say(f"{self._starter_name} failed to start; trying again")
                self._start()
                return
            self._starter_code = os.waitstatus_to_exitcode(status)
            self.loop.after(TIME_TO_FOLLOW, lambda: self._stop(signal.SIGTERM))

    def _failed_in_passing(self):
        """Whether nothing was started, for a reason that may be gone already."""
        nothing = not self._ranks and not self._connections and self._verdict is None
        return nothing and PASSING_FAILURE in self._starter_words and self._starts < MOST_STARTS

    def _keep_words(self):
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._words, 65536):
                self._starter_words = (self._starter_words + data)[-MOST_KEPT_OF_MPIRUN:]
            self.loop.on_readable(self._words, None)

    def _end_starter(self):
        if self._starter_code is None:
            signal_session(self._starter, signal.SIGTERM)
            self.loop.after(TIME_TO_FOLLOW, self._kill_starter)

    def _kill_starter(self):
        if self._starter_code is None:
            signal_session(self._starter, signal.SIGKILL)

    # What happens on the side of the user

    def _interrupt(self, number):
        self._signals += 1
        if self._signals > 1:
            self._kill()
        self._end(f"the job was ended by {signal.Signals(number).name}", 128 + number, number)

    def _time_out(self):
        sentence = f"the job was ended after {self.plan.timeout:g} s, as --timeout asks"
        self._end(sentence, 124, signal.SIGTERM)

    def _lose_screen(self, error):
        sentence = f"the job was ended because its output could not be written: {error.strerror}"
        self._end(sentence, 128 + signal.SIGPIPE, signal.SIGTERM)

    def _screen(self, descriptor):
        # Where poll allows to write, so many bytes never block.
        return Writer(
            self.loop,
            descriptor,
            lambda data: os.write(descriptor, data[: select.PIPE_BUF]),
            on_full=self._pause_or_resume,
            on_error=self._lose_screen,
        )

    def _pause_or_resume(self):
        full = self.stdout.full or self.stderr.full
        for rank in self._connections:
            if full:
                rank.channel.pause()
            else:
                rank.channel.resume()

    # The end

    def _end(self, sentence, code, number):
        if not self._verdict:
            self._verdict = sentence, code
            self._stop(number)

    def _stop(self, number):
        if self._stop_signal:
            return
        self._stop_signal = number
        for rank in self._ranks.values():
            rank.stop(number, self.plan.grace)
        self.loop.after(self.plan.grace + TIME_TO_FOLLOW, self._kill)
        if not self._ranks:
            self._end_starter()

    def _kill(self):
        """Ends what did not end when it was asked to."""
        self._kill_starter()
        # Supervisors that lose the launcher kill their programs.
        for rank in list(self._connections):
            self.forget(rank)
        self.stdout.close()
        self.stderr.close()

    def _explain(self):
        sentence, code = self._verdict or self._verdict_of_mpirun()
        if sentence:
            say(sentence)
        return code

    def _verdict_of_mpirun(self):
        """Called when all ranks were well until mpirun failed, or ended them all."""
        code = shell_code(self._starter_code)
        culprits = [rank for rank in self._ends if rank.failed and rank.showed_cause]
        alone = self.plan.n == 1
        culprits += [rank for rank in self._ends if rank.failed and (rank.ended_itself or alone)]
        if culprits and code:
            name = culprits[0].name
            return f"{name} aborted the job with exit code {code}{self._fate_of_others}", code
        with contextlib.suppress(OSError):
            os.write(2, self._starter_words)
        if code:
            first = self._first_without_guard
            hint = f"; {first.name} was ended first" if first else ""
            return f"{self._starter_name} {describe_end(self._starter_code)}{hint}", code
        if len(self._ranks) < self.plan.n:
            return f"{self._starter_name} started {len(self._ranks)} of {self.plan.n} ranks", 1
        return "", 0

    @property
    def _starter_name(self):
        return os.path.basename(self.plan.command[0])

    @property
    def _fate_of_others(self):
        return "; the other ranks were ended" if self.plan.n > 1 else ""


def _children():
    """The children that this process already has: some shells leave theirs to what they exec."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return frozenset(map(int, file.read().split()))
    except OSError:
        return frozenset()
