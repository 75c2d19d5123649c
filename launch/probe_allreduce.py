"""Measures the time of an all-reduce by size; a program that the doctor runs on all ranks.

Rank 0 prints, as JSON, the seconds for each number of bytes: the median over the repetitions of the
slowest rank.
"""

import json
import statistics

import numpy as np
from mpi4py import MPI

SIZES = tuple(1 << exponent for exponent in (3, 13, 20, 24))
REPETITIONS = 15
TIME_PER_SIZE = 2.0


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
        world.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)  # so that all ranks stop at once
        times.append(float(slowest[0]))
        spent += float(slowest[1])
    assert (target == world.size).all()
    return statistics.median(times)


def main() -> None:
    """Measures all sizes.

    Example:
        >>> main()  # doctest: +SKIP
        {"ranks": 2, "seconds": {"8": 1.2e-06, ...}}
    """
    world = MPI.COMM_WORLD
    seconds = {size: measure(world, size) for size in SIZES}
    if world.rank == 0:
        print(json.dumps({"ranks": world.size, "seconds": seconds}))


if __name__ == "__main__":
    main()
