"""Measures the Python time that several ranks add to an iteration of one process.

``python -m tests.benchmarks.control_cost`` imitates 1, 8 and 1,024 ranks that all do the same: sums
are multiplications, and nothing is sent. An iteration is one of
:class:`mpchain.distributed.MultiNodeUpdater` with a hook and a reported loss, for two samples of a
rank, and one of :class:`mpchain.training.updaters.StandardUpdater` for comparison. The program also
measures the control message of the iteration alone.

All runs start from the same parameters, because clipping takes time only in some steps. The times
are the smallest CPU times of many iterations, in turns: other programs, and the garbage collector,
only make them longer. Higher quantiles vary more from run to run. The difference from ``one
process`` is what the ranks add, including the imitated sums: two products of a small array and a
number, about 2 us.
"""

import argparse
import time

import numpy as np

from mpchain import functions as F
from mpchain import optimizer_hooks, optimizers, reporter
from mpchain.distributed import (
    MultiNodeUpdater,
    create_multi_node_optimizer,
    create_sharded_iterator,
)
from mpchain.distributed.gradients.control import ControlMessage
from mpchain.iterators import SerialIterator
from mpchain.training.updaters import StandardUpdater
from tests.distributed.gradients.test_control import Many
from tests.models import MLP


def make_updater(n_ranks):
    """Returns the updater of one of ``n_ranks`` ranks; 0 means a process without ranks."""
    np.random.seed(0)  # the gradients must be equal everywhere, because clipping takes time
    model = MLP()

    def loss(x):
        loss = F.mean(model(x) ** 2)
        reporter.report({"loss": loss})
        return loss

    n = 2 * max(n_ranks, 1)
    # A list would be visited by garbage collections.
    data = np.broadcast_to(np.ones(3, "f"), (200 * n, 3))
    batches = SerialIterator(data, n, shuffle=False)
    optimizer = optimizers.SGD()
    if n_ranks == 0:
        updater = StandardUpdater(batches, optimizer.setup(model), loss_func=loss)
    else:
        comm = Many(n_ranks)
        optimizer = create_multi_node_optimizer(optimizer, comm).setup(model)
        batches = create_sharded_iterator(batches, comm)
        updater = MultiNodeUpdater(batches, optimizer, comm, loss_func=loss)
    optimizer.add_hook(optimizer_hooks.GradientClipping(1.0))
    return updater


def make_iteration(n_ranks):
    """Returns a function that runs an iteration of the updater of :func:`make_updater`."""
    updater = make_updater(n_ranks)

    def iterate():
        updater.agree_on_signal(None)
        updater.update()

    return iterate


def make_message(n_ranks):
    """Returns a function that sends the control message of an iteration, with its reports."""
    message = ControlMessage(Many(n_ranks))
    counts = [2, True, *[True] * len(list(MLP().params()))]

    def send():
        message.put([{"loss": (2.0, 2.0)}])
        message.begin(counts)
        message.means()

    return send


def measure(functions, n_iterations):
    """Returns the smallest CPU time of each function in seconds."""
    least = dict.fromkeys(functions, np.inf)
    for _ in range(n_iterations):
        for name, function in functions.items():
            with reporter.Reporter():
                begin = time.thread_time_ns()
                function()
                least[name] = min(least[name], 1e-9 * (time.thread_time_ns() - begin))
    return least


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 1024])
    parser.add_argument("--iterations", type=int, default=5000)
    args = parser.parse_args()
    least = measure({n: make_iteration(n) for n in [0, *args.ranks]}, args.iterations)
    print(f"one process: {1e6 * least[0]:.0f} us an iteration")
    for n in args.ranks:
        print(f"one of {n} ranks: {1e6 * (least[n] - least[0]):.0f} us more")
    least = measure({n: make_message(n) for n in args.ranks}, args.iterations)
    for n in args.ranks:
        print(f"control message alone, one of {n} ranks: {1e6 * least[n]:.0f} us")


if __name__ == "__main__":
    main()
