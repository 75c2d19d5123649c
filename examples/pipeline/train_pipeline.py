"""Divides the layers of a network among the ranks: a pipeline of micro-batches.

    python train_pipeline.py                    one process has all layers
    mpchain-launch -n 2 train_pipeline.py       two ranks, each with half of the layers

Each rank has some of the layers, and sends their output to the next rank. A batch is divided into
micro-batches, so that all ranks work at the same time. The losses are the same as in one process.
The digits come with mpchain; --test uses synthetic images.
"""

import argparse

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers, serializers, training
from mpchain.distributed import MultiNodeChainList, create_synchronized_iterator
from mpchain.training import extensions
from mpchain.typing import Array

N_LAYERS = 4


class Block(mpchain.Chain):
    """An affine layer, with a rectifier unless it is the last layer."""

    def __init__(self, n_in: int, n_out: int, is_last: bool):
        super().__init__()
        self.is_last = is_last
        with self.init_scope():
            self.layer = L.Linear(n_in, n_out)

    def forward(self, x: Array | Variable) -> Variable:
        h = self.layer(x)
        return h if self.is_last else F.relu(h)


def make_pipeline(comm, n_units: int, n_micro_batches: int) -> MultiNodeChainList:
    """Returns the model, whose layers are divided among the ranks."""
    sizes = [64, *[n_units] * (N_LAYERS - 1), 10]
    # All ranks create all layers, so that initial values do not depend on the number of ranks.
    blocks = [Block(sizes[i], sizes[i + 1], i == N_LAYERS - 1) for i in range(N_LAYERS)]
    first, last = comm.share_of(N_LAYERS)
    model = MultiNodeChainList(comm, n_micro_batches)
    model.add_link(
        mpchain.Sequential(*blocks[first:last]),
        rank_in=None if comm.rank == 0 else comm.rank - 1,
        rank_out=None if comm.rank == comm.size - 1 else comm.rank + 1,
    )
    return model


class PipelineUpdater(training.updaters.StandardUpdater):
    """Updates the layers of each rank. Only the last rank has the result, and computes the loss."""

    def __init__(self, iterator, optimizer, comm):
        super().__init__(iterator, optimizer)
        self.has_result = comm.rank == comm.size - 1

    def update_core(self) -> None:
        optimizer = self.get_optimizer("main")
        x, t = self.convert(next(self.get_iterator("main")))
        y = optimizer.target(x)
        if self.has_result:
            loss = F.softmax_cross_entropy(y, t)
            mpchain.report({"loss": loss}, optimizer.target)
        else:
            loss = y  # backward of this variable receives the gradients from the next rank
        optimizer.target.cleargrads()
        loss.backward()
        optimizer.update()


def report_accuracy(model: MultiNodeChainList, test, has_result: bool):
    """Returns an extension that reports the accuracy; all ranks take part."""
    x, t = mpchain.dataset.concat_examples(test)

    @training.make_extension(trigger=(1, "epoch"), priority=training.PRIORITY_WRITER)
    def evaluate(trainer: training.Trainer) -> None:
        with mpchain.using_config("train", False), mpchain.no_backprop_mode():
            y = model(x)
        if has_result:
            mpchain.report({"accuracy": F.accuracy(y, t)})

    return evaluate


def load_digits(made_up: bool) -> list:
    """Returns training and test set: images (64,) and digits."""
    if not made_up:
        return datasets.get_digits(ndim=1)
    labels = np.arange(120, dtype=np.int32) % 10
    images = np.random.RandomState(0).uniform(0, 0.5, (120, 64)).astype(np.float32)
    images[np.arange(120), labels * 5] = 1
    return datasets.split_dataset(datasets.TupleDataset(images, labels), 80)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=10, help="passes over the training data")
    parser.add_argument("--batchsize", type=int, default=40, help="images in a batch")
    parser.add_argument("--micro-batches", type=int, default=4, help="number of micro-batches")
    parser.add_argument("--units", type=int, default=100, help="units of the hidden layers")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument(
        "--resume", help="snapshots to resume from, such as 'result/snapshot_iter_37_rank_{rank}'"
    )
    parser.add_argument("--test", action="store_true", help="run a few seconds on synthetic data")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.units = 3, 16
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    if comm.size > N_LAYERS:
        raise SystemExit(f"there are {comm.size} ranks, but only {N_LAYERS} layers")
    np.random.seed(0)

    train, test = load_digits(args.test)
    # The first rank needs the images, the last rank the labels, so all ranks read the same batches.
    batches = create_synchronized_iterator(iterators.SerialIterator(train, args.batchsize), comm)
    model = make_pipeline(comm, args.units, args.micro_batches)
    # No gradients are averaged, because each rank has different parameters.
    optimizer = optimizers.Adam().setup(model)
    updater = PipelineUpdater(batches, optimizer, comm)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    trainer.extend(report_accuracy(model, test, updater.has_result))
    filename = "snapshot_iter_{.updater.iteration}" + f"_rank_{comm.rank}"
    trainer.extend(extensions.snapshot(filename=filename), trigger=(1, "epoch"))
    if updater.has_result:
        trainer.extend(extensions.LogReport())
        trainer.extend(extensions.PrintReport(["epoch", "main/loss", "accuracy", "elapsed_time"]))
    if args.resume:
        serializers.load_npz(args.resume.format(rank=comm.rank), trainer)
    trainer.run()


if __name__ == "__main__":
    main()
