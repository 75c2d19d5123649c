"""Watchdog of one rank: publishes its collectives and checks those of the other ranks."""

import atexit
import collections
import contextlib
import functools
import math
import os
import signal
import sys
import threading
import time
import weakref

from mpchain.distributed.shared_memory import share
from mpchain.distributed.watch import call_sites, reports
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
from mpchain.distributed.watch.table import RING, ROW, State, encode, make_rows, read

DEFAULT_TIMEOUT = 300.0
"""Seconds after which a rank that waits for others that do not work ends the job with a report."""

TIMEOUT_VARIABLE = "MPCHAIN_COLLECTIVE_TIMEOUT"

_TIME_TO_END = 2.0  # seconds for the thread to stop at exit

_SLOT = RING - 1  # a power of two, less one


def check_timeout(timeout):
    """Returns the timeout in seconds: the environment's, or the default, for None.

    Raises:
        ValueError: it is no positive number.
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


class Watch:
    """One rank's side of the watch over a communicator.

    Args:
        rank (int): this rank.
        rows (list of Row): one per rank of the communicator.
        local (list of int): the ranks whose rows are shared with this one, itself included.
        hosts: for each rank the name of its host.
        world_ranks: for each rank its number among all ranks of the job.
        timeout (float): seconds.
        relay (Exchange): exchanges rows with other hosts; None if there are none, or another rank
            does it.
        end (function): ends the job with a text, and what to call before to end a GPU's work.
        tell (function): prints a text.
        clock (function): returns seconds.
        last_active (function): returns when this process was last at work, given the time.

    Attributes:
        gpu (GpuWork): the communicator's work on a GPU; None if there is none.
        thread (int): the thread that is in a method of the communicator, or was last.
        begun: weak reference to the request of the operation that was begun last.
        is_leaving (bool): whether the program is over and waits for the others' ends.
    """

    def __init__(
        self,
        rank,
        rows,
        local,
        hosts,
        world_ranks,
        timeout,
        relay,
        end,
        tell,
        clock=time.monotonic,
        last_active=None,
    ):
        self.is_inside = self.is_leaving = False
        self.announced = self._text = None
        self.thread, self.begun = threading.get_ident(), None
        self._turn = threading.RLock()
        self.gpu = None
        self.clock = clock
        self._last_active = last_active or _activity.last
        self.rank, self.rows, self.hosts, self.timeout = rank, rows, hosts, timeout
        self.world_ranks = world_ranks
        self.row = rows[rank]
        self.row.pid = os.getpid()
        self.local = local
        self._neighbors = [(r, rows[r].tags) for r in local if r != rank]
        self._relay, self._end, self._tell = relay, end, tell
        self._owned = []
        self._fingerprints = Fingerprints()
        self._n = 0
        self._unfinished = collections.deque()
        self._looker = Detector(self)

    @classmethod
    def over(cls, mpi, mpi_comm, host, timeout):
        """Makes the watch of several ranks; collective.

        Args:
            mpi (module): ``mpi4py.MPI``.
            mpi_comm (mpi4py.MPI.Comm): the ranks.
            host (mpi4py.MPI.Comm): those of this host.
            timeout (float): seconds.
        """
        local = host.allgather(mpi_comm.rank)
        memory = share(host, len(local) * ROW)
        if memory is None:
            local = [mpi_comm.rank]
        rows = make_rows(mpi_comm.size)
        for rank, row in zip(local, make_rows(len(local), memory), strict=True):
            rows[rank] = row
        world = mpi.COMM_WORLD
        leaders, hosts, world_ranks = zip(
            *mpi_comm.allgather((local[0], mpi.Get_processor_name(), world.rank)), strict=True
        )
        relay = None
        if len(set(leaders)) > 1:
            messages = mpi_comm.Dup()
            if mpi_comm.rank == local[0] and mpi.Query_thread() == mpi.THREAD_MULTIPLE:
                relay = Exchange(mpi, messages, rows, leaders)
        watch = cls(
            mpi_comm.rank,
            rows,
            local,
            hosts,
            world_ranks,
            timeout,
            relay,
            functools.partial(reports.end_job, world),
            functools.partial(reports.tell, world),
        )
        if len(set(leaders)) > 1:
            watch._owned.append(messages)
        if mpi_comm.size == world.size and _thread.of_world is None:
            _thread.of_world, _thread.ends = watch, mpi_comm.Dup()
        mpi_comm.Barrier()  # from here on everybody's row is there
        watch.start()
        return watch

    def start(self):
        """Begins to look at the others from time to time."""
        self._go_to(State.COMPUTING)
        self.row.heartbeat = self.clock()
        _thread.add(self)

    def stop(self):
        """Looks at the others no more, unless it is to watch the end of the program; collective."""
        if _thread.of_world is not self:
            _thread.remove(self)
            for mpi_comm in self._owned:
                mpi_comm.Free()
            self._owned = []

    def tell_end(self):
        """Tells the others that this rank's program is over."""
        self._go_to(State.ENDED)

    @property
    def longest_wait(self):
        """Seconds for which the rank waits for others that work: at its end, without limit."""
        return math.inf if self.is_leaving else max(LONGEST_WAIT, self.timeout)

    # What the rank itself does, as cheaply as possible

    def announce(self, name, kind, args, kwargs):
        """Called at the beginning of a watched method: if it communicates, :meth:`enter` follows.

        Args:
            name (str): its name.
            kind: its entry in the table of watched methods.
            args, kwargs: its arguments.

        Raises:
            RuntimeError: another thread uses the communicator.
        """
        self._take_turn()
        self.is_inside = True
        self.announced = name, kind, args, kwargs
        self._text = None

    def _take_turn(self):
        me = threading.get_ident()
        if not self._turn.acquire(blocking=False):
            self.refuse_thread("is in a method of this communicator")
        if self.thread != me:
            begun = self.begun and self.begun()
            if begun is not None and not begun.is_complete:
                self._turn.release()
                self.refuse_thread("has begun an operation that is not complete")
            self.thread, self.begun = me, None

    def is_inside_here(self):
        """Whether this thread is in a method of the communicator.

        Raises:
            RuntimeError: another thread is.
        """
        if self.is_inside and self.thread != threading.get_ident():
            self.refuse_thread("is in a method of this communicator")
        return self.is_inside

    def refuse_thread(self, why):
        """Raises an error: what two threads exchange with other ranks would be mixed."""
        names = {thread.ident: repr(thread.name) for thread in threading.enumerate()}
        other = names.get(self.thread, "that has ended")
        raise RuntimeError(
            f"thread {threading.current_thread().name!r} has called a communicator while thread "
            f"{other} {why}: their messages would be mixed. Make a communicator for each thread, "
            "by comm.split(0, comm.rank) in the same order on all ranks"
        )

    def describe(self, name, kind, args, kwargs):
        """Returns the text of a call that is neither announced nor compared."""
        return self._fingerprints.take(name, kind, args, kwargs, sys._getframe(2))[1]

    def enter(self):
        """Called when what was announced begins to communicate.

        Raises:
            CollectiveMismatchError: another rank has come to another collective.
        """
        (name, kind, args, kwargs), self.announced = self.announced, None
        number, text = self._fingerprints.take(name, kind, args, kwargs, sys._getframe(1))
        self._text = text
        row = self.row
        if kind.peer is not None:
            row.wait_text = text
            self._go_to(State.WAITING)
            return
        n = self._n = self._n + 1
        slot, tag = n & _SLOT, n << 32 | number
        row.texts[slot][: len(text)] = text
        row.tags[slot] = tag
        row.n = n
        self._go_to(State.IN_COLLECTIVE)
        for rank, tags in self._neighbors:
            other = tags[slot]
            if other != tag and other >> 32 == n:
                self._raise_mismatch(n, rank)

    def leave(self):
        """Called at the end of a watched method.

        Returns:
            bytes: its text; None if it has not communicated.
        """
        self.is_inside, self.announced = False, None
        if self._text is not None:
            self._go_to(State.COMPUTING)
            if self.gpu is not None:
                self._unfinished.append((self.gpu.mark(), self._text, self.clock()))
        self._turn.release()
        return self._text

    def text(self):
        """Returns what the rank has called, and where."""
        return "a call" if self._text is None else read(self._text)

    @contextlib.contextmanager
    def waiting(self, text):
        """Context manager: within it the rank waits for others.

        Args:
            text (str or bytes): for what.
        """
        with self.within():
            self.row.wait_text = encode(text) if isinstance(text, str) else text
            self._go_to(State.WAITING)
            try:
                yield
            finally:
                self._go_to(State.COMPUTING)

    @contextlib.contextmanager
    def within(self):
        """Context manager: what is called within it is a part of something else."""
        if not self._turn.acquire(blocking=False):
            self.refuse_thread("is in a method of this communicator")
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
        # One report is enough: who comes second gives the first time to end the job.
        alive = [row for row in self.rows if self.clock() - row.heartbeat < GRACE]
        if any(row.is_reporting for row in alive):
            time.sleep(GRACE)
        self.row.is_reporting = Reporting.RAISES
        raise CollectiveMismatchError(reports.mismatch(self, n, [self.rank, rank]))

    # What its thread does from time to time

    def look(self, now):
        """Tells that the rank is alive and where it is, and looks for trouble.

        If there is any that the rank itself does not end, the job is ended with a report.

        Args:
            now (float): monotonic time.
        """
        row = self.row
        row.heartbeat = now
        if row.state == State.COMPUTING and not self._waits_for_gpu(now):
            row.active = max(row.active, self._last_active(now))
        if row.asked > row.answered:
            row.answer = call_sites.of_main_thread()
            row.answered = row.asked
        report, must_end = self._looker.look(now)
        if self._relay is not None:
            is_wanted = any(self._wants_news(self.rows[r], now) for r in self.local)
            self._relay.exchange(now, self.local, is_wanted)
        if report is not None and must_end:
            self._end(report, self.gpu and self.gpu.abort)
        elif report is not None:
            self._tell(report)

    def _waits_for_gpu(self, now):
        unfinished = self.oldest_unfinished()
        return unfinished is not None and now - unfinished[1] > GRACE

    def _wants_news(self, row, now):
        patience = min(self.timeout / 3, 5.0)
        return row.asked > row.answered or (self.waits(row) and now - row.since > patience)

    def waits(self, row):
        """Whether a rank waits for others: at the end of its program, if this one does so, too."""
        return row.state in (State.IN_COLLECTIVE, State.WAITING) or (
            self.is_leaving and row.state == State.ENDED
        )

    def oldest_unfinished(self):
        """The oldest work of the GPU that is not done: its text, and when it was begun."""
        while self._unfinished and self._unfinished[0][0]():
            self._unfinished.popleft()
        if not self._unfinished:
            return None
        _, text, begun = self._unfinished[0]
        return read(text), begun

    def ask(self):
        """Asks all ranks where they are."""
        for row in self.rows:
            row.asked += 1

    def all_have_answered(self):
        """Whether all have told where they are."""
        return all(row.answered >= row.asked for row in self.rows)


def waiting_for(comm, text):
    """Context manager: tells the other ranks that this one waits for them.

    Args:
        comm (Communicator): the ranks.
        text (str): for what.
    """
    watch = getattr(comm, "_watch", None)
    return contextlib.nullcontext() if watch is None else watch.waiting(text)


class WatchThread:
    """Lets each watch look at the others from time to time, as long as the watch exists.

    Attributes:
        of_world (Watch): of all ranks of the job; None if there is none. It is kept, for the end.
        ends (mpi4py.MPI.Comm): of the same, for nothing else.
    """

    of_world = ends = None

    def __init__(self):
        self._watches = weakref.WeakSet()
        self._looking = threading.Lock()
        self._thread = None
        self._stopped = threading.Event()
        self._pid = os.getpid()

    def add(self, watch):
        """Begins to look after a watch."""
        with self._looking:
            self._watches.add(watch)
        if self._thread is None:
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._run, name="mpchain watch", daemon=True)
            self._thread.start()

    def remove(self, watch):
        """Looks after a watch no more."""
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

    def end(self):
        """Waits until the programs of all ranks have ended, so that none waits unwatched in MPI.

        Then stops the thread, which must not outlive MPI.
        """
        if self._thread is None or os.getpid() != self._pid:  # that of a forked process
            return
        for watch in list(self._watches):
            watch.tell_end()
        if self.of_world is not None:
            self._wait_for_ends()
        self._stopped.set()
        self._thread.join(_TIME_TO_END)

    def _wait_for_ends(self):
        mpi = sys.modules["mpi4py.MPI"]
        if mpi.Is_finalized():
            return
        self.of_world.is_leaving = True
        request, nap = self.ends.Ibarrier(), 1e-5
        while not request.Test():
            time.sleep(nap)
            nap = min(2 * nap, 1e-3)
        # What is left takes a moment, but there is nobody to watch it: the system does.
        if hasattr(signal, "alarm"):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            if before := signal.alarm(math.ceil(LONGEST_WAIT)):
                signal.alarm(before)


_activity = Activity()
_thread = WatchThread()
atexit.register(_thread.end)  # at import, to be the last of most
