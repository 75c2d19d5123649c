"""One rank: the guard that mpirun starts, and the supervisor of the user's program.

mpirun ends its processes with SIGKILL, and a killed process can report neither how the program
ended nor its last output. Therefore the process that mpirun starts, the guard, only waits for a
child in another session, the supervisor, which runs the program:

    mpirun ── guard ── supervisor ── program ── children of the program
                           │
                     the launcher

The supervisor ends the program when the launcher requests it, or when the launcher or the guard is
gone.
"""

import contextlib
import io
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence, Set

from . import binding, environments, messages, processes
from .loop import Loop
from .messages import Channel, words

VARIABLE = "MPCHAIN_LAUNCH"
# This variable holds the number of spare ranks, which are the last ranks; mpchain reads it, too.
SPARES_VARIABLE = "MPCHAIN_SPARES"
# This variable holds the job's id, for programs whose processes write the same files.
JOB_VARIABLE = "MPCHAIN_JOB"
# This variable holds the pipe for the program's reports; it is set if there is a page.
PAGE_VARIABLE = "MPCHAIN_PAGE"
START_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start_program.py")
# start_program.py writes these bytes into the pipe for stacks: one of PHASES at the start of each
# phase, and OVER at the end.
OVER = b"\0"
PHASES = bytes(range(1, 6))
# These names are the same as in start_program.py.
NOTES, LOSSES = "MPCHAIN_LAUNCH_NOTES", "MPCHAIN_LAUNCH_LOSSES"

# Helpers that clean up after the program, such as multiprocessing's resource tracker, get this many
# seconds.
TIME_TO_CLEAN_UP = 1.0
GRACE = 2.0
# The program gets this many seconds to write its stacks after WHERE, a signal without another use.
TIME_TO_TELL = 0.2
WHERE = getattr(signal, "SIGRTMIN", signal.SIGUSR2 - 5) + 5
TIME_TO_CONNECT = 5.0
# mpirun's daemon gets this many seconds to end after a program that failed.
TIME_TO_FOLLOW = 8.0
# At these times, in seconds, the supervisor records MPI's shared memory, because the program may be
# killed at any time.
TIMES_TO_LOOK = (1.0, 5.0, 20.0, 60.0)
# mpirun starts these programs on other hosts to start the guards there. If mpirun's host becomes
# unreachable, these programs keep running for a long time, or forever.
DAEMONS = ("prted", "orted", "hydra_pmi_proxy")
MOST_READ = 1 << 16
MOST_READS_OF_A_PIPE = (1 << 20) // MOST_READ


def main(command: Sequence[str]) -> int:
    """Runs the program of one rank.

    Args:
        command: The arguments of ``python``.

    Returns:
        The program's exit code, or 128 + n if signal n ended it.

    Example:
        >>> main(["train.py"])
        Traceback (most recent call last):
        SystemExit: mpchain-launch starts this file; do not run it by hand
    """
    if VARIABLE not in os.environ:
        raise SystemExit("mpchain-launch starts this file; do not run it by hand")
    hosts, port, token, alone, patience, host_timeout, elastic = os.environ.pop(VARIABLE).split()
    place = environments.Environment() if alone == "1" else environments.detect(os.environ)
    here = socket.gethostname()
    connection = _connect(hosts.split(","), int(port), f"rank {place.rank} on host {here}")
    if hosts != messages.THIS_HOST:
        messages.watch_over(connection, float(host_timeout))
    daemon = os.getppid()
    guard = os.getpid() if elastic == "1" else None
    lifeline, guard_end = os.pipe()
    supervisor = os.fork()
    if not supervisor:
        os.close(guard_end)
        os.setsid()
        _let_go_of_mpirun()
        n_here = _n_at_work(place, os.environ)
        processors, text = _share(place.local_rank, n_here, os.environ)
        hello = words(token, place.rank, here, os.getpid(), text)
        share = binding.rank_variables(os.environ, n_here)
        supervisor = Supervisor(connection, lifeline, hello, float(patience), guard)
        supervisor.processors = processors
        environment = {**os.environ, **share}
        code = _report_errors(connection, supervisor.run, command, environment)
        processes.remove_segments(supervisor.segments)
        if supervisor.is_left:
            _end_daemon(daemon)
        elif code and not supervisor.is_loss and not os.fork():  # the job is over or will end soon
            # The launcher and MPICH's daemon wait until all inherited descriptors are closed.
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            _outlast_daemon(daemon)
            os._exit(code)
        supervisor.say_goodbye()  # the launcher may then end the remaining processes
        os._exit(code)
    connection.close()
    code = os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1])
    if code < 0 and guard:
        os.kill(guard, signal.SIGKILL)
    return processes.shell_code(code)


def _n_at_work(place, variables):
    """Returns the number of ranks on this host that are not spare, if mpirun numbers ranks by
    host."""
    first = place.rank - place.local_rank
    n_spare = int(variables.get(SPARES_VARIABLE, 0))
    n = min(first + place.local_size, place.size - n_spare) - first
    return n if n > 0 else place.local_size


def _share(local_rank, n, variables):
    """Returns the processors to which a rank is bound, and a text for the launcher; both are empty
    if no binding was requested."""
    mode = variables.get(binding.VARIABLE)
    if not mode:
        return set(), ""
    if local_rank >= n:
        return set(), "not bound: the rank is spare"
    job = f"{JOB_VARIABLE}={variables.get(JOB_VARIABLE)}"
    wanted = binding.gpu_domains(variables, n)
    processors, why_not = binding.share(mode, local_rank, n, job, wanted)
    if why_not:
        return set(), f"not bound: {why_not}"
    domain = wanted[local_rank] if wanted else None
    gpu = "" if domain is None else f", its GPU in NUMA domain {domain}"
    return processors, f"processors {binding.listing(processors)}{gpu}"


def _connect(hosts, port, name):
    """Returns a connection to the launcher, at the first of its addresses that answers."""
    error = None
    for host in hosts:
        try:
            connection = socket.create_connection((host, port), timeout=TIME_TO_CONNECT)
        except OSError as failure:
            error = failure
        else:
            connection.settimeout(None)
            return connection
    raise SystemExit(f"{name}: cannot connect to mpchain-launch at {', '.join(hosts)}: {error}")


def _report_errors(connection, function, *arguments):
    """Calls a function of the supervisor; if it fails, sends the traceback to the launcher, which
    can show it."""
    try:
        return function(*arguments)
    except Exception as error:
        with contextlib.redirect_stderr(io.StringIO()) as text:
            sys.__excepthook__(type(error), error, error.__traceback__)
        connection.setblocking(True)
        connection.sendall(messages.message(messages.ERRORS, text.getvalue().encode()))
        return 1


def _outlast_daemon(process):
    """Waits for mpirun's daemon to end, and kills a daemon that does not end by itself.

    The children of the daemon end by themselves, or when the launcher asks them to end.
    """
    # The system may have no pidfds, or the process may have ended.
    with contextlib.suppress(AttributeError, OSError):
        has_ended = select.select([os.pidfd_open(process)], [], [], TIME_TO_FOLLOW)[0]
        if not has_ended and _is_daemon(process):
            processes.signal_process(process, signal.SIGKILL)
            processes.remove_session(process)


def _end_daemon(process):
    """Kills the daemon of an mpirun that is gone, with its descendants, and removes its files."""
    processes.remove_session(process)
    if _is_daemon(process):
        for each in (process, *processes.descendants(process)):
            if each not in (os.getpid(), os.getppid()):
                processes.signal_process(each, signal.SIGKILL)


def _is_daemon(process):
    return processes.read(f"/proc/{process}/comm") in DAEMONS


def _let_go_of_mpirun():
    with open(os.devnull, "r+b") as null:
        for descriptor in (0, 1, 2):
            os.dup2(null.fileno(), descriptor)


class Supervisor:
    """Runs a program, reports on it to the launcher, and ends it when necessary.

    Args:
        connection: A socket to the launcher.
        lifeline: File descriptor that reaches its end when the guard is gone.
        hello: The payload of the first message.
        patience: Seconds for the program to end by itself when the guard is gone.
        guard: Process id of the guard if the job can continue without this rank (--elastic). Open
            MPI reports the rank as lost as soon as a signal has ended the guard.

    Attributes:
        is_left: Whether the launcher was lost before the program ended.
        is_loss: Whether the job continues without this rank.
        processors: Processors to which the program is bound; empty if it is not bound.
        segments: Paths of the shared memory segments of MPI that the program was seen to use.
    """

    def __init__(
        self,
        connection: socket.socket,
        lifeline: int,
        hello: bytes,
        patience: float,
        guard: int | None = None,
    ):
        processes.adopt_orphans()
        self._loop = Loop()
        callbacks = self._obey, self._lose_launcher, self._relay_or_pause
        self._channel = Channel(self._loop, connection, *callbacks)
        self._channel.send(messages.HELLO, hello)
        self._lifeline, self._patience = lifeline, patience
        os.set_blocking(lifeline, False)
        self._loop.on_readable(lifeline, self._check_guard)
        self._loop.on_signal(signal.SIGTERM, lambda number: self._lose_guard())
        self._loop.on_signal(signal.SIGCHLD, lambda number: self._collect())
        self._pipes = {}
        self._program: int | None = None
        self._code: int | None = None
        self._signalled = self._asked = self._alone = self.is_left = self.is_loss = False
        self._is_over = self._is_ending = False
        self._guard = guard
        self._losses: int | None = None
        self._oom_kills = processes.oom_kills()
        self.processors: Set[int] = set()
        self.segments: set[str] = set()

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Runs the program to its end; returns its exit code."""
        output, output_end = os.pipe()
        errors, errors_end = os.pipe()
        stacks, stacks_end = os.pipe()
        self._pipes = {output: messages.OUTPUT, errors: messages.ERRORS, stacks: messages.STACKS}
        ends = [stacks_end]
        if PAGE_VARIABLE in environment:
            reports, reports_end = os.pipe()
            self._pipes[reports] = messages.REPORT
            ends.append(reports_end)
            status = os.fstat(reports_end)
            place = f"{reports_end}:{status.st_dev}:{status.st_ino}"
            environment = {**environment, PAGE_VARIABLE: place}
        if self._guard:
            notes, notes_end = os.pipe()
            losses_end, self._losses = os.pipe()
            self._pipes[notes] = messages.NOTE
            ends += [notes_end, losses_end]
            environment = {**environment, NOTES: str(notes_end), LOSSES: str(losses_end)}
        for end in ends:
            os.set_inheritable(end, True)
        start = [sys.executable, START_PROGRAM, str(stacks_end), str(int(WHERE))]
        with binding.bound(self.processors):  # the program inherits the binding
            self._program = processes.spawn([*start, *command], environment, output_end, errors_end)
        for end in (output_end, errors_end, *ends):
            os.close(end)
        for pipe in self._pipes:
            os.set_blocking(pipe, False)
        self._relay_or_pause()
        for seconds in TIMES_TO_LOOK:
            self._loop.after(seconds, self._note_segments)
        self._loop.run(until=lambda: self._alone and not self._pipes and self._channel.sent)
        assert self._code is not None  # the loop runs until there is a code
        return processes.shell_code(self._code)

    def say_goodbye(self) -> None:
        """Waits until the launcher has received all messages."""
        self._channel.say_goodbye()
        self._loop.run(until=lambda: not self._channel.open)

    def _note_segments(self):
        if self._program is not None and self._code is None:
            self.segments |= processes.segments_of(self._program)

    def _relay_or_pause(self):
        for pipe in self._pipes:
            relay = None if self._channel.full else lambda pipe=pipe: self._relay(pipe)
            self._loop.on_readable(pipe, relay)

    def _relay(self, pipe) -> bool:
        """Sends the program's output; returns whether there may be more."""
        try:
            data = os.read(pipe, MOST_READ)
        except BlockingIOError:
            return False
        if not data:
            self._close(pipe)
            return False
        if self._pipes[pipe] == messages.STACKS and OVER in data:
            self._channel.send(messages.DONE)
            data = data.replace(OVER, b"")
        if self._pipes[pipe] == messages.STACKS and (phases := [n for n in data if n in PHASES]):
            self._channel.send(messages.PHASE, words(phases[-1]))
            data = data.translate(None, PHASES)
        if data:
            self._channel.send(self._pipes[pipe], data)
        return True

    def _close(self, pipe):
        self._loop.on_readable(pipe, None)
        os.close(pipe)
        del self._pipes[pipe]

    def _obey(self, kind, payload):
        if kind == messages.BEAT:
            activity = b""
            if payload == b"1" and (program := self._running):
                activity = words(*processes.activity_of(program))
            self._channel.send(messages.BEAT, activity)
        elif kind == messages.PASS:
            if program := self._running:
                processes.signal_process(program, int(payload))
        elif kind == messages.LOST:
            assert self._losses is not None  # a rank with a guard has this pipe
            with contextlib.suppress(OSError):  # the program has just ended
                os.write(self._losses, payload + b"\n")
        else:
            self._is_over = True
            number, grace, where = payload.split()
            stop = self._ask_then_stop if where == b"1" else self._stop
            stop(int(number), float(grace))

    @property
    def _running(self) -> int | None:
        """The id of the program's process; None before the start and after the end."""
        return self._program if self._code is None else None

    def _check_guard(self):
        with contextlib.suppress(BlockingIOError):
            os.read(self._lifeline, 1)
            self._lose_guard()

    def _lose_guard(self):
        self._loop.on_readable(self._lifeline, None)
        self._channel.send(messages.TOLD)
        self._loop.after(self._patience, self._follow_guard)

    def _follow_guard(self):
        # A batch system that cancels a job signals the launcher and the ranks. If the launcher has
        # already asked the program to end, a second signal would end it before it saves its work.
        if not self._is_ending:
            self._ask_then_stop(signal.SIGTERM, GRACE)

    def _ask_then_stop(self, number, grace):
        """Ends the program after it has written its stacks."""
        if not self._asked and (program := self._running):
            self._asked = self._signalled = True
            processes.signal_process(program, WHERE)
        self._loop.after(TIME_TO_TELL, lambda: self._stop(number, grace))

    def _stop(self, number, grace):
        self._is_ending = True
        self._signal(number)
        self._loop.after(grace, self._kill)

    def _lose_launcher(self, error):
        self.is_left = self._code is None
        self._kill()

    def _kill(self):
        self._signal(signal.SIGKILL)

    def _signal(self, number):
        if program := self._running:
            self._note_segments()
            self._signalled = True
            processes.signal_session(program, number)

    def _collect(self):
        ended, others_left = processes.collect_children()
        if self._program in ended:
            self._take_end(ended[self._program])
        self._alone = not others_left

    def _take_end(self, status):
        self._code = os.waitstatus_to_exitcode(status)
        self._check_guard()  # the end of the guard may have ended the program
        # The pipes now contain the rest of the program's own output, which is sent before its exit
        # code. A pipe holds at most 1 MiB; reading is limited because children may keep writing.
        for pipe in list(self._pipes):
            for _ in range(MOST_READS_OF_A_PIPE):
                if not self._relay(pipe):
                    break
        kills = processes.oom_kills() - self._oom_kills if self._oom_kills >= 0 else -1
        self._channel.send(messages.END, words(self._code, int(self._signalled), kills))
        self.is_loss = bool(self._guard) and self._code < 0 and not self._is_over
        if self.is_loss and self._guard is not None and os.getppid() == self._guard:
            processes.signal_process(self._guard, signal.SIGKILL)
        self._loop.after(TIME_TO_CLEAN_UP, self._end_leftovers)

    def _end_leftovers(self):
        assert self._program is not None  # the program has ended
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._program, signal.SIGKILL)
        processes.kill_descendants()
        for pipe in list(self._pipes):
            self._close(pipe)
        self._alone = True
