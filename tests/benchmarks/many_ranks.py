"""Measures 4 to 64 ranks of one host: start, setup, memory, messages and Python calls of each rank.

``python -m tests.benchmarks.many_ranks`` starts ranks by mpchain-launch. They train a small network
for 20 steps with the default communicator, and end. For each number of ranks, the program prints
these times: until all ranks had imported mpchain and initialized MPI, for making communicator and
optimizer and the first step, for a step, and until the command returned. It also prints the largest
of all ranks' private memory, alone and with the share of shared memory, of their messages (all MPI
calls of the main thread that communicate) until the end of the first step and in each later step,
and of their Python calls in a step, including C functions (medians over the steps).
"""

import argparse
import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANKS = (4, 8, 16, 32, 64)
N_STEPS = 20
BATCH = 64 * 4


def rank(begin: float, folder: str) -> None:
    """Runs on each rank, and writes its results into a file."""
    import numpy as np
    from mpi4py import MPI

    import mpchain
    from mpchain import functions as F
    from mpchain import links as L
    from mpchain import optimizers
    from tests.distributed.test_calls_per_step import counting_class

    started = time.time() - begin
    messages = collections.Counter()
    world = counting_class(messages)(MPI.COMM_WORLD)
    comm = mpchain.create_communicator(mpi_comm=world)
    model = mpchain.Sequential(L.Linear(64, 100), F.relu, L.Linear(100, 10))
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(), comm).setup(model)
    x = np.random.RandomState(comm.rank).standard_normal((BATCH // comm.size, 64)).astype("f")
    t = np.arange(len(x), dtype=np.int32) % 10
    loss = lambda: F.softmax_cross_entropy(model(x), t)
    optimizer.update(loss)
    del messages["bytes"]
    set_up, of_setup = time.time() - begin - started, sum(messages.values())
    messages.clear()
    times, calls = [], []
    for step in range(N_STEPS - 1):
        n_calls, start = 0, time.perf_counter()

        def count(frame, event, argument):
            nonlocal n_calls
            n_calls += event in ("call", "c_call")

        sys.setprofile(count if step % 2 else None)
        optimizer.update(loss)
        sys.setprofile(None)
        (calls if step % 2 else times).append(n_calls if step % 2 else time.perf_counter() - start)
    del messages["bytes"]
    answer = {
        "start": started,
        "setup": set_up,
        "step": statistics.median(times),
        "calls": calls,
        "messages of setup": of_setup,
        "messages of a step": sum(messages.values()) / (N_STEPS - 1),
        "memory": _memory(),
    }
    pathlib.Path(folder, f"{comm.rank}.json").write_text(json.dumps(answer))


def _memory():
    """Returns the process's private memory in MiB, and the sum with its share of shared memory."""
    lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    alone = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return alone / 1024, sizes["Pss"] / 1024


def measure(n: int) -> dict[str, float]:
    """Starts ranks; returns the results of the slowest or largest rank."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.time()
        subprocess.run(
            [
                *(sys.executable, "-m", "launch", "-n", str(n), "-m"),
                *("tests.benchmarks.many_ranks", "--rank", repr(begin), folder),
            ],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
        )
        whole = time.time() - begin
        answers = [json.loads(path.read_text()) for path in pathlib.Path(folder).glob("*.json")]
    assert len(answers) == n
    largest = lambda name: max(answer[name] for answer in answers)
    last = max(answer["start"] + answer["setup"] for answer in answers)
    return {
        "start": largest("start"),
        "setup": last - largest("start"),
        "step": 1e3 * largest("step"),
        "whole": whole,
        "alone": max(answer["memory"][0] for answer in answers),
        "with share": max(answer["memory"][1] for answer in answers),
        "messages of setup": largest("messages of setup"),
        "messages of a step": largest("messages of a step"),
        "calls": max(statistics.median(answer["calls"]) for answer in answers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS, help="numbers of ranks")
    options = parser.parse_args()
    if options.rank:
        rank(float(options.rank[0]), options.rank[1])
        return
    heads = ["start/s", "setup/s", "step/ms", "whole/s", "MiB alone", "MiB with share"]
    heads += ["messages of setup", "messages of a step", "Python calls of a step"]
    print("| ranks |", " | ".join(heads), "|")
    print("|--:" * (len(heads) + 1) + "|")
    for n in options.ranks:
        row = measure(n)
        print(f"| {n} |", " | ".join(f"{value:.4g}" for value in row.values()), "|", flush=True)


if __name__ == "__main__":
    main()
