"""Ranks that objects in one process imitate, with a clock that the test sets."""

import functools

import numpy as np

from mpchain.distributed.communicators import MpiCommunicator
from mpchain.distributed.watch import Watch, detection
from mpchain.distributed.watch.table import State, make_rows

TIMEOUT = 10.0


class Clock:
    """A clock with the seconds that the test sets."""

    now = 1000.0

    def __call__(self):
        return self.now


class Ranks:
    """Watches of ranks that share their rows."""

    def __init__(self, n, timeout=TIMEOUT, hosts=None):
        self.clock, self.reports, self.told = Clock(), [], []
        self.working = set()
        rows = make_rows(n)
        hosts, world_ranks = hosts or ["near"] * n, [r + 10 for r in range(n)]
        self.all = [
            Watch(
                *(r, rows, range(n), hosts, world_ranks, timeout, None),
                *(self._end, self.told.append, self.clock, functools.partial(self._active, r)),
            )
            for r in range(n)
        ]
        for watch in self.all:
            watch._go_to(State.COMPUTING)

    def __getitem__(self, rank):
        return self.all[rank]

    def _active(self, rank, now):
        return now if rank in self.working else 0.0

    def _end(self, text, end_gpu_work):
        self.reports.append(text)
        if end_gpu_work is not None:
            end_gpu_work()

    def pass_time(self, seconds, alive=None):
        """Lets time pass; until a first report, the watchdog threads of the ranks ``alive`` run (by
        default, of all ranks)."""
        period = detection.period_of(TIMEOUT)
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += period
            for rank in range(len(self.all)) if alive is None else alive:
                if not self.reports:
                    self[rank].look(self.clock.now)

    @property
    def report(self):
        (report,) = self.reports
        return report


def enter(watch, name="allreduce", *args, **kwargs):
    """Begins a collective in the same way as the rank's method."""
    watch.announce(name, getattr(MpiCommunicator, name)._watched_as, args, kwargs)
    watch.enter()


def call(watch, name="allreduce", *args, **kwargs):
    enter(watch, name, *args, **kwargs)
    return watch.leave()


X = np.zeros((2, 3), np.float32)


class Operation:
    """A request that is complete after a given number of calls of Test."""

    def __init__(self, n):
        self.n = n

    def Test(self):
        self.n -= 1
        return self.n <= 0

    def Wait(self):
        self.n = 0
        return "result"

    def steps(self):
        return ["a step"]
