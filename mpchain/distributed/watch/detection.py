"""Detects failures while a rank waits, and decides which rank reports them."""

import enum
from typing import TYPE_CHECKING

from mpchain.distributed.watch import reports
from mpchain.distributed.watch.table import State, decode

if TYPE_CHECKING:
    from mpchain.distributed.watch.watchdog import Watch

LONGEST_PERIOD = 0.5
"""The most seconds between two checks of the other ranks."""

LONGEST_WAIT = 1800.0
"""Seconds that a rank waits for ranks that work, unless the timeout is longer."""

STANDSTILL = 2.0
"""Seconds after which a deadlock, in which ranks wait for each other, is reported."""

GRACE = 3.0
"""Seconds that the other ranks wait for the exception of a rank that has found a failure."""


class Reporting(enum.IntEnum):
    """Whether a rank reports a failure; if so, the other ranks report none."""

    NO = 0
    ASKS = 1  # the rank asks for the locations of all ranks
    RAISES = 2


def period_of(timeout: float) -> float:
    """Returns the number of seconds between two checks.

    >>> period_of(4.0)
    0.2
    """
    return min(LONGEST_PERIOD, max(timeout / 20, 0.02))


class Detector:
    """Looks for failures on behalf of one rank, and agrees with the others on who reports them.

    Args:
        watch: the watchdog of the rank.
    """

    def __init__(self, watch: "Watch"):
        self._watch = watch
        self._last = watch.clock()
        self._position = None
        self._waited = 0.0
        self._noticed_at = self._asked_at = self._told = self._idle_since = self._failed_at = None
        self._circle, self._stood = None, 0.0

    def look(self, now: float) -> tuple[str | None, bool]:
        """Returns the report of a failure, if this rank reports it, and whether the job must
        end."""
        watch, period = self._watch, period_of(self._watch.timeout)
        # Only time in which this process was not stopped counts.
        passed, self._last = min(now - self._last, 2 * period), now
        trouble = self._find(passed, now)
        if trouble is None:
            self._noticed_at = self._asked_at = None
            if watch.row.is_reporting == Reporting.ASKS:
                watch.row.is_reporting = Reporting.NO
        elif self._asked_at is not None:
            if watch.all_have_answered() or now - self._asked_at > 3 * period:
                report, must_end = trouble
                self._told = self._position
                return report(), must_end
        elif self._may_report(now, period):
            watch.row.is_reporting = Reporting.ASKS
            watch.ask()
            self._asked_at = now
        return None, False

    def _may_report(self, now, period):
        """Returns whether this rank may report: it is the first to notice the failure, or the first
        rank has not reported it."""
        if self._noticed_at is None:
            self._noticed_at = now
        passed, me = now - self._noticed_at, self._watch.rank
        alive = [row for row in self._watch.rows if now - row.heartbeat < 3 * period + 0.5]
        if any(row.is_reporting for row in alive if row is not self._watch.row):
            return passed > GRACE
        before = [row for row in self._watch.rows[:me] if row in alive and self._watch.waits(row)]
        return passed >= 2 * period * min(len(before), 3)

    def _is_first_to_wait(self):
        return not any(map(self._watch.waits, self._watch.rows[: self._watch.rank]))

    def _find(self, passed, now):
        """Returns a function that makes the report of a failure, and whether the job must end; None
        if there is no failure."""
        watch = self._watch
        error = watch.gpu and watch.gpu.find_error()
        if error and not (watch.is_elastic and self._is_recent_failure(now)):
            return lambda: f"{error}\n{reports.places_of(watch)}", True
        text = self._wait(passed)
        if text is None:
            return None
        waited, timeout, must_end = self._waited, watch.timeout, True
        if circle := self._standing_circle(passed, now):
            return lambda: reports.circle(watch, circle), True
        if waited > min(GRACE, timeout):
            if differing := reports.find_mismatch(watch):
                return lambda: reports.mismatch(watch, *differing), True
            if self._some_are_gone(now):
                return lambda: reports.missing(watch, text, waited), True
        if waited <= timeout:
            return None
        absent = reports.absent(watch)
        if watch.is_elastic and self._leaves_to_others(absent, now, text):
            return None
        if watch.is_leaving and not absent:
            return None
        if not self._are_lost(absent, now):
            must_end = waited > watch.longest_wait
            if not must_end and (self._told == self._position or not self._is_first_to_wait()):
                return None
        return lambda: reports.missing(watch, text, waited, must_end), must_end

    def _standing_circle(self, passed, now):
        """Returns ranks, including this one, that have waited for each other for some time while
        all of them were alive; an empty set if there are none."""
        watch = self._watch
        ranks, longest = reports.circle_of(watch.rows), 3 * period_of(watch.timeout) + 0.5
        rows = {rank: watch.rows[rank] for rank in ranks}
        circle = [(rank, row.state, row.n, row.waits_for) for rank, row in rows.items()]
        if circle != self._circle or any(now - r.heartbeat > longest for r in rows.values()):
            self._circle, self._stood = circle, 0.0
            return set()
        self._stood += passed
        stood = min([self._stood, *(now - row.since for row in rows.values())])
        return ranks if watch.rank in ranks and stood >= STANDSTILL else set()

    def _is_recent_failure(self, now):
        """Returns whether NCCL has noticed that ranks may be lost, and MPI has not noticed yet."""
        self._failed_at = self._failed_at or now
        return now - self._failed_at <= self._watch.timeout

    def _some_are_gone(self, now):
        """Returns whether programs or processes of ranks ended too early."""
        watch = self._watch
        if not watch.is_leaving:
            if any(row.state == State.ENDED and row.n < watch.row.n for row in watch.rows):
                return True
        rows = [watch.rows[rank] for rank in watch.local]
        silent = [row for row in rows if now - row.heartbeat > GRACE]
        return not watch.is_elastic and any(
            reports.state_of_process(row.pid) in reports.GONE for row in silent
        )

    def _are_lost(self, absent, now):
        """Returns whether ranks that others wait for are lost: at least one of them is stopped,
        dead, silent or idle, or all of them wait for each other."""
        rows, timeout = [self._watch.rows[rank] for rank in absent], self._watch.timeout
        working = [
            row
            for row in rows
            if row.state == State.COMPUTING and now - max(row.active, row.since) < timeout
        ]
        waiting = [row for row in rows if self._watch.waits(row) and now - row.heartbeat < timeout]
        return not working or len(working) + len(waiting) < len(rows)

    def _leaves_to_others(self, absent, now, text):
        """Kills idle ranks of this host. Returns whether MPI has yet to notice that ranks are lost,
        or another host has yet to kill its idle ranks."""
        idle = self._idle(absent, now)
        if not idle or self._watch.kill(
            idle, f"others waited {self._waited:.0f} s for it in {text}"
        ):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        return bool(idle) and now - (self._idle_since or now) <= self._watch.timeout + GRACE

    def _idle(self, absent, now):
        """Returns ranks that are silent, and ranks that others wait for but that do not work."""
        watch, timeout = self._watch, self._watch.timeout
        may_work = self._waited <= watch.longest_wait
        late = [
            rank
            for rank in absent
            for row in [watch.rows[rank]]
            if row.state == State.COMPUTING
            and not (may_work and now - max(row.active, row.since) < timeout)
        ]
        silent = [rank for rank in watch.local if now - watch.rows[rank].heartbeat > timeout]
        return sorted({*late, *silent})

    def _wait(self, passed):
        """Adds to the seconds that the rank has been waiting; returns the awaited event as text, or
        None if the rank has just begun to wait, or does not wait."""
        row, unfinished = self._watch.row, self._watch.oldest_unfinished()
        if self._watch.is_leaving:
            position, text = row.since, "the end of the program"
        elif self._watch.waits(row):
            position = row.since
            text = row.text_of(row.n) if row.state == State.IN_COLLECTIVE else decode(row.wait_text)
        else:
            position = unfinished
            text = unfinished and f"{unfinished[0]}, pending on the GPU"
        if position is None or position != self._position:
            self._position, self._waited = position, 0.0
            return None
        self._waited += passed
        return text
