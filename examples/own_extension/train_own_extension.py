"""Extends the trainer by a function, a class with state, and a class that communicates.

    python train_own_extension.py               one process
    mpchain-launch -n 2 train_own_extension.py  two ranks, the same numbers

The task is to decide whether a random point is inside a circle.
"""

import argparse
import time

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import datasets, iterators, optimizers, serializers, training
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.serializer import AbstractSerializer
from mpchain.training import extensions

# 1. An extension can be a function of the trainer. Extensions that report values have a higher
# priority than extensions that print, and run first. This trigger runs the function every epoch.


@training.make_extension(trigger=(1, "epoch"), priority=training.PRIORITY_WRITER)
def report_norm(trainer: training.Trainer) -> None:
    """Reports the norm of all parameters."""
    model = trainer.updater.get_optimizer("main").target
    squares = [float((param.array**2).sum()) for param in model.params()]
    mpchain.report({"norm": sum(squares) ** 0.5})


# 2. An extension with state is a class. serialize() saves the state in snapshots.


class HalveOnPlateau(training.Extension):
    """Halves a hyperparameter when the validation loss has not improved for some epochs.

    All ranks have this extension. The validation loss is the same on all ranks, so that all of them
    change the hyperparameter in the same iteration.
    """

    trigger = (1, "epoch")
    priority = training.PRIORITY_EDITOR  # runs after the evaluator and before the reports

    def __init__(self, name: str, patience: int):
        self.name_of_value, self.patience = name, patience
        self.best, self.n_bad = np.inf, 0

    def __call__(self, trainer: training.Trainer) -> None:
        optimizer = trainer.updater.get_optimizer("main")
        loss = trainer.observation["validation/main/loss"]
        self.n_bad = 0 if loss < self.best else self.n_bad + 1
        self.best = min(self.best, float(loss))
        if self.n_bad == self.patience:
            setattr(optimizer, self.name_of_value, getattr(optimizer, self.name_of_value) / 2)
            self.n_bad = 0
        mpchain.report({self.name_of_value: getattr(optimizer, self.name_of_value)})

    def serialize(self, serializer: AbstractSerializer) -> None:
        self.best = serializer("best", self.best)
        self.n_bad = serializer("n_bad", self.n_bad)


# 3. If an extension communicates, every rank must have it, with the same trigger.


class SlowestRank(training.Extension):
    """Prints at the end which rank used the most CPU time during the training, and how much."""

    trigger = (1, "iteration")
    priority = -200  # runs after the snapshots

    def __init__(self, comm: mpchain.CommunicatorBase):
        self.comm, self.start = comm, None

    def initialize(self, trainer: training.Trainer) -> None:
        self.start = time.process_time()

    def __call__(self, trainer: training.Trainer) -> None:
        if trainer.stop_trigger(trainer):
            times = self.comm.gather_obj(time.process_time() - self.start)
            if self.comm.rank == 0:
                print(f"slowest rank: {int(np.argmax(times))} with {max(times):.1f} s of CPU time")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=20, help="passes over the points")
    parser.add_argument("--batchsize", type=int, default=50, help="points in a global batch")
    parser.add_argument("--lr", type=float, default=1.0, help="first learning rate")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run for only a few seconds")
    args = parser.parse_args()
    if args.test:
        args.epoch = 4
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    np.random.seed(0)

    x = np.random.uniform(-1, 1, (1000, 2)).astype(np.float32)
    points = datasets.TupleDataset(x, ((x**2).sum(axis=1) < 0.6).astype(np.int32))
    train, test = datasets.split_dataset(points, 800)
    train_iter = iterators.SerialIterator(train, args.batchsize)
    test_iter = iterators.SerialIterator(test, 100, repeat=False, shuffle=False)
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)

    model = L.Classifier(mpchain.Sequential(L.Linear(2, 20), F.tanh, L.Linear(20, 2)))
    optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(lr=args.lr), comm).setup(model)
    updater = MultiNodeUpdater(train_iter, optimizer, comm)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    evaluator = extensions.Evaluator(test_iter, model)
    trainer.extend(mpchain.create_multi_node_evaluator(evaluator, comm))
    trainer.extend(HalveOnPlateau("lr", patience=2))
    trainer.extend(SlowestRank(comm))
    if comm.rank == 0:
        trainer.extend(report_norm)
    columns = ["epoch", "main/loss", "validation/main/loss", "validation/main/accuracy"]
    extensions.standard_reports(
        trainer, [*columns, "lr", "norm"], snapshots=(1, "epoch"), arguments=args
    )
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()


if __name__ == "__main__":
    main()
