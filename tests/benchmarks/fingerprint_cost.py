"""Measures what fingerprints of collectives cost a step of training.

``python -m tests.benchmarks.fingerprint_cost`` trains an MLP (784-1000-1000-10, Adam, 100 samples
in all) on two ranks of one thread each, alternately with and without the watch over collectives,
and prints the ratio of the medians. This ratio is lost in noise on a machine with other work, so
the program also prints the time of one fingerprint times the number of fingerprints in a step.
"""

import argparse
import statistics
import sys
import time

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import optimizers
from mpchain.distributed import create_communicator, create_multi_node_optimizer
from tests.distributed import ranks

BLOCK = 5  # the number of steps with the watch, then without


def build(comm):
    """Returns a function that runs one step of training."""
    model = L.Classifier(
        mpchain.Sequential(L.Linear(784, 1000), F.relu, L.Linear(1000, 1000), F.relu)
    )
    model.predictor.append(L.Linear(1000, 10))
    optimizer = create_multi_node_optimizer(optimizers.Adam(), comm).setup(model)
    random = np.random.RandomState(comm.rank)
    x = random.randn(100 // comm.size, 784).astype(np.float32)
    t = random.randint(0, 10, len(x)).astype(np.int32)
    return lambda: optimizer.update(model, x, t)


def measure(n_blocks):
    """Runs on each rank; rank 0 prints the results."""
    comm = create_communicator()
    step, watch = build(comm), comm.watch
    times = {True: [], False: []}
    n_before = 0
    for i in range(-2, n_blocks):
        for is_watched in (True, False) if i % 2 else (False, True):
            comm.watch = watch if is_watched else None
            step()  # both variants begin in the same state
            n_before = watch.row.n
            for _ in range(BLOCK):
                begun = time.perf_counter()
                step()
                if i >= 0:
                    times[is_watched].append(time.perf_counter() - begun)
            if is_watched:
                per_step = (watch.row.n - n_before) / BLOCK
    medians = {k: statistics.median(v) for k, v in times.items()}
    comm.watch = watch
    cost = cost_of_one(comm, watch)
    if comm.rank == 0:
        print(f"step: {medians[False] * 1e3:.2f} ms without the watch")
        print(f"with the watch, interleaved: {medians[True] / medians[False]:.4f} of that")
        share = cost * per_step / medians[False]
        print(f"{per_step:.0f} collectives of {cost * 1e6:.1f} us in a step: {share:.2%} of it")


def cost_of_one(comm, watch, n=20_000):
    """Returns the seconds that the watch takes for one collective on rank 0; None on other
    ranks."""
    x = np.zeros(3, np.float32)
    call = type(comm).allreduce
    kind = call._watched_as

    def nothing():
        watch.announce("allreduce", kind, (x,), {})
        watch.enter()
        watch.leave()

    def in_depth(depth):
        return nothing() if depth == 0 else in_depth(depth - 1)

    comm.barrier()
    if comm.rank > 0:
        watch._n += n
        comm.barrier()
        return None
    begun = time.perf_counter()
    for _ in range(n):
        in_depth(10)
    cost = (time.perf_counter() - begun) / n
    comm.barrier()
    return cost


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--on-ranks", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.on_ranks:
        measure(arguments.blocks)
        return 0
    command = ["-m", __spec__.name, "--on-ranks", f"--blocks={arguments.blocks}"]
    status, outputs, own_output = ranks.run(2, command, timeout=600)
    print(outputs[0] if status == 0 else ranks.report(status, outputs, own_output))
    return status


if __name__ == "__main__":
    sys.exit(main())
