"""One job of N ranks, from its start to its exit code and the report of its end."""

import contextlib
import os
import resource
import select
import signal
import socket
import uuid

from . import processes, reach, report
from .loop import Loop
from .losses import Losses
from .merging import Merger
from .messages import THIS_HOST, words
from .output import COLUMNS_VARIABLE, LogFiles, Screen, columns_of
from .plan import START_RANK, Plan
from .rank import JOB_VARIABLE, SPARES_VARIABLE, VARIABLE
from .remote_rank import Rank
from .standstill import Standstill, timeout_of
from .talk import say

# Ranks have TIME_TO_FOLLOW seconds to end after mpirun, and mpirun to end after ranks that failed.
# mpirun has TIME_TO_CLOSE seconds to end after ranks that ended well.
TIME_TO_FOLLOW = 1.0
TIME_TO_CLOSE = 30.0
# This variable holds the launcher's command, for programs that print how to continue.
COMMAND_VARIABLE = "MPCHAIN_COMMAND"
# A connection has this many seconds to identify itself. MOST_STRANGERS is the number of connections
# that are allowed besides those of the ranks.
TIME_TO_INTRODUCE = 30.0
MOST_STRANGERS = 50
# After this many seconds, the launcher looks for ranks on other hosts that have not connected.
TIME_TO_START = 20.0
MOST_KEPT_OF_MPIRUN = 1 << 16

# Open MPI prints these messages when it fails to start for a transient reason: the first for a
# failure on this host, the second for one on another host, whose daemon reports it by its exit
# status.
PASSING_FAILURES = (b"listener thread failed to start", b"Daemon exit status: 213")
MOST_STARTS = 3


class Job:
    """Runs a plan.

    Args:
        plan: The plan to run.
        start: 1 for the first start, 2 for the first restart, and so on.

    Attributes:
        cause: The lines of the traceback of the rank that failed first, without prefix.
        has_terminal: Whether standard output and error are a terminal that can redraw lines.
        is_final: Whether the job must not be restarted, because the user ended it, its time was
            over, or its output could not be written.
        logs: The `LogFiles` of the ranks.
        loop: The `Loop` that serves the job's events.
        losses: The `Losses`: the ranks that were lost while the job continues.
        merger: The `Merger` that shows the output of the ranks.
        ranks: Maps the number of each rank whose supervisor has introduced itself to its `Rank`.
        starter_stopped: The `Loop.time` at which mpirun was stopped; None if it runs.
        standstill: The `Standstill` that watches the job.
        stdout, stderr: The `Screen` of each; the same object if `has_terminal`.
        token: The bytes by which supervisors prove that they belong to this job.
        verdict: The reason why the job is being ended, and the exit code; None if it is not.

    Example:
        >>> Job(plan).run()  # doctest: +SKIP
        0
    """

    def __init__(self, plan: Plan, start: int = 1):
        self.plan = plan
        self.is_final = False
        self.token = os.urandom(16).hex().encode()
        self.logs = LogFiles(plan.log_dir, plan.n, start, say)
        self.loop = Loop()
        self.stdout = self._screen(1)
        self.has_terminal = all(map(columns_of, (1, 2))) and os.environ.get("TERM") != "dumb"
        self.stderr = self.stdout if self.has_terminal else self._screen(2)
        self._has_one_screen = _same_file(1, 2)
        self.ranks = {}
        self._connections, self._strangers, self._ends = [], [], []
        self._starter = self._starter_code = self.starter_stopped = self._stop_signal = None
        self._first_without_guard = self._culprit = self.verdict = None
        self._complaint = ""
        self.cause = []
        self._asks_where = False
        n = plan.n - plan.spares
        self.merger = Merger(self.loop, n if plan.merge and plan.prefix else 1)
        self._signals = self._starts = 0
        self.losses = Losses(self)
        self.standstill = Standstill(self, timeout_of({**os.environ, **plan.variables}))

    def run(self) -> int:
        """Runs the job to its end; returns the exit code."""
        _allow_files(3 * self.plan.n + 100)
        processes.adopt_orphans()
        spared = _children()
        self._listener = self._listen()
        self.loop.on_readable(self._listener, self._accept)
        self.loop.on_signal(signal.SIGCHLD, lambda number: self._collect())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # under nohup, SIGHUP stays ignored
                self.loop.on_signal(number, self._interrupt)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            self.loop.on_signal(number, self._pass_on)
        if self.plan.timeout is not None:
            self.loop.after(self.plan.timeout, self._time_out)
        if self.plan.hosts:
            self.loop.after(TIME_TO_START, self._look_for_missing)
        if self.plan.page:
            self.plan.page.follow(self)
        try:
            self._start()
            self.loop.run(until=self._finished)
        finally:
            self._listener.close()
            for stranger in list(self._strangers):
                self.forget(stranger)
            processes.kill_descendants(spared)
            if self._starter is not None and self._starter_code != 0:
                processes.remove_session(self._starter)
            processes.remove_abandoned_segments()
            self.logs.close()
            self.loop.close()
        return self._explain()

    def _listen(self):
        if not self.plan.hosts:
            return socket.create_server((THIS_HOST, 0), backlog=self.plan.n)
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        options = {"family": family, "backlog": self.plan.n, "dualstack_ipv6": both}
        return socket.create_server(("", 0), **options)

    def _start(self):
        self._starts += 1
        self._starter_words = b""
        added = {VARIABLE: self._contact(), JOB_VARIABLE: uuid.uuid4().hex}
        if self.plan.spares:
            added[SPARES_VARIABLE] = str(self.plan.spares)
        environment = {**os.environ, **self.plan.variables, **added}
        environment.pop(COLUMNS_VARIABLE, None)
        if self.has_terminal:
            width = len(f"[{self.plan.n - 1}] ") if self.plan.prefix else 0
            environment[COLUMNS_VARIABLE] = str(columns_of(1) - width)
        self._words, end = os.pipe()
        os.set_blocking(self._words, False)
        self.loop.on_readable(self._words, self._keep_words)
        command = self.plan.command(environment, list(added))
        self._starter = processes.spawn(command, environment, end, end)
        os.close(end)

    def _contact(self):
        """Returns the settings that a rank needs to connect to the launcher."""
        plan = self.plan
        addresses = reach.own_addresses(plan.hosts) if plan.hosts else [THIS_HOST]
        place = ",".join(addresses), self._listener.getsockname()[1], self.token.decode()
        alone, elastic = int(plan.starter.path is None), int(plan.elastic is not None)
        return words(*place, alone, plan.starter.patience, plan.host_timeout, elastic).decode()

    def _finished(self):
        has_ended = self._starter_code is not None and not self._connections
        if has_ended:
            self.merger.release()
        return has_ended and not len(self.stdout) and not len(self.stderr)

    # These methods handle events of the ranks.

    def _accept(self):
        with contextlib.suppress(OSError):  # the rank has already ended, or too many files are open
            stranger = Rank(self, self._listener.accept()[0])
            self._strangers.append(stranger)
            self.loop.after(TIME_TO_INTRODUCE, lambda: self._drop_stranger(stranger))
        if len(self._strangers) > self.plan.n + MOST_STRANGERS:
            self.forget(self._strangers[0])

    def _drop_stranger(self, rank):
        if rank in self._strangers:
            self.forget(rank)

    def welcome(self, rank: Rank) -> None:
        """Adds a rank whose supervisor has introduced itself."""
        self._strangers.remove(rank)
        self._connections.append(rank)
        self._pause_or_resume()
        if rank.number in self.ranks or rank.number >= self.plan.n:
            self.end(f"{self.starter_name} started two processes for {rank.name}")
        self.ranks[rank.number] = rank
        if len(self.ranks) == self.plan.n and any(each.bound for each in self.ranks.values()):
            say(report.describe_binding(self.ranks))
        if self._stop_signal:
            rank.stop(self._stop_signal, self.plan.grace, self._asks_where)

    def forget(self, rank: Rank) -> None:
        """Closes the connection of a rank, or of an unidentified client."""
        rank.channel.close()
        (self._strangers if rank in self._strangers else self._connections).remove(rank)

    def take_end(self, rank: Rank) -> None:
        """Handles the end of a rank's program."""
        self._collect()  # if mpirun has ended, it may have ended the program
        self._ends.append(rank)
        if rank.code < 0 and not rank.done and self.losses.are_tolerated:
            rank.show_rest()
            # If mpirun is ending, it ends the guards first; a rank without a guard is then not a
            # loss.
            if rank.has_guard:
                self._continue_without(rank)
            else:
                self.loop.after(TIME_TO_FOLLOW, lambda: self._continue_without(rank))
            return
        failed = rank.failed and rank.ended_itself
        if failed and (rank.has_guard or rank.showed_cause):
            self._show_first_failure(rank, rank.fate)
        self.cause = self.cause or (rank.held_lines() if failed else [])
        rank.show_rest()
        for other in self.ranks.values():
            other.show_same(self.cause)
        if failed and (rank.has_guard or self.losses.are_tolerated):
            code = processes.shell_code(rank.code)
            self.end(f"{rank.end}{self._fate_of_others}", code, asks_where=True)

    def on_guard_end(self, rank: Rank) -> None:
        """Handles the end of a rank's guard, which mpirun or another process has ended."""
        self._first_without_guard = self._first_without_guard or rank

    def lose(self, rank: Rank) -> None:
        """Handles the end of a rank's supervisor, which is normal after the program has ended."""
        if rank in self._strangers:
            self._strangers.remove(rank)
            return
        self._connections.remove(rank)
        if not rank.ended:
            self._continue_without(rank)
            fate = f"was lost: {rank.lost}"
            if rank.number not in self.losses:
                self._show_first_failure(rank, fate)
                sentence = f"{rank.name} {fate}{self._fate_of_others}"
                self.end(sentence, 128 + signal.SIGKILL, asks_where=True)
        if not self._connections and len(self.ranks) == self.plan.n:
            if self.verdict or self.losses:
                self.loop.after(TIME_TO_FOLLOW, self._end_starter)
            else:
                self.loop.after(TIME_TO_CLOSE, self._give_up_starter)

    def on_program_end(self) -> None:
        """Handles the end of a rank's program, after which only MPI_Finalize is left."""
        self.standstill.note_progress()
        # After the loss of all ranks of a host, Open MPI waits in MPI_Finalize for that host's
        # daemon.
        if self.losses and all(rank.done for rank in self._survivors):
            self.loop.after(TIME_TO_FOLLOW, self._end_finalization)

    def _end_finalization(self):
        for rank in self._survivors:
            if not rank.ended:
                rank.stop(signal.SIGKILL, 0.0, where=False)

    def give_up(self, rank: Rank) -> None:
        """Treats a rank as lost because its supervisor does not answer."""
        rank.channel.close()  # a supervisor without a launcher ends its program
        if not self.plan.hosts:
            processes.signal_process(rank.process, signal.SIGKILL)  # the process may be stopped
        self.lose(rank)

    def _continue_without(self, rank):
        """Continues without a rank, if the job allows losses."""
        if rank.ended:
            self.losses.take(rank, rank.fate, processes.shell_code(rank.code))
        else:
            self.losses.take(rank, f"was lost: {rank.lost}", 128 + signal.SIGKILL)
            for other in self._connections:
                other.announce_loss(rank.number)
        self.merger.expect(self.plan.n - len(self.losses))
        self.on_program_end()

    def tell(self, sentence: str) -> None:
        """Prints a message of the launcher between the lines of the ranks."""
        self.merger.put(self.stderr, f"mpchain-launch: {sentence}\n".encode())

    @property
    def starter_runs(self) -> bool:
        """Whether mpirun has not ended."""
        return self._starter_code is None

    def _show_first_failure(self, rank, fate):
        """Shows the last output of the rank that failed first before the output of other ranks."""
        if self._culprit or self.verdict:
            return
        self._culprit = rank
        last = rank.last_lines()
        if self._has_one_screen and any(map(rank.is_seen_at, self.ranks.values())):
            last = b""
        if self.plan.n > 1 and (last or rank.showed_cause):
            head = f"mpchain-launch: {rank.name} {fate}; its last lines:\n"
            self.merger.put(self.stderr, head.encode() + last)

    def _look_for_missing(self):
        missing = sorted(set(range(self.plan.n)) - set(self.ranks))
        if not missing or self.verdict:
            return
        if sentence := self._complaint_about_hosts():
            self.end(sentence)
        else:
            say(f"{len(missing)} of {self.plan.n} ranks have not started yet")

    def _complaint_about_hosts(self):
        """Returns a sentence about a host on which no rank can start; empty if there is no such
        host."""
        from . import inquiry  # it is seldom needed, and slow to import

        seen = {rank.host for rank in self.ranks.values()}
        hosts = [host for host in self.plan.hosts if host not in seen]
        shell, seconds = self.plan.remote_shell, self.plan.host_timeout
        bad = list(inquiry.complaints(hosts, shell, START_RANK, seconds).values())
        more = f" (and {len(bad) - 1} more hosts have problems)" if len(bad) > 1 else ""
        self._complaint = "".join(bad[:1]) + more
        return self._complaint

    # These methods handle events of mpirun.

    def _collect(self):
        if self._starter is None or self._starter_code is not None:
            return
        changes = os.WNOHANG | os.WUNTRACED | os.WCONTINUED
        ended, status = os.waitpid(self._starter, changes)
        if ended and (os.WIFSTOPPED(status) or os.WIFCONTINUED(status)):
            self.starter_stopped = self.loop.time if os.WIFSTOPPED(status) else None
            self._collect()
        elif ended:
            self._keep_words()
            if self._failed_in_passing():
                say(f"{self.starter_name} failed to start; trying again")
                self._start()
                return
            self._starter_code = os.waitstatus_to_exitcode(status)
            self.loop.after(TIME_TO_FOLLOW, self._end_ranks)
            # If a signal ended mpirun itself, no rank caused the failure.
            if self._starter_code < 0 and not self._survivors_ended_well:
                code = processes.shell_code(self._starter_code)
                self.end(self._end_of_starter, code, asks_where=True)

    def _failed_in_passing(self):
        """Returns whether no rank was started, for a reason that is usually transient, and mpirun
        may be started again."""
        nothing = not self.ranks and not self._connections and self.verdict is None
        passing = any(words in self._starter_words for words in PASSING_FAILURES)
        return nothing and passing and self._starts < MOST_STARTS

    def _keep_words(self):
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._words, 65536):
                self._starter_words = (self._starter_words + data)[-MOST_KEPT_OF_MPIRUN:]
            self.loop.on_readable(self._words, None)

    def _end_ranks(self):
        """Ends the ranks that mpirun has left behind."""
        self._asks_where = True
        self._stop(signal.SIGTERM)

    def _give_up_starter(self):
        if self._starter_code is None:
            self.end(f"{self.starter_name} did not end after all ranks had ended")
            self._end_starter()

    def _end_starter(self):
        self._signal_starter(signal.SIGTERM)
        self.loop.after(TIME_TO_FOLLOW, lambda: self._signal_starter(signal.SIGKILL))

    def _signal_starter(self, number):
        if self._starter is not None and self._starter_code is None:
            processes.signal_session(self._starter, number)

    # These methods handle requests of the user.

    def _pass_on(self, number):
        for rank in self.ranks.values():
            rank.pass_on(number)

    def _interrupt(self, number):
        self._signals += 1
        self.is_final = True
        if self._signals > 1:
            self._kill()
        self.end(f"the job was ended by {signal.Signals(number).name}", 128 + number, number)
        self._stop(number)

    def stop_in_good_order(self) -> None:
        """Asks the programs to end after the present iteration, however long it takes."""
        self.is_final = True
        self.verdict = self.verdict or ("training was stopped from the page", 128 + signal.SIGTERM)
        self._pass_on(signal.SIGTERM)

    def _time_out(self):
        self.is_final = True
        self.end("the job exceeded --timeout and was terminated", 124, asks_where=True)

    def _lose_screen(self, error):
        self.is_final = True
        sentence = f"the job was ended because its output could not be written: {error.strerror}"
        self.end(sentence, 128 + signal.SIGPIPE)

    def _screen(self, descriptor):
        # After poll reports a file as writable, PIPE_BUF bytes never block.
        write = lambda data: os.write(descriptor, data[: select.PIPE_BUF])
        return Screen(self.loop, descriptor, write, self._pause_or_resume, self._lose_screen)

    @property
    def screen_is_full(self) -> bool:
        """Whether so much output is buffered that the ranks are paused."""
        return self.stdout.full or self.stderr.full

    def _pause_or_resume(self):
        full = self.screen_is_full
        for rank in self._connections:
            (rank.channel.pause if full else rank.channel.resume)()

    # These methods end the job.

    def end(
        self, sentence: str, code: int = 1, number: int = signal.SIGTERM, asks_where: bool = False
    ) -> None:
        """Ends the job, unless it is already being ended.

        Args:
            sentence: The reason, which the final report shows.
            code: The exit code of the launcher command.
            number: The signal that is sent to the ranks.
            asks_where: Whether to ask the ranks for their stacks first.
        """
        if not self.verdict:
            self.verdict = sentence, code
            self._asks_where = asks_where
            self._stop(number)

    def _stop(self, number):
        if self._stop_signal:
            return
        self._stop_signal = number
        for rank in self.ranks.values():
            rank.stop(number, self.plan.grace, self._asks_where)
        self.loop.after(self.plan.grace + TIME_TO_FOLLOW, self._kill)
        if not self.ranks:
            self._end_starter()

    def _kill(self):
        """Kills mpirun, and the ranks that did not end after the signal."""
        self._signal_starter(signal.SIGKILL)
        # A supervisor that loses the launcher kills its program.
        for rank in list(self._connections):
            self.forget(rank)
        self.stdout.close()
        self.stderr.close()

    def _explain(self):
        sentence, code = self.verdict = self.verdict or self._verdict_of_mpirun()
        for line in self.losses.describe():
            say(line)
        if code and self.ranks and self._asks_where:
            for line in report.describe_ranks(self.ranks, self.plan.n, without=self._culprit):
                say(f"  {line}")
        if code and sentence and self.plan.log_dir:
            logs = os.path.join(self.plan.log_dir, "rank_*.log")
            say(f"  the output of each rank, and its stacks, are in {logs}")
        # If a host reports an error, its message says more than mpirun's messages.
        if code and not self.is_final and not self._complaint and (known := self._known_failure()):
            say(known)
        if sentence:
            say(sentence)
        return code

    def _known_failure(self):
        """Explains a known MPI message in the output of mpirun, or of the rank that failed
        first."""
        from .known_failures import explain  # it is seldom needed

        of_rank = self._culprit.last_lines() if self._culprit else b""
        # After a rank was killed by SIGKILL, mpirun's messages do not say the cause.
        was_killed = self._culprit and self._culprit.code == -signal.SIGKILL
        return explain(b"" if was_killed else self._starter_words + of_rank)

    def _verdict_of_mpirun(self):
        """Returns the reason and exit code of a job that ended because mpirun did, without a
        verdict."""
        if self._survivors_ended_well:
            return "", 0
        assert self._starter_code is not None  # mpirun has ended
        # MPICH's mpirun ends all ranks when one ends by os._exit(0), and returns 0.
        failed = [rank for rank in self._ends if rank.failed]
        code = processes.shell_code(self._starter_code) or int(bool(failed))
        culprits = [self._culprit] if self._culprit else []
        culprits += [rank for rank in failed if rank.showed_cause]
        culprits += [rank for rank in failed if rank.ended_itself or self.plan.n == 1]
        if culprits and code:
            first = self._culprit = culprits[0]
            self._asks_where = True
            abort = f"{first.name} aborted the job with exit code {code}{first.cause}"
            return f"{abort}{self._fate_of_others}", code
        few = len(self.ranks) < self.plan.n
        if few and self.plan.hosts and (sentence := self._complaint_about_hosts()):
            self._asks_where = False  # no rank caused the failure
            return sentence, code or 1
        self._asks_where = True
        with contextlib.suppress(OSError):
            os.write(2, self._starter_words)
        if code:
            return self._end_of_starter, code
        if few:
            return f"{self.starter_name} started {len(self.ranks)} of {self.plan.n} ranks", 1
        return "", 0

    @property
    def _survivors_ended_well(self):
        """Whether ranks were lost, and all other ranks have ended well."""
        survivors, killed = self._survivors, -signal.SIGKILL
        is_well = all(rank.code == 0 or (rank.done and rank.code == killed) for rank in survivors)
        return self.losses and survivors and is_well and len(self.ranks) == self.plan.n

    @property
    def _survivors(self):
        return [rank for number, rank in self.ranks.items() if number not in self.losses]

    @property
    def starter_name(self) -> str:
        path = self.plan.starter.path
        return os.path.basename(path) if path else "the starter of the rank"

    @property
    def _end_of_starter(self):
        hint = ""
        if first := self._first_without_guard:
            hint = f"; {first.name} was ended first"
        # A rank that ends normally or by sys.exit reports its end. A rank that has exit code 0 but
        # has not reported its end has called os._exit, which skips MPI_Finalize.
        if left := [rank for rank in self._ends if rank.code == 0 and not rank.done]:
            hint = f"; {left[0].name} ended first, with exit code 0 but without MPI_Finalize"
        assert self._starter_code is not None  # mpirun has ended
        return f"{self.starter_name} {report.describe_end(self._starter_code)}{hint}"

    @property
    def _fate_of_others(self):
        gone = [n for n, each in sorted(self.ranks.items()) if each.has_finished]
        before = f"; {report.describe_numbers(gone)} had finished before" if gone else ""
        return f"{before}; the other ranks were ended" if self.plan.n > 1 else ""


def _children():
    """Returns the children that this process already has, because a shell that has children may
    exec the launcher."""
    return frozenset(map(int, processes.read(f"/proc/self/task/{os.getpid()}/children").split()))


def _same_file(first, second):
    try:
        return os.path.sameopenfile(first, second)
    except OSError:
        return False


def _allow_files(number):
    """Raises the limit on open files as far as needed and permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number:
        limit = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
