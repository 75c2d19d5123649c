"""Fine-tunes a trained network for another task, with its first layers frozen.

    python train_fine_tuning.py                 one process
    mpchain-launch -n 2 train_fine_tuning.py    two ranks, the same numbers

A network learns the digits 0 to 4, and is saved. Then a new network loads the convolutions of the
first one, gets a new last layer, and learns the digits 5 to 9 from few images: first with frozen
convolutions, then with all layers at a lower learning rate. The digits come with mpchain; --test
uses synthetic images.
"""

import argparse
import pathlib

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers, serializers, training
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.training import extensions
from mpchain.typing import Array


class Convolutions(mpchain.Chain):
    """The layers that both networks share."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(1, 16, ksize=3, pad=1)
            self.conv2 = L.Convolution2D(16, 32, ksize=3, pad=1)

    def forward(self, x: Array) -> Variable:
        h = F.max_pooling_2d(F.relu(self.conv1(x)), 2)
        return F.max_pooling_2d(F.relu(self.conv2(h)), 2)


class Network(mpchain.Chain):
    """Convolutions, and an affine layer for five classes."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.base = Convolutions()
            self.head = L.Linear(None, 5)

    def forward(self, x: Array) -> Variable:
        return self.head(self.base(x))


def load_digits(made_up: bool) -> tuple[Array, Array]:
    """Returns images (N, 1, 8, 8) of digits, and the digits."""
    if not made_up:
        train, test = datasets.get_digits(ndim=3)
        return mpchain.dataset.concat_examples([*train, *test])
    labels = np.arange(200, dtype=np.int32) % 10
    images = np.random.RandomState(0).uniform(0, 0.3, (200, 1, 8, 8)).astype(np.float32)
    images[np.arange(200), 0, labels % 8, labels // 8 * 4] = 1
    return images, labels


def train(network: Network, data: list, lr: float, n_epochs: int, name: str, comm, args) -> None:
    """Trains the parameters that are not frozen."""
    training_data, test_data = data
    train_iter = iterators.SerialIterator(training_data, args.batchsize)
    test_iter = iterators.SerialIterator(test_data, 100, repeat=False, shuffle=False)
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)
    model = L.Classifier(network)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(alpha=lr), comm).setup(model)
    updater = MultiNodeUpdater(train_iter, optimizer, comm)
    trainer = training.Trainer(updater, (n_epochs, "epoch"), out=pathlib.Path(args.out, name))
    evaluator = extensions.Evaluator(test_iter, model)
    trainer.extend(mpchain.create_multi_node_evaluator(evaluator, comm))
    if comm.rank == 0:
        print(f"{name}: {len(training_data)} images")
    columns = ["epoch", "main/loss", "main/accuracy", "validation/main/accuracy"]
    extensions.standard_reports(trainer, columns)
    trainer.run()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=10, help="number of epochs of each training")
    parser.add_argument("--batchsize", type=int, default=20, help="images in a global batch")
    parser.add_argument("--few", type=int, default=100, help="images for fine-tuning")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="trained model; the first training is skipped")
    parser.add_argument("--test", action="store_true", help="run a few seconds on synthetic data")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.few = 1, 40
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    np.random.seed(0)
    x, t = load_digits(args.test)
    small, large = t < 5, t >= 5
    known = datasets.split_dataset_random(
        datasets.TupleDataset(x[small], t[small]), small.sum() * 4 // 5, seed=0
    )
    new = datasets.split_dataset_random(
        datasets.TupleDataset(x[large], t[large] - 5), args.few, seed=0
    )

    path = args.resume or f"{args.out}/trained.npz"
    if not args.resume:
        first = Network()
        train(first, known, 1e-3, args.epoch, "trained", comm, args)
        if comm.rank == 0:
            serializers.save_npz(path, first)
        comm.barrier()

    # Only the part of the file below "base/" is loaded, because the last layer is new.
    network = Network()
    serializers.load_npz(path, network.base, path="base/")
    before = network.base.conv1.W.array.copy()
    network.base.disable_update()
    train(network, new, 1e-2, args.epoch, "frozen", comm, args)
    if comm.rank == 0:
        print("first convolution changed:", bool((network.base.conv1.W.array != before).any()))

    network.base.enable_update()
    train(network, new, 1e-4, args.epoch, "unfrozen", comm, args)
    if comm.rank == 0:
        print("first convolution changed:", bool((network.base.conv1.W.array != before).any()))
        serializers.save_npz(f"{args.out}/fine_tuned.npz", network)


if __name__ == "__main__":
    main()
