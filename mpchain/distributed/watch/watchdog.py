"""Watchdog of one rank: publishes its collectives and checks those of the other ranks."""

import atexit
import collections
import contextlib
import functools
import math
import os
import sys
import threading
import time
import weakref

from mpchain.distributed.shared_memory import share
from mpchain.distributed.watch import call_sites, reports
from mpchain.distributed.watch.detection import (
    GRACE,
    LONGEST_PERIOD,
    Detector,
    Reporting,
    period_of,
    waits,
)
from mpchain.distributed.watch.exchange import Exchange
from mpchain.distributed.watch.fingerprints import CollectiveMismatchError, Fingerprints
from mpchain.distributed.watch.table import RING, ROW, State, encode, make_rows, read

DEFAULT_TIMEOUT = 300.0
"""Seconds after which a rank that waits for others ends the job with a report."""

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
        clock (function): returns seconds.

    Attributes:
        gpu (GpuWork): the communicator's work on a GPU; None if there is none.
    """

    def __init__(
        self, rank, rows, local, hosts, world_ranks, timeout, relay, end, clock=time.monotonic
    ):
        self.is_inside = False
        self.announced = self._text = None
        self.gpu = None
        self.clock = clock
        self.rank, self.rows, self.hosts, self.timeout = rank, rows, hosts, timeout
        self.world_ranks = world_ranks
        self.row = rows[rank]
        self.row.pid = os.getpid()
        self._local = local
        self._neighbours = [(r, rows[r].tags) for r in local if r != rank]
        self._relay, self._end = relay, end
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
        )
        mpi_comm.Barrier()  # from here on everybody's row is there
        watch.start()
        return watch

    def start(self):
        """Begins to look at the others from time to time."""
        self._go_to(State.COMPUTING)
        self.row.heartbeat = self.clock()
        _thread.add(self)

    def tell_end(self):
        """Tells the others that this rank's program is over."""
        if os.getpid() == self.row.pid:  # no process that was forked from it
            self._go_to(State.ENDED)

    # What the rank itself does, as cheaply as possible

    def announce(self, name, kind, args, kwargs):
        """Called at the beginning of a watched method: if it communicates, :meth:`enter` follows.

        Args:
            name (str): its name.
            kind: its entry in the table of watched methods.
            args, kwargs: its arguments.
        """
        self.is_inside = True
        self.announced = name, kind, args, kwargs
        self._text = None

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
        for rank, tags in self._neighbours:
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
        return self._text

    @contextlib.contextmanager
    def waiting(self, text):
        """Context manager: within it the rank waits for others.

        Args:
            text (str or bytes): for what.
        """
        self.row.wait_text = encode(text) if isinstance(text, str) else text
        self._go_to(State.WAITING)
        try:
            with self.within():
                yield
        finally:
            self._go_to(State.COMPUTING)

    @contextlib.contextmanager
    def within(self):
        """Context manager: what is called within it is a part of something else."""
        before = self.is_inside, self.announced
        self.is_inside, self.announced = True, None
        try:
            yield
        finally:
            self.is_inside, self.announced = before

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
        if row.asked > row.answered:
            row.answer = call_sites.of_main_thread()
            row.answered = row.asked
        report = self._looker.look(now)
        if self._relay is not None:
            is_wanted = any(self._wants_news(self.rows[r], now) for r in self._local)
            self._relay.exchange(now, self._local, is_wanted)
        if report is not None:
            self._end(report, self.gpu and self.gpu.abort)

    def _wants_news(self, row, now):
        patience = min(self.timeout / 3, 5.0)
        return row.asked > row.answered or (waits(row) and now - row.since > patience)

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
    """Lets each watch look at the others from time to time, as long as the watch exists."""

    def __init__(self):
        self._watches = weakref.WeakSet()
        self._thread = None
        self._stopped = threading.Event()

    def add(self, watch):
        """Begins to look after a watch."""
        self._watches.add(watch)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mpchain watch", daemon=True)
            self._thread.start()
            # It must not outlive MPI, which is finalised after this.
            atexit.register(self._end)

    def _run(self):
        while not self._stopped.wait(self._period()):
            for watch in list(self._watches):
                watch.look(time.monotonic())

    def _period(self):
        return min([period_of(watch.timeout) for watch in list(self._watches)] + [LONGEST_PERIOD])

    def _end(self):
        self._stopped.set()
        self._thread.join(_TIME_TO_END)
        for watch in list(self._watches):
            watch.tell_end()


_thread = WatchThread()
