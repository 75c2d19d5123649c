"""Finds ranks that hang while all others wait for them.

A process that was stopped, or that hangs before it joins MPI or after the program's end, raises no
error. The other ranks wait for this process in MPI_Init, create_communicator or MPI_Finalize, where
the watchdog of the communicators is not running. The launcher does not count the time during which
it was stopped itself, because the whole job may have been stopped.
"""

import math
from collections.abc import Mapping

from . import report
from .processes import activity_of
from .talk import say

TYPE_CHECKING = False  # importing typing would slow the start
if TYPE_CHECKING:
    from .job import Job

TIMEOUT_VARIABLE = "MPCHAIN_COLLECTIVE_TIMEOUT"
DEFAULT_TIMEOUT = 300.0
LONGEST_PERIOD = 5.0
# In these startup phases, ranks wait for all other ranks; their numbers are the same as in
# start_program.py.
IN_MPI_INIT, IN_CREATE = 2, 4
GATES = {IN_MPI_INIT: "MPI_Init", IN_CREATE: "create_communicator"}
# This many timeouts may pass in three cases: a rank still computes after all other ranks have
# finished, all ranks are in MPI_Init or in create_communicator, or a rank on its way there only
# wakes up again and again, which may mean that it receives data from a network. A rank that works
# on its way there has no limit.
MOST_TIMEOUTS_OF_WORK = 6
TIME_TO_ANSWER = 1.0
# /proc shows these states for a process that is stopped by a signal such as SIGSTOP, or by a
# debugger.
STOPPED = ("T", "t")


def timeout_of(variables: Mapping[str, str]) -> float:
    """Returns the seconds that ranks wait for each other; communicators read the same variable.

    Example:
        >>> timeout_of({"MPCHAIN_COLLECTIVE_TIMEOUT": "20"}), timeout_of({})
        (20.0, 300.0)
    """
    try:
        seconds = float(variables.get(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT))
    except ValueError:  # mpchain itself prints a message
        return DEFAULT_TIMEOUT
    return seconds if seconds > 0 else DEFAULT_TIMEOUT


class Standstill:
    """Asks all supervisors for a heartbeat, and ends a job in which a rank hangs.

    Args:
        job: The `Job` to watch.
        timeout: Seconds without progress of a rank after which the job is ended; may be infinite.
    """

    def __init__(self, job: "Job", timeout: float):
        self._job, self._timeout = job, timeout
        self._progress = self._came = job.loop.time
        self._has_reported = False
        if timeout < math.inf:
            self._plan_next()

    def note_progress(self) -> None:
        """Records that a program has come to its end."""
        self._progress = self._job.loop.time
        self._has_reported = False
        self._end_if_absent()

    def note_phase(self) -> None:
        """Records that a program has begun another startup phase."""
        self._came = self._job.loop.time
        self._has_reported = False
        self._end_if_absent()

    def _end_if_absent(self):
        """Ends a job in which ranks wait in MPI_Init for a program that ended before MPI_Init.

        mpirun may notice such a program later, too, but does not name the rank that caused it.
        """
        ranks = sorted(self._job.ranks.items())
        waiting = [n for n, rank in ranks if rank.phase == IN_MPI_INIT and not rank.ended]
        absent = [n for n, rank in ranks if rank.phase < IN_MPI_INIT and rank.code == 0]
        if waiting and absent:
            early = f"{report.describe_numbers(absent)} ended with exit code 0 before MPI_Init"
            others = f"where {report.describe_numbers(waiting)} waited"
            self._job.end(f"{early}, {others}", asks_where=True)

    def _plan_next(self):
        self._job.loop.after(min(LONGEST_PERIOD, self._timeout / 4), self._look)

    def _look(self):
        job = self._job
        if job.verdict:
            return
        if sentence := self._find():
            job.end(sentence, asks_where=True)
            return
        ranks = job.ranks.items()
        some_wait = any(
            rank.done or rank.ended or rank.phase in GATES
            for n, rank in ranks
            if n not in job.losses
        )
        for rank in job.ranks.values():
            rank.ask(what=some_wait and not rank.ended)
        self._plan_next()

    def _find(self):
        """Returns a sentence about an mpirun that has been stopped, or ranks that have hung, for
        too long; an empty string if there are none."""
        job, now = self._job, self._job.loop.time
        if job.starter_stopped is not None and now - job.starter_stopped > self._timeout:
            return f"{job.starter_name} has been stopped for {self._timeout:g} s"
        for rank in list(job.ranks.values()):
            if job.screen_is_full:  # a full screen pauses the ranks
                rank.heard = now
            if rank.channel.open and now - rank.heard > self._timeout:
                sentence = self._describe_loss(rank)
                if not job.losses.are_tolerated:
                    return sentence
                job.give_up(rank)
        if sentence := self._find_late_starts(now, now - self._came):
            return sentence
        waited = now - self._progress
        if waited > self._timeout and len(job.ranks) == job.plan.n:
            return self._find_late_ranks(now, waited)
        return ""

    def _describe_loss(self, rank):
        state = "" if self._job.plan.hosts else activity_of(rank.process)[0]
        fate = "is stopped" if state in STOPPED else "does not answer"
        rank.lost = f"its supervisor (process {rank.process}) {fate}"
        return f"{rank.name} was lost: {rank.lost}"

    def _find_late_starts(self, now, waited):
        """Returns a sentence about ranks for which others have waited too long during the start;
        else ""."""
        job, ranks, limit = self._job, self._job.ranks, self._timeout
        expected = [n for n in range(job.plan.n) if n not in job.losses]
        for phase, place in GATES.items() if waited > limit else ():
            inside = [n for n in expected if n in ranks and ranks[n].phase == phase]
            late = [n for n in expected if n not in ranks or ranks[n].phase < phase]
            running = {n: ranks[n] for n in (*inside, *late) if n in ranks and not ranks[n].ended}
            stopped = sorted(n for n, rank in running.items() if now - rank.moved > limit)
            working = [n for n in late if n in running and self._works(ranks[n], waited)]
            if not running.keys() & set(inside):
                continue
            finished = [n for n in late if n in ranks and ranks[n].done]
            cause = self._remedy
            if stopped or finished:
                what = "stopped" if stopped else "finished"
                cause = f"{what}: {report.describe_numbers(stopped or finished)}"
            waiting = f"{report.describe_numbers(inside)} waited in {place}; {cause}"
            names = report.describe_numbers(late) if late else "nobody"
            if late and (stopped or not working):
                late_by = f"did not get to {place} within {waited:.0f} s after the other ranks"
                return f"{names} {late_by}; {waiting}"
            if not late and (stopped or waited > MOST_TIMEOUTS_OF_WORK * limit):
                return f"{place} did not end within {waited:.0f} s; {waiting}"
            if late:
                wait = "wait" if len(inside) > 1 else "waits"
                others = f"{report.describe_numbers(inside)} {wait} in {place} for {names}"
                self._report_work(others, [ranks[n] for n in working])
        return ""

    def _works(self, rank, waited):
        """Returns whether a rank is working while other ranks wait for it during the start."""
        may_receive = waited <= MOST_TIMEOUTS_OF_WORK * self._timeout
        last = max(rank.active, rank.awake) if may_receive else rank.active
        return not rank.done and self._job.loop.time - last <= self._timeout

    @property
    def _remedy(self):
        return (
            f"if a rank needs longer, set {TIMEOUT_VARIABLE} to more than {self._timeout:g} seconds"
        )

    def _find_late_ranks(self, now, waited):
        ranks = self._job.ranks.items()
        lost = self._job.losses
        running = {n: rank for n, rank in ranks if not rank.ended and n not in lost}
        late = {number: rank for number, rank in running.items() if not rank.done}
        waiting = sorted(set(running) - set(late))
        stopped = [n for n, rank in running.items() if now - rank.moved > self._timeout]
        if len(late) + len(lost) == self._job.plan.n or not (waiting or stopped):
            return ""  # all ranks work, or those that work do not use MPI
        names = report.describe_numbers(sorted(late))
        causes = [f"{report.describe_numbers(waiting)} waited in MPI_Finalize"] if waiting else []
        causes += [f"stopped: {report.describe_numbers(sorted(stopped))}"] if stopped else []
        cause = "; ".join(causes)
        if not late:
            return f"{cause}, and not all ended within {self._timeout:g} s"
        if not stopped:
            cause = f"{cause}; {self._remedy}"
        are_still = all(now - rank.active > self._timeout for rank in late.values())
        if stopped or are_still or waited > MOST_TIMEOUTS_OF_WORK * self._timeout:
            return f"{names} did not finish within {waited:.0f} s after the other ranks; {cause}"
        self._report_work(f"the other ranks have finished and wait for {names}", late.values())
        return ""

    def _report_work(self, waiting, ranks):
        """Prints, once, that ranks wait for other ranks, which work, and where in the code the
        first of these is that has written its stacks."""
        if not self._has_reported:
            self._has_reported = True
            for rank in ranks:
                rank.ask_where()
            self._job.loop.after(TIME_TO_ANSWER, lambda: self._say_where(waiting, ranks))

    def _say_where(self, waiting, ranks):
        places = [place for rank in ranks if (place := report.describe_place(rank.stacks))]
        say(", ".join([waiting, *places[:1]]))
