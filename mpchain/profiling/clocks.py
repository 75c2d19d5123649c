"""Measures by messages how much the clocks of several ranks differ."""

import dataclasses
import time
from typing import Any

from mpchain.distributed.communicators import Communicator

ROUNDS = 100
"""Number of requests to each rank; only the fastest answer is used."""


@dataclasses.dataclass
class Clock:
    """The offset of rank 0's monotonic clock from this process's; all times are in nanoseconds.

    Clocks of hosts drift; between two comparisons, the offset is assumed to change linearly.

    Args:
        origin: the time on rank 0's clock that is shown as zero.
        points: a tuple (own time, offset, error) for each comparison.

    Example:
        >>> clock = Clock(1000, [(0, 500, 20), (4000, 600, 10)])
        >>> clock.shared(2000), clock.error
        (1.55, 20)
    """

    origin: int
    points: list[tuple[int, int, int]]

    @property
    def error(self) -> int:
        """The largest error of the comparisons, in nanoseconds: half of a round-trip time."""
        return max(error for *_, error in self.points)

    def shared(self, own: int) -> float:
        """Returns the time on rank 0's clock since the origin, in microseconds."""
        (first, difference, _), (last, difference_then, _) = self.points[0], self.points[-1]
        change = (difference_then - difference) / (last - first) if last > first else 0.0
        return (own + difference + round(change * (own - first)) - self.origin) / 1000


def own_clock() -> Clock:
    """Returns a clock for a process that has not been compared with rank 0; its origin is now.

    >>> own_clock().error
    0
    """
    now = time.perf_counter_ns()
    return Clock(now, [(now, 0, 0)])


def compare(comm: Communicator, begin: int | None = None, clock: Clock | None = None) -> Clock:
    """Compares the clocks of all ranks with rank 0's; collective.

    Rank 0 requests the time of each rank, and assumes that the answer is the time at the middle of
    the round trip.

    Args:
        comm: the ranks.
        begin: the time when this rank began to record; None means now. The earliest time of all
            ranks is the origin.
        clock: the result of an earlier comparison, to which the new comparison is added; its origin
            is kept, and ``begin`` is ignored. None means that this is the first comparison.

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
    """Returns the fastest answer as a point (own time, offset, error) of the answering clock.

    >>> _best_of([(100, 1000, 200), (300, 1150, 320)])
    (1150, -840, 10)
    """
    asked, own, answered = min(answers, key=lambda answer: answer[2] - answer[0])
    return own, (asked + answered) // 2 - own, (answered - asked + 1) // 2
