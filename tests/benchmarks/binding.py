"""Measures a training step of ranks with one thread each, bound to cores and not bound.

``python -m tests.benchmarks.binding`` starts 2 and 4 ranks of this host by mpchain-launch, in turns
with ``--bind none`` and ``--bind cores``. They train a small convolutional network, whose gradients
are averaged. The program prints the smallest and the median time of a step over the turns, and the
ratio of bound to not bound: for the smallest times, and as a median over the turns. The last column
says what was bound. If the launcher binds nothing, it says why, and the ratio shows only noise.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODES = ("none", "cores")
N_STEPS = 40


def rank() -> None:
    """Runs on each rank; the first rank prints the median step of the slowest rank."""
    import numpy as np

    import mpchain
    from mpchain import functions as F
    from mpchain import links as L
    from mpchain import optimizers

    comm = mpchain.create_communicator()
    model = mpchain.Sequential(
        *(L.Convolution2D(3, 32, 3, pad=1), F.relu, L.Convolution2D(32, 64, 3, stride=2, pad=1)),
        *(F.relu, L.Linear(64 * 16 * 16, 100), F.relu, L.Linear(100, 10)),
    )
    optimizer = optimizers.MomentumSGD(0.001)
    optimizer = mpchain.create_multi_node_optimizer(optimizer, comm).setup(model)
    x = np.random.RandomState(comm.rank).standard_normal((32, 3, 32, 32)).astype("f")
    t = np.arange(len(x), dtype=np.int32) % 10
    times = []
    for _ in range(N_STEPS + 5):
        begin = time.perf_counter()
        optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
        times.append(time.perf_counter() - begin)
    slowest = max(comm.allgather_obj(statistics.median(times[5:])))
    if comm.rank == 0:
        print(slowest)


def measure(n: int, mode: str) -> tuple[float, str]:
    """Starts ranks; returns the seconds of a step, and what the launcher says that it bound."""
    launcher = [sys.executable, "-m", "launch", "-n", str(n), "--no-prefix", f"--bind={mode}"]
    answer = subprocess.run(
        [*launcher, "-m", "tests.benchmarks.binding", "--rank"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    said = [line for line in answer.stderr.splitlines() if ": binding: " in line]
    return float(answer.stdout.split()[-1]), said[0].partition(": binding: ")[2] if said else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", nargs="+", type=int, default=(2, 4), help="numbers of ranks")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    if options.rank:
        rank()
        return
    print("Least and median milliseconds of a step, and their ratios; what was bound.\n")
    print("| ranks | not bound | --bind cores | bound / not bound | binding |")
    print("|--:|--:|--:|--:|---|", flush=True)
    for n in options.ranks:
        rows, bound = [], []
        for turn in range(options.turns):
            times = {}
            for mode in MODES[:: 1 - 2 * (turn % 2)]:
                times[mode], said = measure(n, mode)
                bound += [said] if said else []
            rows.append([1e3 * times[mode] for mode in MODES])
        least = [min(column) for column in zip(*rows)]
        median = [statistics.median(column) for column in zip(*rows)]
        ratio = statistics.median(b / a for a, b in rows)
        words = [f"{a:.1f} / {b:.1f}" for a, b in zip(least, median)]
        words += [f"{least[1] / least[0]:.2f} / {ratio:.2f}", "; ".join(dict.fromkeys(bound))]
        print(f"| {n} |", " | ".join(words), "|", flush=True)


if __name__ == "__main__":
    main()
