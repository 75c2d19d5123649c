"""How a rank that waits finds out that something is wrong, and whether to report it."""

import enum

from mpchain.distributed.watch import reports
from mpchain.distributed.watch.table import State

LONGEST_PERIOD = 0.5
"""Seconds between two looks at what the others do."""

GRACE = 3.0
"""Seconds in which a rank that has noticed something itself raises its own exception first."""


class Reporting(enum.IntEnum):
    """Whether a rank reports a failure, for the others to leave it to that one."""

    NO = 0
    ASKS = 1  # where the others are
    RAISES = 2


def period_of(timeout):
    """Seconds between two looks, for a timeout."""
    return min(LONGEST_PERIOD, max(timeout / 20, 0.02))


def waits(row):
    """Whether a rank waits for others."""
    return row.state in (State.IN_COLLECTIVE, State.WAITING)


class Detector:
    """Looks for trouble on behalf of one rank, and agrees with the others on who reports it.

    Args:
        watch (Watch): the rank's.
    """

    def __init__(self, watch):
        self._watch = watch
        self._last = watch.clock()
        self._position = None
        self._waited = 0.0
        self._noticed_at = self._asked_at = None

    def look(self, now):
        """Returns the report of the trouble that there is, if it is this rank's and ready."""
        watch, period = self._watch, period_of(self._watch.timeout)
        # Time in which this process was stopped, too, does not count.
        passed, self._last = min(now - self._last, 2 * period), now
        trouble = self._find(passed)
        if trouble is None:
            self._noticed_at = self._asked_at = None
            if watch.row.is_reporting == Reporting.ASKS:
                watch.row.is_reporting = Reporting.NO
        elif self._asked_at is not None:
            if watch.all_have_answered() or now - self._asked_at > 3 * period:
                return trouble()
        elif self._may_report(now, period):
            watch.row.is_reporting = Reporting.ASKS
            watch.ask()
            self._asked_at = now
        return None

    def _may_report(self, now, period):
        """Lets the first rank that notices report; a later one, if that one does not."""
        if self._noticed_at is None:
            self._noticed_at = now
        passed, me = now - self._noticed_at, self._watch.rank
        alive = [row for row in self._watch.rows if now - row.heartbeat < 3 * period + 0.5]
        if any(row.is_reporting for row in alive if row is not self._watch.row):
            return passed > GRACE
        before = [row for row in self._watch.rows[:me] if row in alive and waits(row)]
        return passed >= 2 * period * min(len(before), 3)

    def _find(self, passed):
        """Returns a function that makes the report of the trouble that there is."""
        watch = self._watch
        error = watch.gpu and watch.gpu.find_error()
        if error:
            return lambda: f"{error}\n{reports.places_of(watch)}"
        text = self._wait(passed)
        if text is None:
            return None
        if self._waited > min(GRACE, watch.timeout):
            if differing := reports.find_mismatch(watch):
                return lambda: reports.mismatch(watch, *differing)
            if any(r.state == State.ENDED and r.n < watch.row.n for r in watch.rows):
                return lambda: reports.missing(watch, text, self._waited)
        if self._waited > watch.timeout:
            return lambda: reports.missing(watch, text, self._waited)
        return None

    def _wait(self, passed):
        """Counts the time for which the rank has been waiting; returns for what, if it is."""
        row, unfinished = self._watch.row, self._watch.oldest_unfinished()
        if waits(row):
            position = row.since
            text = row.text_of(row.n) if row.state == State.IN_COLLECTIVE else row.wait_text
        else:
            position = unfinished
            text = unfinished and f"{unfinished[0]}, under way on the GPU"
        if position is None or position != self._position:
            self._position, self._waited = position, 0.0
            return None
        self._waited += passed
        return text
