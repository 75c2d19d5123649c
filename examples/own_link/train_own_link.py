"""Writes three links, with parameters, a size that the input sets, persistent values, and children.

    python train_own_link.py                    one process
    mpchain-launch -n 2 train_own_link.py       two ranks, the same numbers

The links learn the distance of a random point from the origin.
"""

import argparse

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, initializers, iterators, optimizers, serializers, training
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.distributed.extensions import AllreducePersistent
from mpchain.training import extensions
from mpchain.typing import Array


class RadialBasis(mpchain.Link):
    """exp(-sum_j (x_j - c_ij)^2 exp(s_i)): one output for each of ``n_out`` centers.

    The number of inputs is inferred from the first input, unless it is given.
    """

    def __init__(self, n_in: int | None, n_out: int):
        super().__init__()
        self.n_out = n_out
        with self.init_scope():
            self.centers = mpchain.Parameter(initializers.Normal(1.0))
            self.log_scale = mpchain.Parameter(initializers.Zero(), (n_out,))
        if n_in is not None:
            self.centers.initialize((n_out, n_in))

    def forward(self, x: Array | Variable) -> Variable:
        if not self.centers.is_initialized:
            self.centers.initialize((self.n_out, x.shape[1]))
        difference = F.expand_dims(x, 1) - F.expand_dims(self.centers, 0)
        square = F.sum(difference**2, axis=2)
        return F.exp(-square * F.broadcast_to(F.exp(self.log_scale), square.shape))


class Standardize(mpchain.Link):
    """Subtracts the running mean of its inputs, and divides by their standard deviation.

    Persistent values are saved with the parameters, but no optimizer changes them.
    """

    def __init__(self, n_in: int, decay: float = 0.99):
        super().__init__()
        self.decay = decay
        self.add_persistent("mean", np.zeros(n_in, np.float32))
        self.add_persistent("square", np.ones(n_in, np.float32))

    def forward(self, x: Array) -> Array:
        y = (x - self.mean) / self.xp.sqrt(self.square - self.mean**2 + 1e-5)
        if mpchain.config.train and len(x) > 0:
            self.mean += (1 - self.decay) * (x.mean(axis=0) - self.mean)
            self.square += (1 - self.decay) * ((x**2).mean(axis=0) - self.square)
        return y


class Net(mpchain.Chain):
    """A chain; links that are assigned to attributes in init_scope become its children."""

    def __init__(self, n_units: int):
        super().__init__()
        with self.init_scope():
            self.standardize = Standardize(2)
            self.basis = RadialBasis(None, n_units)
            self.out = L.Linear(n_units, 1)

    def forward(self, x: Array, t: Array) -> Variable:
        loss = F.mean_squared_error(self.out(self.basis(self.standardize(x))), t)
        mpchain.report({"loss": loss}, self)
        return loss


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=30, help="passes over the points")
    parser.add_argument("--batchsize", type=int, default=50, help="points in a global batch")
    parser.add_argument("--units", type=int, default=20, help="number of centers")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run for only a few seconds")
    args = parser.parse_args()
    if args.test:
        args.epoch = 3
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    np.random.seed(0)

    x = np.random.normal(3, 2, (1000, 2)).astype(np.float32)
    t = np.sqrt((x**2).sum(axis=1, keepdims=True))
    batches = iterators.SerialIterator(datasets.TupleDataset(x, t), args.batchsize)
    batches = create_sharded_iterator(batches, comm)
    model = Net(args.units)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(alpha=0.01), comm).setup(model)
    updater = MultiNodeUpdater(batches, optimizer, comm)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    # Each rank has seen different samples. The mean over the ranks equals one process's value if
    # the ranks have equally many samples.
    trainer.extend(AllreducePersistent(model, comm), trigger=(1, "iteration"))
    extensions.standard_reports(
        trainer, ["epoch", "main/loss", "elapsed_time"], snapshots=(1, "epoch"), arguments=args
    )
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()
    if comm.rank == 0:
        print("running mean of the inputs:", *(f"{value:.2f}" for value in model.standardize.mean))
        for name, parameter in model.namedparams():
            print(f"{name:20} {parameter.shape}")


if __name__ == "__main__":
    main()
