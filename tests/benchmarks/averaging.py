"""Measures how long ranks of one host take to sum a buffer, compared with copying it once.

``python -m tests.benchmarks.averaging`` starts 2 and 4 ranks by mpchain-launch, bound to cores if
there are enough. In turns, one rank copies 32 MB while the other ranks sleep, all ranks copy 32 MB
at once, and all ranks sum 32 MB, in buffers like those of gradients; then the same with 64 KB, many
times per turn. The program prints the smallest and the median time of the slowest rank, and the
ratio of a sum to a copy by one rank: the ratio of the smallest times, which is more reliable if
other programs run, and the median over the turns.
"""

import argparse
import functools
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = {32 << 20: 2, 64 << 10: 100}  # maps each size to the number of repetitions in a turn
NAP = 2e-3  # seconds that rank 0 sleeps before it copies; the other ranks sleep 20 times as long


def rank(n_turns: int) -> None:
    """Runs on each rank; the first rank prints a row for each size."""
    import numpy as np
    from mpi4py import MPI

    import mpchain

    world = MPI.COMM_WORLD
    comm = mpchain.create_communicator()

    def by_all(action, times):
        comm.barrier()
        return repeat(action, times)

    def by_one(action, times):
        comm.barrier()
        if comm.rank:
            time.sleep(20 * NAP)  # rank 0 must come first
            return [0.0]
        time.sleep(NAP)  # this sleep imitates work
        return repeat(action, times)

    def repeat(action, times):
        seconds = []
        for _ in range(times):
            begin = time.perf_counter()
            action()
            seconds.append(time.perf_counter() - begin)
        return seconds

    def wait_for_sum(buffer):
        comm.iallreduce(buffer).Wait()

    for size, times in SIZES.items():
        (buffer,) = comm.make_buffers([(size // 4, np.dtype(np.float32))])
        source, target = np.ones(size // 4, np.float32), np.zeros(size // 4, np.float32)
        copy = functools.partial(np.copyto, target, source)
        add = functools.partial(wait_for_sum, buffer)
        buffer[...] = comm.rank
        add()
        assert (buffer == sum(range(comm.size))).all()
        buffer[...] = 0
        rows = []
        for _ in range(1 + n_turns):
            row = by_one(copy, times), by_all(copy, times), by_all(add, times)
            of_ranks = world.allgather([(min(x), statistics.median(x)) for x in row])
            rows.append(np.max(of_ranks, axis=0))  # the times of the slowest rank
        if comm.rank == 0:
            least = np.min(rows[1:], axis=0)[:, 0]
            median = np.median(rows[1:], axis=0)[:, 1]
            ratio = np.median([row[2, 1] / row[0, 1] for row in rows[1:]])
            words = [f"{1e6 * a:.0f} / {1e6 * b:.0f}" for a, b in zip(least, median)]
            words.append(f"{least[2] / least[0]:.2f} / {ratio:.2f}")
            print(f"| {comm.size} | {size >> 10} |", " | ".join(words), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", nargs="+", type=int, default=(2, 4), help="numbers of ranks")
    parser.add_argument("--bind", default="cores", choices=["none", "cores", "numa"])
    parser.add_argument("--turns", type=int, default=40)
    options = parser.parse_args()
    if options.rank:
        rank(options.turns)
        return
    print("Least and median time in microseconds; ratio of the least, and median of the ratios.\n")
    print("| ranks | KiB | copy by one | copies by all | sum | sum / copy by one |")
    print("|--:|--:|--:|--:|--:|--:|", flush=True)
    for n in options.ranks:
        launcher = [
            sys.executable,
            "-m",
            "launch",
            "-n",
            str(n),
            "--no-prefix",
            f"--bind={options.bind}",
            "-m",
        ]
        subprocess.run(
            [*launcher, "tests.benchmarks.averaging", "--rank", "--turns", str(options.turns)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
        )


if __name__ == "__main__":
    main()
