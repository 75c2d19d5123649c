"""Measures what summing a count adds to a step of two ranks of one host.

``python -m tests.benchmarks.count_exchange`` starts two ranks. They alternate steps with a loss
that divides by its number of labels, which the ranks sum, and with a loss that divides by the
number of samples, which they need not sum. The program prints the median time of each step, and the
time of the fastest hundredth, which other programs disturb least; then the same for the message
alone, and the difference between the two steps in one process, which sends no message.
"""

import argparse
import sys
import time

import numpy as np

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.distributed import create_multi_node_optimizer
from tests.distributed import ranks

QUANTILES = (0.5, 0.01)


def measure(comm, n_steps):
    """Returns the quantiles of the seconds of a step, with and without a count to sum."""
    random = np.random.RandomState(0)
    model = L.Linear(20, 10)
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    x = random.normal(size=(16, 20)).astype("f")
    t = random.randint(-1, 10, size=16).astype("i")
    losses = [
        lambda: F.softmax_cross_entropy(model(x), t),
        lambda: F.softmax_cross_entropy(model(x), t, normalize=False),
    ]
    times = [[], []]
    pairs = list(zip(losses, times))
    for _ in range(n_steps):
        pairs.reverse()  # the first step of a pair takes longer, whichever it is
        for loss, taken in pairs:
            comm.barrier()
            begin = time.perf_counter()
            with comm.batch(16 * comm.size):
                optimizer.update(loss)
            taken.append(time.perf_counter() - begin)
    return [np.quantile(taken, QUANTILES) for taken in times]


def measure_message(comm, n_steps):
    """Returns the quantiles of the seconds of a sum of ten numbers."""
    (room,) = comm.make_buffers([(10, np.float64)])
    times = []
    for _ in range(n_steps):
        comm.barrier()
        begin = time.perf_counter()
        comm.iallreduce(room).Wait()
        times.append(time.perf_counter() - begin)
    return np.quantile(times, QUANTILES)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.rank:
        command = ["-m", "mpi4py", "-m", "tests.benchmarks.count_exchange", "--rank"]
        status, outputs, text = ranks.run(2, [*command, "--steps", str(args.steps)], timeout=600)
        print(outputs[0] if status == 0 else ranks.report(status, outputs, text))
        sys.exit(status)
    comm = mpchain.create_communicator()
    counting, plain = measure(comm, args.steps)
    message = measure_message(comm, args.steps)
    alone, alone_plain = measure(comm.split(comm.rank, 0), args.steps)
    if comm.rank == 0:
        print(f"us, median and 1 %: two ranks, with a count {us(counting)}, without {us(plain)},")
        print(f"more {us(counting - plain)}; the message alone {us(message)}")
        print(f"one process, more {us(alone - alone_plain)}")


def us(seconds):
    """Returns seconds as a text in microseconds."""
    return " / ".join(f"{1e6 * x:.0f}" for x in seconds)


if __name__ == "__main__":
    main()
