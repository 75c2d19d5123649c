"""Trains the same models on several numbers of ranks, and prints how much the results differ.

``python -m tests.tools.equality`` trains each model with each optimizer for 20 updates in float64:
in one process, with an ordinary optimizer or, if the model draws random numbers, a multi-node
optimizer; and with multi-node optimizers on 1, 2, 3 and 4 ranks, in each combination of gradient
accumulation, a sharded optimizer and uneven shards of the batch. It prints a table of the largest
relative differences of losses and final parameters from the one process, and fails if a difference
is above 1e-12.

With ``--reproducible``, the trainings are in float32 with a reproducible communicator, whose
results must have the same bits on any number of ranks.
"""

import argparse
import itertools
import pathlib
import sys
import tempfile

import numpy as np

import mpchain
from mpchain import optimizer_hooks, optimizers
from mpchain.datasets import TupleDataset
from mpchain.distributed import (
    MultiNodeUpdater,
    create_multi_node_optimizer,
    create_sharded_optimizer,
)
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.iterators import ShardedIterator
from mpchain.iterators import SerialIterator
from mpchain.reporter import Reporter, report
from mpchain.training import StandardUpdater
from tests.distributed import ranks
from tests.tools.equality_models import MODELS

LIMIT = 1e-12
BATCH_SIZE = 13
ACCUMULATION = 3
OPTIONS = ("accumulated", "sharded", "uneven")

OPTIMIZERS = {
    # With steps twice as long, the gradient penalty magnifies rounding errors.
    "SGD": lambda: (optimizers.SGD(lr=0.02), []),
    "Adam": lambda: (optimizers.Adam(alpha=0.01), []),
    "LARS": lambda: (optimizers.MomentumSGD(lr=0.02), [optimizer_hooks.GradientLARS()]),
    "clipping": lambda: (optimizers.SGD(lr=0.1), [optimizer_hooks.GradientClipping(0.3)]),
}


class UnevenIterator(ShardedIterator):
    """An iterator that gives higher ranks more samples, and the last rank none in each third
    batch."""

    n_batches = 0

    def _choose(self, indices):
        weights = np.arange(1, self.communicator.size + 1)
        self.n_batches += 1
        if self.n_batches % 3 == 0 and len(weights) > 1:
            weights[-1] = 0
        ends = np.cumsum(weights) * len(indices) // weights.sum()
        begin = 0 if self.communicator.rank == 0 else ends[self.communicator.rank - 1]
        self._mine = slice(int(begin), int(ends[self.communicator.rank]))
        return indices[self._mine]

    @property
    def mine(self):
        return self._mine


def train(model_name, optimizer_name, comm, options, n_updates):
    """Trains a model; ``comm`` None means an ordinary optimizer in one process.

    Models that draw within updates get a multi-node optimizer in any case, because only its draws
    do not depend on the number of ranks.

    Returns:
        dict of arrays: the losses, and the parameters by name.
    """
    np.random.seed(3)
    kind = MODELS[model_name]
    if comm is None and kind.ratio:
        comm = Communicator()
    if comm is not None:
        vars(comm).pop("n_draw_keys", None)  # each training starts with the first key
    dtype = mpchain.config.dtype
    arrays = (
        x.astype(dtype if x.dtype.kind == "f" else np.int32)
        for x in kind.samples(np.random.RandomState(4))
    )
    model = kind()
    actual, hooks = OPTIMIZERS[optimizer_name]()
    iterator = SerialIterator(TupleDataset(*arrays), BATCH_SIZE)
    if comm is None:
        optimizer = actual
    elif "sharded" in options:
        optimizer = create_sharded_optimizer(actual, comm)
    else:
        optimizer = create_multi_node_optimizer(actual, comm)
    optimizer.setup(model)
    for hook in hooks:
        optimizer.add_hook(hook)

    def loss_func(*args):
        loss = model(*args)
        report({"loss": loss}, model)
        return loss

    if comm is None:
        updater = StandardUpdater(iterator, optimizer, loss_func=loss_func)
    else:
        sharding = UnevenIterator if "uneven" in options else ShardedIterator
        accumulation = ACCUMULATION if "accumulated" in options else 1
        updater = MultiNodeUpdater(
            sharding(iterator, comm),
            optimizer,
            comm,
            loss_func=loss_func,
            accumulation=accumulation,
        )
    return _run(updater, model, n_updates)


def _run(updater, model, n_updates):
    reporter = Reporter()
    reporter.add_observer("main", model)
    losses = []
    for _ in range(n_updates):
        with reporter.scope({}):
            updater.update()
            loss = reporter.observation["main/loss"]
        losses.append(float(getattr(loss, "array", loss)))
    parameters = {name: param.array for name, param in model.namedparams()}
    return {"losses": np.array(losses), **parameters}


def difference(result, expected):
    """Returns the largest relative difference of two results of :func:`train`."""
    assert result.keys() == expected.keys() and len(result) > 1
    return max(
        np.abs(result[name] - array).max() / np.abs(array).max() for name, array in expected.items()
    )


def combinations(reproducible=False):
    """Returns the combinations of options, each a tuple."""
    names = ("sharded",) if reproducible else OPTIONS
    return [c for n in range(len(names) + 1) for c in itertools.combinations(names, n)]


class Suite:
    """The models, optimizers and combinations of options to train.

    Args:
        models, optimizer_names (list of str): names.
        options (list of tuples): combinations.
        n_updates (int): length of each training.
        reproducible (bool): whether to train in float32 with a reproducible communicator.
    """

    def __init__(self, models, optimizer_names, options, n_updates=20, reproducible=False):
        self.models, self.optimizer_names, self.options = models, optimizer_names, options
        self.n_updates, self.reproducible = n_updates, reproducible

    def dtype(self):
        """Returns a context manager that sets the dtype of the suite."""
        return mpchain.using_config("dtype", np.dtype("f4" if self.reproducible else "f8"))

    def runs(self):
        """Yields model, optimizer, options and file name of each training."""
        for run in itertools.product(self.models, self.optimizer_names, self.options):
            yield *run, f"{run[0]}-{run[1]}-{'-'.join(run[2])}.npz".replace(" ", "_")

    def train_on(self, n_ranks, folder, time_limit):
        """Runs all trainings on ``n_ranks`` ranks, which write the results into a folder."""
        command = [
            "-m",
            "mpi4py",
            "-m",
            "tests.tools.equality",
            "--folder",
            str(folder),
            *self._as_arguments(),
        ]
        status, outputs, own_output = ranks.run(n_ranks, command, timeout=time_limit)
        if status != 0:
            raise RuntimeError(ranks.report(status, outputs, own_output))

    def _as_arguments(self):
        options = ["+".join(combination) or "none" for combination in self.options]
        arguments = ["--models", *self.models, "--optimizers", *self.optimizer_names]
        arguments += ["--options", *options, "--updates", str(self.n_updates)]
        return arguments + ["--reproducible"] * self.reproducible

    def be_a_rank(self, folder):
        """Runs all trainings as one of the ranks."""
        comm = mpchain.create_communicator(reproducible=self.reproducible)
        with self.dtype():
            for model, optimizer, options, file in self.runs():
                result = train(model, optimizer, comm, options, self.n_updates)
                hashes = comm.allgather_obj([array.tobytes() for array in result.values()])
                assert all(other == hashes[0] for other in hashes), "ranks differ"
                if comm.rank == 0:
                    np.savez(pathlib.Path(folder, file), **result)

    def compare(self, numbers_of_ranks, time_limit=600):
        """Runs all trainings on the given numbers of ranks.

        Returns:
            dict: by (model, optimizer, options), the largest difference from the results of one
            process (:func:`train` without a communicator). In a reproducible suite, the difference
            from the results on the first number of ranks; 0 means that all bits are the same.
        """
        with tempfile.TemporaryDirectory() as folder:
            for n in numbers_of_ranks:
                pathlib.Path(folder, str(n)).mkdir()
                self.train_on(n, pathlib.Path(folder, str(n)), time_limit)
                print(f"{n} rank(s): done", flush=True)
            differences = {}
            for model, optimizer, options, file in self.runs():
                results = []
                for n in numbers_of_ranks:
                    with np.load(pathlib.Path(folder, str(n), file)) as arrays:
                        results.append(dict(arrays))
                if self.reproducible:
                    expected = results[0]
                else:
                    with self.dtype():
                        expected = train(model, optimizer, None, (), self.n_updates)
                differences[model, optimizer, options] = max(
                    difference(result, expected) for result in results
                )
        return differences

    def print_table(self, differences):
        """Prints the differences, a line for each model and optimizer."""
        columns = ["+".join(combination) or "plain" for combination in self.options]
        print("model            optimizer  " + "  ".join(columns))
        for model, optimizer in itertools.product(self.models, self.optimizer_names):
            cells = [
                f"{differences[model, optimizer, options]:{len(column)}.1e}"
                for options, column in zip(self.options, columns)
            ]
            print(f"{model:15}  {optimizer:9}  " + "  ".join(cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--options", nargs="+", help="combinations, such as accumulated+uneven")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--reproducible", action="store_true")
    parser.add_argument("--time-limit", type=int, default=900, help="seconds for each run")
    parser.add_argument("--folder", help="the folder of results; only the ranks get it")
    args = parser.parse_args()
    options = combinations(args.reproducible)
    if args.options:
        options = [() if o == "none" else tuple(o.split("+")) for o in args.options]
    suite = Suite(args.models, args.optimizers, options, args.updates, args.reproducible)
    if args.folder:
        suite.be_a_rank(args.folder)
        return
    differences = suite.compare(args.ranks, args.time_limit)
    suite.print_table(differences)
    worst, limit = max(differences.values()), 0 if args.reproducible else LIMIT
    if not worst <= limit:
        sys.exit(f"the greatest difference, {worst:.1e}, is above {limit:.0e}")


if __name__ == "__main__":
    main()
