"""Trains a classifier of handwritten digits in a loop of your own, without the trainer.

    python train_own_loop.py                        one process
    mpchain-launch -n 2 train_own_loop.py           two ranks, the same numbers

Every rank draws the same batches, and computes its part of each batch. After each epoch, the script
saves everything that it needs to resume.
"""

import argparse
import pathlib

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers, serializers
from mpchain.dataset import concat_examples
from mpchain.serializer import AbstractSerializer
from mpchain.typing import Array


class State:
    """The state from which training resumes; ``save_npz`` and ``load_npz`` call ``serialize``."""

    def __init__(self, model, optimizer, batches):
        self.model, self.optimizer, self.batches = model, optimizer, batches

    def serialize(self, serializer: AbstractSerializer) -> None:
        self.model.serialize(serializer["model"])
        self.optimizer.serialize(serializer["optimizer"])
        self.batches.serialize(serializer["batches"])


def evaluate(model: mpchain.Sequential, x: Array, t: Array, comm) -> float:
    """Returns the accuracy; each rank evaluates its share of the samples."""
    with (
        mpchain.using_config("train", False),
        mpchain.no_backprop_mode(),
        comm.batch(len(x)) as mine,
    ):
        right = (model(x[mine]).array.argmax(axis=1) == t[mine]).sum()
    return comm.allreduce_obj(int(right)) / len(x)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=10, help="passes over the training data")
    parser.add_argument("--batchsize", type=int, default=32, help="samples in a global batch")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="state.npz of a training to continue")
    parser.add_argument("--test", action="store_true", help="run for only a few seconds")
    args = parser.parse_args()
    if args.test:
        args.epoch = 2
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    np.random.seed(0)

    train, test = datasets.get_digits()
    x_test, t_test = concat_examples(test)
    batches = iterators.SerialIterator(train, args.batchsize)
    model = mpchain.Sequential(L.Linear(64, 100), F.relu, F.dropout, L.Linear(100, 10))
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(), comm).setup(model)
    state = State(model, optimizer, batches)
    if args.resume:
        serializers.load_npz(args.resume, state)
        np.random.seed(batches.epoch)

    def loss(x: Array, t: Array) -> Variable:
        return F.softmax_cross_entropy(model(x), t)

    while batches.epoch < args.epoch:
        batch = next(batches)
        with comm.batch(len(batch)) as mine:
            optimizer.update(loss, *concat_examples(batch[mine]))
        if batches.is_new_epoch:
            accuracy = evaluate(model, x_test, t_test, comm)
            if comm.rank == 0:
                print(f"epoch {batches.epoch}: {accuracy:.3f} of the test digits are right")
                pathlib.Path(args.out).mkdir(parents=True, exist_ok=True)
                serializers.save_npz(f"{args.out}/state.npz", state)
            np.random.seed(batches.epoch)  # a resumed run seeds the same way


if __name__ == "__main__":
    main()
