"""Divides the channels of convolutions among the ranks, for layers too large for one rank.

    python train_parallel_convolution.py                    one process has all channels
    mpchain-launch -n 2 train_parallel_convolution.py       two ranks have half of the channels each

Each rank computes its share of the output channels of every convolution; then all ranks gather the
channels. The values between the layers, and the losses, are the same on all ranks and in one
process. The digits come with mpchain; --test uses synthetic images.
"""

import argparse

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers, serializers, training
from mpchain.distributed import create_synchronized_iterator
from mpchain.distributed.functions import distribute, join
from mpchain.training import extensions
from mpchain.typing import Array


class ParallelConvolution2D(mpchain.Chain):
    """A convolution whose output channels are divided among the ranks."""

    def __init__(self, comm: mpchain.CommunicatorBase, n_in: int, n_out: int, ksize: int):
        super().__init__()
        self.comm = comm
        # All ranks draw the weights of all channels, and each rank keeps its own channels.
        W = np.empty((n_out, n_in, ksize, ksize), np.float32)
        mpchain.initializers.HeNormal()(W)
        first, last = comm.share_of(n_out)
        with self.init_scope():
            self.conv = L.Convolution2D(
                n_in, last - first, ksize, pad=ksize // 2, initialW=W[first:last]
            )

    def forward(self, x: Array | Variable) -> Variable:
        """Returns all channels (N, n_out, H, W) on all ranks."""
        # distribute() sums the gradients of x over the ranks; join() concatenates the channels.
        return join(self.comm, self.conv(distribute(self.comm, x)), axis=1)


class Network(mpchain.Chain):
    """Two convolutions divided among the ranks, and an affine layer that every rank has whole."""

    def __init__(self, comm: mpchain.CommunicatorBase, n_channels: int):
        super().__init__()
        with self.init_scope():
            self.conv1 = ParallelConvolution2D(comm, 1, n_channels, 3)
            self.conv2 = ParallelConvolution2D(comm, n_channels, 2 * n_channels, 3)
            self.out = L.Linear(2 * n_channels * 4, 10)

    def forward(self, x: Array) -> Variable:
        h = F.max_pooling_2d(F.relu(self.conv1(x)), 2)
        h = F.max_pooling_2d(F.relu(self.conv2(h)), 2)
        return self.out(h)


def load_digits(made_up: bool) -> list:
    """Returns training and test set: images (1, 8, 8) and digits."""
    if not made_up:
        return datasets.get_digits(ndim=3)
    labels = np.arange(120, dtype=np.int32) % 10
    images = np.random.RandomState(0).uniform(0, 0.5, (120, 1, 8, 8)).astype(np.float32)
    images[np.arange(120), 0, labels % 8, labels // 8 * 4] = 1
    return datasets.split_dataset(datasets.TupleDataset(images, labels), 80)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=5, help="passes over the training data")
    parser.add_argument("--batchsize", type=int, default=40, help="images in a batch")
    parser.add_argument("--channels", type=int, default=32, help="channels of the first layer")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument(
        "--resume", help="snapshots to resume from, such as 'result/snapshot_iter_36_rank_{rank}'"
    )
    parser.add_argument("--test", action="store_true", help="run a few seconds on synthetic data")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.channels = 2, 4
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    np.random.seed(0)

    train, test = load_digits(args.test)
    # All ranks compute with the same batches, each rank with its own channels.
    train_iter = create_synchronized_iterator(iterators.SerialIterator(train, args.batchsize), comm)
    test_iter = iterators.SerialIterator(test, 100, repeat=False, shuffle=False)
    model = L.Classifier(Network(comm, args.channels))
    # No gradients are averaged: gradients of convolutions belong to the channels of one rank, and
    # gradients of the last layer are the same on all ranks.
    optimizer = optimizers.Adam(alpha=3e-3).setup(model)
    updater = training.updaters.StandardUpdater(train_iter, optimizer)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    trainer.extend(extensions.Evaluator(test_iter, model))
    filename = "snapshot_iter_{.updater.iteration}" + f"_rank_{comm.rank}"
    trainer.extend(extensions.snapshot(filename=filename), trigger=(1, "epoch"))
    if comm.rank == 0:
        trainer.extend(extensions.LogReport())
        columns = ["epoch", "main/loss", "validation/main/loss", "validation/main/accuracy"]
        trainer.extend(extensions.PrintReport([*columns, "elapsed_time"]))
    if args.resume:
        serializers.load_npz(args.resume.format(rank=comm.rank), trainer)
    trainer.run()
    n_own, n_all = model.predictor.conv2.conv.W.shape[0], 2 * args.channels
    print(f"rank {comm.rank} has {n_own} of {n_all} channels of the second convolution")


if __name__ == "__main__":
    main()
