"""Sends gradients between ranks as signs, by a gradient compression with error feedback.

    python train_signs.py                       one process, exact
    mpchain-launch -n 2 train_signs.py [--compression exact]

A compression is a callable that starts to replace a bucket of gradients with its sum over the
ranks. The compression in this script sends one bit for the sign of each gradient, and one magnitude
for each bucket. The error is added to the next gradients, so that nothing is lost forever.

See F. Seide et al., 1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs, Interspeech 2014.
"""

import argparse

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import datasets, iterators, optimizers, serializers, training
from mpchain.distributed import MultiNodeUpdater, compression, create_sharded_iterator
from mpchain.training import extensions
from mpchain.typing import Array


class Done:
    """A request that has been completed."""

    def Test(self) -> bool:
        return True

    def Wait(self) -> None:
        pass


class Signs:
    """Sends the signs and the mean magnitude of gradients; keeps the error for the next step."""

    def __init__(self):
        self.rest = {}  # maps the names of the parameters in a bucket to the error of the last step
        self.n_bytes = 0

    def __call__(self, comm: mpchain.CommunicatorBase, bucket) -> Done:
        values = bucket.values
        names = tuple(bucket.views())
        values += self.rest.get(names, 0)
        size = abs(values).mean() if values.size else values.dtype.type(0)
        bits = np.packbits(values >= 0)
        bits = np.pad(bits, (0, -len(bits) % 4)).view(np.int32)  # MPI can send int32 arrays
        self.rest[names] = values - self.unpack(bits, size, values.size)
        self.n_bytes += bits.nbytes + size.nbytes
        values[...] = 0
        # Bits cannot be summed, so every rank gets all bits, and sums the values in rank order.
        for one_bits, one_size in zip(comm.allgather(bits), comm.allgather(size.reshape(1))):
            values += self.unpack(one_bits, one_size, values.size)
        return Done()

    def unpack(self, bits: Array, size: Array, n: int) -> Array:
        """Returns ``n`` values that are plus or minus ``size``."""
        return size * (2 * np.unpackbits(bits.view(np.uint8), count=n).astype(size.dtype) - 1)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compression", choices=["signs", "exact"], default="signs")
    parser.add_argument("--epoch", type=int, default=15, help="passes over the points")
    parser.add_argument("--batchsize", type=int, default=50, help="points in a global batch")
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

    x = np.random.uniform(-1, 1, (1000, 2)).astype(np.float32)
    points = datasets.TupleDataset(x, (x[:, 0] * x[:, 1] > 0).astype(np.int32))
    batches = create_sharded_iterator(iterators.SerialIterator(points, args.batchsize), comm)
    model = L.Classifier(mpchain.Sequential(L.Linear(2, 50), F.tanh, L.Linear(50, 2)))
    how = Signs() if args.compression == "signs" else compression.exact
    optimizer = mpchain.create_multi_node_optimizer(
        optimizers.MomentumSGD(lr=0.1), comm, compression=how
    ).setup(model)
    updater = MultiNodeUpdater(batches, optimizer, comm)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    extensions.standard_reports(
        trainer, ["epoch", "main/loss", "main/accuracy"], snapshots=(1, "epoch"), arguments=args
    )
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()
    if comm.rank == 0 and args.compression == "signs" and comm.size > 1:
        exact = 4 * model.count_params() * updater.iteration
        print(f"sent {how.n_bytes:,} bytes instead of {exact:,}")


if __name__ == "__main__":
    main()
