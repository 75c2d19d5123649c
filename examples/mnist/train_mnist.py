"""Trains a classifier of handwritten digits, in one process or on several ranks.

    python train_mnist.py                           one process
    mpchain-launch -n 2 train_mnist.py              two ranks, each with its half of every batch
    mpchain-launch -n 2 --restarts 3 --checkpoint-dir result train_mnist.py
                                                    resumes from the last snapshot after a failure

The global batch, the order of the samples and the initial parameters do not depend on the number of
ranks. Gradients and reported values are means over the samples of all ranks, so the losses and
accuracies that the script prints do not depend on the number of ranks, either.
"""

import argparse
import os

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers, serializers, training
from mpchain.distributed import create_sharded_iterator
from mpchain.distributed.updaters import MultiNodeUpdater
from mpchain.training import extensions
from mpchain.typing import Array


class MLP(mpchain.Chain):
    """A network with two hidden layers of 100 units."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, 100)
            self.l2 = L.Linear(None, 100)
            self.l3 = L.Linear(None, 10)

    def forward(self, x: Array) -> Variable:
        h = F.relu(self.l1(x))
        h = F.relu(self.l2(h))
        return self.l3(h)


class ConvNet(mpchain.Chain):
    """A network with two convolutions, then one hidden layer."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(None, 32, ksize=3, pad=1)
            self.conv2 = L.Convolution2D(None, 64, ksize=3, pad=1)
            self.l1 = L.Linear(None, 128)
            self.l2 = L.Linear(None, 10)

    def forward(self, x: Array) -> Variable:
        h = F.max_pooling_2d(F.relu(self.conv1(x)), 2)
        h = F.max_pooling_2d(F.relu(self.conv2(h)), 2)
        return self.l2(F.relu(self.l1(h)))


LOADERS = {
    "digits": datasets.get_digits,
    "mnist5k": datasets.get_mnist5k,
    "mnist": datasets.get_mnist,
}
MODELS = {"mlp": (MLP, 1), "conv": (ConvNet, 3)}  # the model, and the number of axes of an image


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", choices=LOADERS, default="digits")
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--epoch", type=int, default=15, help="passes over the training data")
    parser.add_argument("--batchsize", type=int, default=32, help="samples in a global batch")
    parser.add_argument("--communicator", default=None, help="name; default: the best there is")
    parser.add_argument("--device", default=None, help="@numpy, @cupy:N; default: a GPU if any")
    parser.add_argument("--out", default="result", help="folder of the results")
    # mpchain-launch sets this variable when it restarts the script.
    resume = os.environ.get("MPCHAIN_RESUME")
    parser.add_argument("--resume", default=resume, help="snapshot to resume from")
    parser.add_argument("--snapshot", type=int, help="updates between snapshots; default: 1 epoch")
    parser.add_argument("--double", action="store_true", help="compute in float64")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test", action="store_true", help="a few seconds: two epochs")
    args = parser.parse_args()
    if args.test:
        args.epoch = 2
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator(args.communicator)
    if args.device is None:
        n_gpus = mpchain.cuda.device_count()
        args.device = f"@cupy:{comm.intra_rank % n_gpus}" if n_gpus else "@numpy"
    np.random.seed(args.seed)
    if args.double:
        mpchain.global_config.dtype = np.dtype(np.float64)

    model_class, ndim = MODELS[args.model]
    train, test = LOADERS[args.dataset](ndim=ndim)
    train_iter = iterators.SerialIterator(train, args.batchsize)
    test_iter = iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)

    model = L.Classifier(model_class())
    model.to_device(args.device)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(), comm).setup(model)
    updater = MultiNodeUpdater(train_iter, optimizer, comm, device=args.device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)

    evaluator = extensions.Evaluator(test_iter, model, device=args.device)
    trainer.extend(mpchain.create_multi_node_evaluator(evaluator, comm))
    if comm.rank == 0:
        print(f"{comm.size} rank(s), {args.device}, {len(train)} samples, {args.model}")
    # Ctrl-C also leaves a snapshot, and prints the command that resumes from it.
    snapshots = (args.snapshot, "iteration") if args.snapshot else (1, "epoch")
    columns = ["epoch", "main/loss", "validation/main/loss"]
    columns += ["main/accuracy", "validation/main/accuracy", "elapsed_time"]
    extensions.standard_reports(trainer, columns, snapshots=snapshots, arguments=args)
    losses = ["main/loss", "validation/main/loss"]
    trainer.extend(extensions.PlotReport(losses, "epoch", filename="loss.png"))
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()


if __name__ == "__main__":
    main()
