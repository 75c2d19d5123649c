"""Ranks that are lost while the other ranks continue (--elastic): the limits, and the report."""

import time

TYPE_CHECKING = False  # importing typing would slow the start
if TYPE_CHECKING:
    from .job import Job
    from .remote_rank import Rank

# The launcher detects most losses itself. If only other ranks notice a loss, because hosts are cut
# off from each other, the launcher ends the lost rank after this many seconds.
TIME_TO_HEAR = 2.0
HOUR = 3600.0


class Elastic:
    """The limits of a job that continues when ranks are lost.

    Args:
        min_ranks: The job is ended when fewer ranks remain.
        most_losses: The job is ended when more ranks are lost in an hour; None means no limit.

    Example:
        >>> vars(Elastic(min_ranks=2))
        {'min_ranks': 2, 'most_losses': None}
    """

    def __init__(self, min_ranks: int = 1, most_losses: int | None = None):
        self.min_ranks, self.most_losses = min_ranks, most_losses


class Losses:
    """The ranks that a job has lost, by number, and the other ranks' reports about them.

    Args:
        job: The `Job` that has lost ranks.
    """

    def __init__(self, job: "Job"):
        self._job, self._limits = job, job.plan.elastic
        self._losses = {}  # maps a rank to the time and line of its report
        # These dicts map a rank to texts from reports, which may arrive before the launcher detects
        # a loss.
        self._causes, self._heirs, self._costs = {}, {}, {}
        self._rests = {}  # maps a rank to the beginning of an incomplete line

    def __len__(self) -> int:
        return len(self._losses)

    def __contains__(self, number: int) -> bool:
        return number in self._losses

    @property
    def are_tolerated(self) -> bool:
        """Whether the job would now continue without a lost rank."""
        job = self._job
        return bool(self._limits) and not job.verdict and job.starter_runs

    def take(self, rank: "Rank", fate: str, code: int) -> None:
        """Records that a rank is lost; ends the job if a limit is exceeded.

        Args:
            rank: The rank.
            fate: The rank's fate, such as ``was killed by SIGKILL (signal 9)``.
            code: The exit code of the launcher if the job ends.
        """
        if rank.number in self._losses or not self.are_tolerated:
            return
        job, limits = self._job, self._limits
        assert limits is not None  # without limits, no losses would be tolerated
        now = job.loop.time
        line = f"  {time.strftime('%H:%M:%S')} {rank.name} {fate}"
        self._losses[rank.number] = now, line
        left = job.plan.n - len(self)
        recent = sum(now - when < HOUR for when, _ in self._losses.values())
        reason = ""
        if left < limits.min_ranks:
            are_left = "1 rank is left" if left == 1 else f"{left} ranks are left"
            reason = f"{are_left}, and --min-ranks is {limits.min_ranks}"
        elif limits.most_losses is not None and recent > limits.most_losses:
            reason = f"--max-losses-per-hour is {limits.most_losses}, and this was loss {recent}"
        if reason:
            job.end(f"{rank.name} {fate}; {reason}", code, asks_where=True)
        else:
            job.tell(f"{rank.name} {fate}; {left} of {job.plan.n} ranks continue")

    def note(self, rank: "Rank", data: bytes) -> None:
        """Handles the bytes that a rank wrote into the pipe of ``MPCHAIN_LAUNCH_NOTES``.

        Each line is a JSON object. The launcher ignores all objects but these:

            {"event": "killed", "rank": 3, "cause": "it was stopped for 20 s"}
            {"event": "lost", "ranks": [3], "causes": {"3": "no heartbeat for 20 s"}}
            {"event": "replaced", "rank": 3}
            {"event": "recovered", "ranks": [3], "iterations": 2, "seconds": 0.4}
            {"event": "restart", "cause": "the parts of the optimizer's state are lost"}

        Ranks are numbered as in MPI_COMM_WORLD. A rank writes ``killed`` before it ends another
        rank, ``lost`` when it has noticed a loss, ``replaced`` when it has replaced a lost rank,
        ``recovered`` when the ranks have recovered, and ``restart`` before it ends with exit code
        75, which makes the launcher restart the job from its last checkpoint.
        """
        import json  # it is seldom needed, and slow to import

        *lines, rest = (self._rests.get(rank.number, b"") + data).split(b"\n")
        self._rests[rank.number] = rest[-(1 << 16) :]
        for line in lines:
            try:
                note = json.loads(line)
                self._read(rank, note["event"], note)
            except (ValueError, TypeError, KeyError, AttributeError):
                continue  # this message is not for the launcher

    def _read(self, rank, event, note):
        if event == "killed":
            self._causes[int(note["rank"])] = f"; another rank ended this rank: {note['cause']}"
        elif event == "lost":
            for number in map(int, note["ranks"]):
                cause = str(note.get("causes", {}).get(str(number), "no reason given"))
                end = lambda number=number, cause=cause: self._end_if_alive(number, cause)
                self._job.loop.after(TIME_TO_HEAR, end)
        elif event == "replaced":
            lost = self._job.ranks[int(note["rank"])]
            self._heirs[lost.number] = f"; rank {rank.number} took its place"
            rank.swap_places(lost)
        elif event == "recovered":
            cost = f"; {int(note['iterations'])} iterations repeated, {note['seconds']:.1f} s"
            self._costs |= dict.fromkeys(map(int, note["ranks"]), cost)
        elif event == "restart":
            rank.exception = str(note["cause"])

    def _end_if_alive(self, number, cause):
        rank = self._job.ranks.get(number)
        if rank and not rank.ended and number not in self and self.are_tolerated:
            self._causes[number] = f"; the other ranks had lost this rank: {cause}"
            rank.kill()

    def describe(self) -> list[str]:
        """Returns the lines of the report: when and why each rank was lost, which rank took its
        place, and the cost of the loss; an empty list without losses."""
        notes = self._causes, self._heirs, self._costs
        losses = self._losses.items()
        lines = [line + "".join(each.get(n, "") for each in notes) for n, (_, line) in losses]
        return [f"lost {len(self)} of {self._job.plan.n} ranks:", *lines] if lines else []
