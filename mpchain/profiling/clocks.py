"""The clocks of several ranks, compared by messages."""

import dataclasses
import time
from typing import Any

from mpchain.distributed.communicators import Communicator

ROUNDS = 100
"""Questions to each rank: the answer that came fastest counts."""


@dataclasses.dataclass
class Clock:
    """Offset of rank 0's monotonic clock from this process's; all in nanoseconds.

    Between two comparisons the difference changes linearly, since clocks of hosts drift.

    Args:
        origin: rank 0's time that is shown as zero.
        points: tuples (own time, difference, error) of the comparisons.

    Example:
        >>> clock = Clock(1000, [(0, 500, 20), (4000, 600, 10)])
        >>> clock.shared(2000), clock.error
        (1.55, 20)
    """

    origin: int
    points: list[tuple[int, int, int]]

    @property
    def error(self) -> int:
        """The greatest error of the comparisons: half of the time of question and answer."""
        return max(error for *_, error in self.points)

    def shared(self, own: int) -> float:
        """Returns the time on rank 0's clock since the origin, in microseconds."""
        (first, difference, _), (last, difference_then, _) = self.points[0], self.points[-1]
        change = (difference_then - difference) / (last - first) if last > first else 0.0
        return (own + difference + round(change * (own - first)) - self.origin) / 1000


def own_clock() -> Clock:
    """Returns the clock of a process that has compared it with none; its origin is now.

    >>> own_clock().error
    0
    """
    now = time.perf_counter_ns()
    return Clock(now, [(now, 0, 0)])


def compare(comm: Communicator, begin: int | None = None, clock: Clock | None = None) -> Clock:
    """Compares the clocks of all ranks with rank 0's; collective.

    Rank 0 asks for the time, and takes it for that of the middle between question and answer.

    Args:
        comm: the ranks.
        begin: when this rank began to record, if that was before; the first of all is the origin.
        clock: the result of an earlier comparison; the new one is added.

    >>> compare(comm).error
    0
    """
    point: Any = (time.perf_counter_ns(), 0, 0)
    for other in range(1, comm.size):
        if comm.rank == 0:
            comm.send_obj(_best_of([_ask(comm, other) for _ in range(ROUNDS)]), other)
        elif comm.rank == other:
            for _ in range(ROUNDS):
                comm.recv_obj(0)
                comm.send_obj(time.perf_counter_ns(), 0)
            point = comm.recv_obj(0)
    if clock is not None:
        return Clock(clock.origin, [*clock.points, point])
    begin = point[0] if begin is None else begin
    return Clock(min(comm.allgather_obj(begin + point[1])), [point])


def _ask(comm, other):
    asked = time.perf_counter_ns()
    comm.send_obj(None, other)
    own = comm.recv_obj(other)
    return asked, own, time.perf_counter_ns()


def _best_of(answers: list[tuple[int, int, int]]) -> Any:
    """Returns a point of the clock that was asked.

    >>> _best_of([(100, 1000, 200), (300, 1150, 320)])
    (1150, -840, 10)
    """
    asked, own, answered = min(answers, key=lambda answer: answer[2] - answer[0])
    return own, (asked + answered) // 2 - own, (answered - asked + 1) // 2
