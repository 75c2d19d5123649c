"""Measures the Python that several ranks cost an iteration, besides what one process does.

``python -m tests.benchmarks.control_cost`` imitates 1, 8 and 1,024 ranks: sums are those of ranks
that all do the same, and nothing travels. An iteration is that of
:class:`mpchain.distributed.MultiNodeUpdater` with a hook and a reported loss, for two samples of a
rank, and of :class:`mpchain.training.updaters.StandardUpdater` for comparison. It also measures
the message of the iteration that is not gradients, alone.

All start from the same parameters, because clipping takes time in some steps and not in others. The
times are the least CPU times of many iterations, in turns: other programs, and the garbage
collector, make them longer, never shorter. Higher quantiles vary more from run to run. Times
differ from ``one process`` by what the ranks add, and that includes the imitated sums: two products
of a small array and a number, some 2 us.
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
    """Returns the updater of one of so many ranks; 0: of one process alone."""
    np.random.seed(0)  # the same gradients everywhere: clipping them takes time
    model = MLP()

    def loss(x):
        loss = F.mean(model(x) ** 2)
        reporter.report({"loss": loss})
        return loss

    n = 2 * max(n_ranks, 1)
    data = np.broadcast_to(np.ones(3, "f"), (200 * n, 3))  # no list, which collections walk over
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
    """Returns a function that does an iteration of the updater of :func:`make_updater`."""
    updater = make_updater(n_ranks)

    def iterate():
        updater.agree_on_signal(None)
        updater.update()

    return iterate


def make_message(n_ranks):
    """Returns a function that sends the message of such an iteration, with its reports."""
    message = ControlMessage(Many(n_ranks))
    counts = [2, True, *[True] * len(list(MLP().params()))]

    def send():
        message.put([{"loss": (2.0, 2.0)}])
        message.begin(counts)
        message.means()

    return send


def measure(functions, n_iterations):
    """Returns the least CPU time of each function in seconds."""
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
