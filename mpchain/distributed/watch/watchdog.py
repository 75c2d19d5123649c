"""Watchdog of one rank: publishes its collectives and checks those of the other ranks."""

import atexit
import collections
import contextlib
import dataclasses
import functools
import math
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from mpchain.distributed.objects import allgather
from mpchain.distributed.shared_memory import share
from mpchain.distributed.watch import call_sites, reports, table
from mpchain.distributed.watch.activity import Activity
from mpchain.distributed.watch.detection import (
    GRACE,
    LONGEST_PERIOD,
    LONGEST_WAIT,
    Detector,
    Reporting,
    period_of,
)
from mpchain.distributed.watch.exchange import Exchange
from mpchain.distributed.watch.fingerprints import CollectiveMismatchError, Fingerprints
from mpchain.distributed.watch.notes import FORKED, note
from mpchain.distributed.watch.table import Row, State

DEFAULT_TIMEOUT = 300.0
"""Seconds that a rank waits for ranks that do not work, before it ends the job."""

TIMEOUT_VARIABLE = "MPCHAIN_COLLECTIVE_TIMEOUT"

_TIME_TO_END = 2.0  # seconds that the exit waits for the thread

_KILLED = "killed: "

_SLOT = table.RING - 1  # a bit mask, because the size is a power of two


def check_timeout(timeout: float | str | None) -> float:
    """Returns a timeout in seconds; None stands for the environment variable, or the default.

    Raises:
        ValueError: the timeout is not a positive number.

    >>> check_timeout(60)
    60.0
    """
    source = "timeout"
    if timeout is None:
        source = TIMEOUT_VARIABLE
        timeout = os.environ.get(TIMEOUT_VARIABLE) or DEFAULT_TIMEOUT
    try:
        seconds = float(timeout)
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(
            f"create_communicator: {source} must be a positive number of seconds "
            f"(inf for no limit), not {timeout!r}"
        )
    return seconds


@dataclasses.dataclass(eq=False, repr=False)
class Watch:
    """The watchdog of one rank of a communicator: updates its row and checks the other ranks' rows.

    Args:
        rank: this rank.
        rows: the rows of all ranks.
        local: the ranks that share their rows with this rank, including this rank.
        hosts: the host name of each rank.
        world_ranks: the id of each rank among all ranks of the job.
        timeout: the timeout in seconds.
        exchange: the object that exchanges rows with other hosts; None if there are no other hosts,
            or another rank exchanges the rows.
        end: function that ends the job; it is called with a text, and with a function that first
            aborts a GPU's work, or None.
        tell: function that prints a text.
        clock: function that returns seconds.
        last_active: function that returns when this process was last working, given the current
            time; None uses the measurements of :class:`Activity`.

    Attributes:
        gpu: :class:`GpuWork` of the communicator; None if it uses no GPU.
        thread: the thread that is in a method of the communicator, or was the last to be in one.
        begun: weak reference to the request of the latest operation.
        is_elastic: whether the other ranks continue without lost ranks, instead of ending the job.
            Ranks that do not work are then killed.
        is_leaving: whether the program has ended and waits for the other ranks' programs to end.
        is_of_world: whether this watchdog watches the end of the program.
    """

    rank: int
    rows: list[Row]
    local: Sequence[int]
    hosts: Sequence[str]
    world_ranks: Sequence[int]
    timeout: float
    exchange: Exchange | None
    end: Callable[[str, Callable[[], None] | None], None]
    tell: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    last_active: Callable[[float], float] | None = None

    def __post_init__(self):
        self.is_inside = self.is_leaving = self.is_elastic = self.is_of_world = False
        self._processes = {}  # pidfds of the ranks that this rank may kill
        self._killed = set()
        self.announced: tuple | None = None
        self._text: bytes | None = None
        self.begun: Any = None
        self.gpu: Any = None
        self.thread, self._turn = threading.get_ident(), threading.RLock()
        self.row = self.rows[self.rank]
        self.row.pid = os.getpid()
        # The fields are cached, because each access to a row's fields makes new objects.
        self._tags, self._texts = self.row.tags, list(self.row.texts)
        self._begun, self._done = self.row.begun, self.row.done
        self._entered = None  # the number of the present collective
        self._neighbors = [(r, self.rows[r].tags) for r in self.local if r != self.rank]
        self._owned = []
        self.fingerprints = Fingerprints()
        self._n = 0
        self._unfinished = collections.deque()
        self._detector = Detector(self)

    @classmethod
    def over(
        cls,
        mpi: ModuleType,
        mpi_comm: Any,
        host: Any,
        timeout: float,
        *,
        is_elastic: bool = False,
        replaced: "Watch | None" = None,
    ) -> "Watch":
        """Makes a watchdog for each rank of a communicator; collective.

        Args:
            mpi: the module ``mpi4py.MPI``.
            mpi_comm: ``mpi4py.MPI.Comm`` of the ranks.
            host: ``mpi4py.MPI.Comm`` of the ranks of this host.
            timeout: the timeout in seconds.
            is_elastic: whether ranks may be lost.
            replaced: the earlier watchdog of these ranks and the lost ranks; None if no watchdog is
                replaced.
        """
        local = allgather(host, mpi_comm.rank)
        memory = share(host, len(local) * table.ROW)
        if memory is None:
            local = [mpi_comm.rank]
        rows = table.make_rows(mpi_comm.size)
        for rank, row in zip(local, table.make_rows(len(local), memory), strict=True):
            rows[rank] = row
        world = mpi.COMM_WORLD
        mine = local[0], mpi.Get_processor_name(), world.rank
        leaders, hosts, world_ranks = zip(*allgather(mpi_comm, mine), strict=True)
        exchange = messages = None
        if len(set(leaders)) > 1:
            messages = mpi_comm.Dup()
            if mpi_comm.rank == local[0] and mpi.Query_thread() == mpi.THREAD_MULTIPLE:
                exchange = Exchange(mpi, messages, rows, leaders)
        end, tell = (functools.partial(f, world) for f in (reports.end_job, reports.tell))
        watch = cls(*(mpi_comm.rank, rows, local, hosts, world_ranks, timeout, exchange, end, tell))
        if messages is not None:
            watch._owned.append(messages)
        if replaced is not None:
            watch.is_of_world = replaced.is_of_world
        else:
            watch.is_of_world = mpi_comm.size == world.size and _thread.of_world is None
        if watch.is_of_world:
            watch.watch_end(mpi_comm)
        mpi_comm.Barrier()  # all rows exist from here on
        if is_elastic:
            watch.may_kill()
        watch.start()
        return watch

    def watch_end(self, mpi_comm: Any) -> None:
        """Makes the ranks of a communicator wait for each other at the program's end;
        collective."""
        self.is_of_world = True
        _thread.of_world, _thread.ends = self, mpi_comm.Dup()

    def start(self) -> None:
        """Begins to check the other ranks periodically."""
        self._go_to(State.COMPUTING)
        self.row.heartbeat = self.clock()
        _thread.add(self)

    def stop(self) -> None:
        """Stops checking the other ranks, unless it watches the end of the program; collective."""
        if _thread.of_world is not self:
            _thread.remove(self)
            for mpi_comm in self._owned:
                mpi_comm.Free()
            self._owned = []

    def may_kill(self) -> None:
        """Makes the watchdog elastic, so that this rank may kill ranks of its host."""
        self.is_elastic = True
        if hasattr(os, "pidfd_open"):  # a pidfd stays valid if the pid is reused
            for rank in self.local:
                with contextlib.suppress(OSError):
                    self._processes[rank] = os.pidfd_open(self.rows[rank].pid)

    def kill(self, ranks: Sequence[int], why: str) -> bool:
        """Kills those of the given ranks that are on this host; returns whether there are any."""
        here = [rank for rank in ranks if rank in self._processes and rank != self.rank]
        for rank in here:
            if reports.state_of_process(self.rows[rank].pid) in reports.GONE:
                continue
            self.rows[rank].answer = table.encode_answer(f"{_KILLED}{why}")
            if rank not in self._killed:
                self._killed.add(rank)
                note("killed", rank=self.world_ranks[rank], cause=why)
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._processes[rank], signal.SIGKILL)
        return bool(here)

    def cause_of(self, rank: int) -> str:
        """Returns the reason why a rank is lost, as far as this rank knows it."""
        row, killed = self.rows[rank], table.decode(self.rows[rank].answer)
        if killed.startswith(_KILLED):
            return killed
        return f"process {row.pid or ''} on {self.hosts[rank]} is gone".replace("  ", " ")

    def be_replaced(self) -> None:
        """Stops checking: ranks are lost, and a new watchdog watches the surviving ranks, if there
        are several."""
        _thread.remove(self)
        if _thread.of_world is self:
            _thread.of_world = None
        for process in self._processes.values():
            os.close(process)
        self._processes = {}

    def tell_end(self) -> None:
        """Tells the other ranks that this rank's program has ended."""
        self._go_to(State.ENDED)

    @property
    def longest_wait(self) -> float:
        """Seconds that the rank waits for ranks that work; infinite at the program's end."""
        return math.inf if self.is_leaving else max(LONGEST_WAIT, self.timeout)

    # The rank itself calls these methods, so they must be fast.

    def announce(self, name: str, kind: object, args: tuple, kwargs: dict[str, Any]) -> None:
        """Records the beginning of a watched method; if it communicates, a call of :meth:`enter`
        follows.

        Args:
            name: the method's name.
            kind: the method's kind.
            args, kwargs: the arguments of the call.

        Raises:
            RuntimeError: another thread uses the communicator.
        """
        me = threading.get_ident()
        self._acquire()
        if self.thread != me:
            begun = self.begun and self.begun()
            if begun is not None and not begun.is_complete:
                self._turn.release()
                self._refuse_thread("has begun an operation that is not complete")
            self.thread, self.begun = me, None
        self.is_inside, self.announced, self._text = True, (name, kind, args, kwargs), None

    def _acquire(self):
        if not self._turn.acquire(blocking=False):
            self._refuse_thread()

    def is_inside_here(self) -> bool:
        """Returns whether this thread is in a method of the communicator.

        Raises:
            RuntimeError: another thread is in a method of the communicator.
        """
        if self.is_inside and self.thread != threading.get_ident():
            self._refuse_thread()
        return self.is_inside

    def _refuse_thread(self, why="is in a method of this communicator"):
        names = {thread.ident: repr(thread.name) for thread in threading.enumerate()}
        other = names.get(self.thread, "(now ended)")
        raise RuntimeError(
            f"thread {threading.current_thread().name!r} has called a communicator while thread "
            f"{other} {why}: their messages would be mixed. Make a communicator for each thread, "
            "by comm.split(0, comm.rank) in the same order on all ranks"
        )

    def describe(self, name: str, kind: Any, args: tuple, kwargs: dict[str, Any]) -> bytes:
        """Returns the encoded text of a call that is not announced and not compared between
        ranks."""
        return self.fingerprints.take(name, kind, args, kwargs, sys._getframe(2))[1]

    def enter(self) -> None:
        """Records that an announced method begins to communicate.

        Raises:
            CollectiveMismatchError: another rank has called a different collective.
        """
        assert self.announced is not None
        (name, kind, args, kwargs), self.announced = self.announced, None
        number, text = self.fingerprints.take(name, kind, args, kwargs, sys._getframe(1))
        self._text = text
        row = self.row
        if kind.is_message:
            row.wait_text, row.waits_for = text, kind.awaited(args, kwargs, len(self.rows))
            self._go_to(State.WAITING)
            return
        n = self._n = self._n + 1
        slot, tag = n & _SLOT, n << 32 | number
        self._texts[slot].value = text
        self._tags[slot] = tag
        row.n = self._entered = n
        self._go_to(State.IN_COLLECTIVE)
        self._begun[slot], self._done[slot] = row.since, 0.0
        for rank, tags in self._neighbors:
            other = tags[slot]
            if other != tag and other >> 32 == n:
                self._raise_mismatch(n, rank)

    def leave(self) -> bytes | None:
        """Records the end of a watched method.

        Returns:
            The encoded text of the call; None if the method has not communicated.
        """
        self.is_inside, self.announced = False, None
        if self._text is not None:
            self._go_to(State.COMPUTING)
            if self._entered is not None:
                self._done[self._entered & _SLOT] = self.row.since
                self._entered = None
            if self.gpu is not None:
                self._unfinished.append((self.gpu.mark(), self._text, self.clock()))
        self._turn.release()
        return self._text

    def reopen(self) -> int | None:
        """Records that the latest collective continues in the background; returns its number."""
        n = self._n
        self._done[n & _SLOT] = 0.0
        return n

    def finish(self, n: int) -> None:
        """Records that collective ``n``, which continued in the background, is done."""
        if self._tags[n & _SLOT] >> 32 == n:
            self._done[n & _SLOT] = self.clock()

    def record(self, report: str) -> str:
        """Writes the flight recorder's file, if possible; returns the report with the file name."""
        return reports.record(self, report)

    def record_in(self, folder: str) -> None:
        """Sets the folder of the flight recorder's file, for all watchdogs of this process."""
        reports.folder.path = os.path.abspath(folder)

    def text(self) -> str:
        """Returns the rank's current call and its call site."""
        return "a call" if self._text is None else table.decode(self._text)

    @contextlib.contextmanager
    def waiting(self, text: str | bytes) -> Iterator[None]:
        """Context manager: inside the block, the rank waits for other ranks.

        Args:
            text: the event that the rank waits for.
        """
        with self.within():
            self.row.wait_text = table.encode(text) if isinstance(text, str) else text
            self.row.waits_for = 0
            self._go_to(State.WAITING)
            try:
                yield
            finally:
                self._go_to(State.COMPUTING)

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Context manager: the watchdog ignores calls inside the block, as parts of another
        operation."""
        self._acquire()
        before = self.is_inside, self.announced, self.thread
        self.is_inside, self.announced, self.thread = True, None, threading.get_ident()
        try:
            yield
        finally:
            self.is_inside, self.announced, self.thread = before
            self._turn.release()

    def _go_to(self, state):
        self.row.since = self.clock()
        self.row.state = state

    def _raise_mismatch(self, n, rank):
        # One report is enough: the second rank waits while the first rank ends the job.
        alive = [row for row in self.rows if self.clock() - row.heartbeat < GRACE]
        if any(row.is_reporting for row in alive):
            time.sleep(GRACE)
        self.row.is_reporting = Reporting.RAISES
        raise CollectiveMismatchError(self.record(reports.mismatch(self, n, [self.rank, rank])))

    # The watchdog thread calls these methods periodically.

    def look(self, now: float) -> None:
        """Updates the rank's heartbeat and location, and checks for failures.

        If there is a failure that the rank does not raise itself, the method prints a report. It
        also ends the job, unless the ranks for which this rank waits still work.

        Args:
            now: monotonic time in seconds.
        """
        row = self.row
        row.heartbeat = now
        if row.state == State.COMPUTING and not self._waits_for_gpu(now):
            row.active = max(row.active, (self.last_active or _activity.last)(now))
        if row.asked > row.answered:
            row.answer = table.encode_answer(call_sites.of_main_thread())
            row.answered = row.asked
        report, must_end = self._detector.look(now)
        if self.exchange is not None:
            is_wanted = any(self._wants_news(self.rows[r], now) for r in self.local)
            try:
                self.exchange.exchange(now, self.local, is_wanted)
            except RuntimeError:  # MPI's errors are RuntimeErrors
                if not self.is_elastic:
                    raise
                self.exchange = None  # ranks are lost, and another watchdog follows this one
        if report is not None and must_end:
            self.end(self.record(report), self.gpu and self.gpu.abort)
        elif report is not None:
            self.tell(report)

    def _waits_for_gpu(self, now):
        unfinished = self.oldest_unfinished()
        return unfinished is not None and now - unfinished[1] > GRACE

    def _wants_news(self, row, now):
        patience = min(self.timeout / 3, 5.0)
        return row.asked > row.answered or (self.waits(row) and now - row.since > patience)

    def waits(self, row: Row) -> bool:
        """Returns whether a rank waits for others, as all ranks do at the program's end."""
        return row.state in (State.IN_COLLECTIVE, State.WAITING) or (
            self.is_leaving and row.state == State.ENDED
        )

    def oldest_unfinished(self) -> tuple[str, float] | None:
        """Returns the text of the GPU's oldest unfinished work, and the time when it was begun;
        None if all work is done."""
        while self._unfinished and self._unfinished[0][0]():
            self._unfinished.popleft()
        if not self._unfinished:
            return None
        _, text, begun = self._unfinished[0]
        return table.decode(text), begun

    def ask(self) -> None:
        """Asks all ranks for their locations."""
        for row in self.rows:
            row.asked += 1

    def all_have_answered(self) -> bool:
        """Returns whether all ranks have answered the last question."""
        return all(row.answered >= row.asked for row in self.rows)


def waiting_for(comm: Any, text: str) -> contextlib.AbstractContextManager[None]:
    """Context manager: shows the other ranks that this rank waits for them.

    Args:
        comm: communicator of the ranks.
        text: the event that this rank waits for.

    >>> with waiting_for(comm, "the tide"):
    ...     comm.rank
    0
    """
    return contextlib.nullcontext() if comm.watch is None else comm.watch.waiting(text)


class WatchThread:
    """The thread in which all watchdogs of this process check the other ranks.

    Attributes:
        of_world: the watchdog of all ranks of the job, which watches the program's end; None if
            there is no such watchdog.
        ends: ``mpi4py.MPI.Comm`` of all ranks, used only at the program's end.
    """

    of_world: Watch | None = None
    ends: Any = None

    def __init__(self):
        # These are the watchdogs, and the objects of `add_look`, that the thread calls.
        self._watches = weakref.WeakSet()
        self._looking = threading.Lock()
        self._thread = None
        self._stopped = threading.Event()
        self._pid = os.getpid()

    def add(self, watch: object) -> None:
        """Adds a watchdog; starts the thread if it is not running."""
        with self._looking:
            self._watches.add(watch)
        if self._thread is None:
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._run, name="mpchain watch", daemon=True)
            self._thread.start()

    def remove(self, watch: Watch) -> None:
        """Removes a watchdog."""
        with self._looking:
            self._watches.discard(watch)

    def _run(self):
        while not self._stopped.wait(self._period()):
            with self._looking:
                for watch in list(self._watches):
                    watch.look(time.monotonic())

    def _period(self):
        with self._looking:
            return min([period_of(watch.timeout) for watch in self._watches] + [LONGEST_PERIOD])

    def end(self) -> None:
        """Waits until the programs of all ranks have ended, so that no rank waits unwatched in MPI.

        Then stops the thread, because it must not outlive MPI.
        """
        if self._thread is None:
            return
        if os.getpid() != self._pid:  # a forked process calls MPI_Finalize at its end, too
            print(FORKED, file=sys.stderr, flush=True)
            return
        for watch in list(self._watches):
            watch.tell_end()
        if (watch := self.of_world) is not None:
            try:
                self._wait_for_ends(watch)
            except RuntimeError:  # MPI's errors are RuntimeErrors; RanksLost is one, too
                if not watch.is_elastic:
                    raise
        self._stopped.set()
        self._thread.join(_TIME_TO_END)

    def _wait_for_ends(self, watch):
        mpi = sys.modules["mpi4py.MPI"]
        if mpi.Is_finalized():
            return
        watch.is_leaving = True
        request, nap = self.ends.Ibarrier(), 1e-5
        while not request.Test():
            time.sleep(nap)
            nap = min(2 * nap, 1e-3)
        # Little work is left, but no watchdog runs any more, so an alarm of the system limits the
        # time.
        if hasattr(signal, "alarm"):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            if before := signal.alarm(math.ceil(LONGEST_WAIT)):
                signal.alarm(before)


def add_look(watcher: object) -> None:
    """Makes the thread call ``look(now)`` periodically.

    Args:
        watcher: an object with the methods ``look(now)`` and ``tell_end()``, and the attribute
            ``timeout`` in seconds, from which :func:`period_of` computes the longest time between
            two calls. The thread does not keep the object alive.
    """
    _thread.add(watcher)


def call_at_end(function: Callable[[], None]) -> None:
    """Registers a function to call at the program's end, when no rank needs another rank."""
    _at_end.append(function)


def _end():
    _thread.end()
    for function in _at_end:
        function()


_activity = Activity()
_thread = WatchThread()
_at_end = []
atexit.register(_end)  # early registration makes it run after most other functions
