"""Measures messages and all-reduces; the doctor runs this program on all ranks.

Rank 0 prints, as JSON, the seconds of an all-reduce for each number of bytes (the median over the
repetitions; each repetition counts the time of its slowest rank), and, for messages between the
first and last rank, the seconds of a short one and the bytes per second of a long one.
"""

import json
import statistics

import numpy as np
from mpi4py import MPI

SIZES = tuple(1 << exponent for exponent in (3, 13, 20, 24))
REPETITIONS = 15
TIME_PER_SIZE = 2.0
SHORT, LONG = 8, 1 << 22


def measure(world: MPI.Comm, size: int) -> float:
    """Returns the median time of an all-reduce of ``size`` bytes, in seconds.

    Example:
        >>> measure(MPI.COMM_SELF, 8) < 1.0
        True
    """
    source = np.ones(size // 4, np.float32)
    target = np.empty_like(source)
    times, spent = [], 0.0
    while len(times) < REPETITIONS and spent < TIME_PER_SIZE:
        begin = MPI.Wtime()
        world.Barrier()
        start = MPI.Wtime()
        world.Allreduce(source, target)
        end = MPI.Wtime()
        slowest = np.array([end - start, end - begin])
        # All ranks need the same times, so that all ranks stop after the same repetition.
        world.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
        times.append(float(slowest[0]))
        spent += float(slowest[1])
    assert (target == world.size).all()
    return statistics.median(times)


def measure_between(world: MPI.Comm, size: int) -> float:
    """Returns the median seconds of a message of ``size`` bytes between the first and last rank.

    Example:
        >>> measure_between(MPI.COMM_SELF, 8)
        0.0
    """
    last, buffer, times = world.size - 1, np.zeros(size, np.uint8), [0.0]
    world.Barrier()
    for _ in range(REPETITIONS + 1 if world.size > 1 else 0):
        start = MPI.Wtime()
        if world.rank == 0:
            world.Send(buffer, last)
            world.Recv(buffer, last)
        elif world.rank == last:
            world.Recv(buffer, 0)
            world.Send(buffer, 0)
        times.append((MPI.Wtime() - start) / 2)
    world.Barrier()
    return statistics.median(times[2:] or times)  # the first message connects the ranks


def main() -> None:
    """Measures all sizes; rank 0 prints the results.

    Example:
        >>> main()  # doctest: +SKIP
        {"ranks": 2, "seconds": {"8": 1.2e-06, ...}}
    """
    world = MPI.COMM_WORLD
    seconds = {size: measure(world, size) for size in SIZES}
    short, long = measure_between(world, SHORT), measure_between(world, LONG)
    places = world.gather(f"rank {world.rank} on {MPI.Get_processor_name()}")
    if places:  # rank 0 prints the results
        between = {"latency": short, "speed": LONG / max(long, 1e-9)}
        between["places"] = [places[0], places[-1]]
        print(json.dumps({"ranks": world.size, "seconds": seconds, "between": between}))


if __name__ == "__main__":
    main()
