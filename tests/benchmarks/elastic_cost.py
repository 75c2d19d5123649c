"""Measures what ``--elastic`` costs a training in which no rank is lost.

``python -m tests.benchmarks.elastic_cost`` trains an MLP (784-N-N-10, Adam, 100 samples in all) on
ranks of one thread each, with an MPI that can lose ranks. Blocks of elastic steps, with copies of
the state and polls of the other ranks, alternate with blocks without these. Steps are compared by
the lower quartiles of their times, which other programs disturb less. Copies are rare: the time of
the last copy is divided by the time of the steps until the next copy. These ratios are lost in
noise on a machine with other work, so the CPU time of all polls of other ranks is printed as well.
"""

import argparse
import sys
import time

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import optimizers
from mpchain.distributed import (
    InMemoryCheckpoint,
    create_communicator,
    create_multi_node_optimizer,
)
from mpchain.distributed.watch import losses
from tests.distributed import ranks

BLOCK = 10  # the number of elastic steps in a row, then of other steps


class Elastic:
    """Trains on an elastic communicator, with and without the work that makes it elastic.

    Args:
        comm: the communicator.
        n_units: the number of units of a hidden layer.
    """

    def __init__(self, comm, n_units):
        hidden = L.Linear(784, n_units), F.relu, L.Linear(n_units, n_units), F.relu
        self.model = L.Classifier(mpchain.Sequential(*hidden, L.Linear(n_units, 10)))
        self.optimizer = create_multi_node_optimizer(optimizers.Adam(), comm).setup(self.model)
        random = np.random.RandomState(comm.rank)
        self.x = random.randn(100 // comm.size, 784).astype(np.float32)
        self.t = random.randint(0, 10, len(self.x)).astype(np.int32)
        self.comm = comm
        self.state = InMemoryCheckpoint(comm, {"model": self.model, "optimizer": self.optimizer})
        self.seconds_of_copy = self.seconds_of_looks = 0.0
        keep, notices = self.state.keep, comm.elasticity._notices

        def timed_keep(iteration):
            begun, latest = time.perf_counter(), self.state.latest
            keep(iteration)
            if self.state.latest != latest:
                self.seconds_of_copy = time.perf_counter() - begun

        def timed_notices():
            begun = time.thread_time()
            try:
                return notices()
            finally:
                self.seconds_of_looks += time.thread_time() - begun

        self.state.keep, comm.elasticity._notices = timed_keep, timed_notices

    def train(self, *, is_elastic):
        """Runs a block of steps, and returns the seconds of each."""
        elasticity, detectors = self.comm.elasticity, losses.detectors[:]
        if not is_elastic:
            losses.detectors.clear()
        elasticity._is_retired = not is_elastic
        self.comm.barrier()
        times = [time.perf_counter()]
        for _ in range(BLOCK):
            if is_elastic:
                with self.state.step():
                    self.optimizer.update(self.model, self.x, self.t)
            else:
                self.optimizer.update(self.model, self.x, self.t)
            times.append(time.perf_counter())
        losses.detectors[:] = detectors
        elasticity._is_retired = False
        if not is_elastic and self.state._kept_at is not None:
            # The time of elastic steps alone determines the interval of copies.
            iteration, at = self.state._kept_at
            self.state._kept_at = iteration, at + times[-1] - times[0]
        return np.diff(times)


def measure(n_units, n_blocks):
    """Runs on each rank; rank 0 prints the results."""
    training = Elastic(create_communicator(elastic=True), n_units)
    before = -1
    while training.state.interval > before:  # the interval doubles until copies are rare
        before = training.state.interval
        latest = training.state.latest
        while training.state.latest == latest:
            training.train(is_elastic=True)
    training.seconds_of_looks, times = 0.0, {True: [], False: []}
    for i in range(n_blocks):
        for is_elastic in (True, False) if i % 2 else (False, True):
            times[is_elastic].append(training.train(is_elastic=is_elastic))
    quartiles = {k: np.quantile(np.concatenate(v), 0.25) for k, v in times.items()}
    steps = quartiles[True] / quartiles[False]
    copies = training.seconds_of_copy / (training.state.interval * quartiles[True])
    looks = training.seconds_of_looks / np.sum(times[True])
    if training.comm.rank == 0:
        print(f"{n_units} units: {1e3 * quartiles[False]:.2f} ms a step, elastic {steps:.4f} of it")
        print(f"copies add {copies:.2%}, which makes {steps + copies:.4f} in all")
        print(f"CPU time of the polls: {looks:.2%} of the steps' time")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--units", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--on-ranks", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on_ranks:
        for n_units in options.units:
            measure(n_units, options.blocks)
        return 0
    command = ["-m", __spec__.name, "--on-ranks", f"--blocks={options.blocks}"]
    command += ["--units", *map(str, options.units)]
    environ = {"OMPI_MCA_mpi_ft_enable": "1"}
    status, outputs, own_output = ranks.run(options.ranks, command, timeout=600, environ=environ)
    print(outputs[0] if status == 0 else ranks.report(status, outputs, own_output))
    return status


if __name__ == "__main__":
    sys.exit(main())
