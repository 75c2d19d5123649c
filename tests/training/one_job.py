"""Trains in a folder as one job; with --wait, waits for input while it writes its second snapshot.

python tests/training/one_job.py FOLDER [--wait] [--rank RANK]
"""

import argparse
import os
import sys

from mpchain import training
from mpchain.iterators import SerialIterator
from mpchain.training import extensions


class CountingUpdater(training.Updater):
    """An updater that draws batches, without a model."""

    def __init__(self):
        self.iterator = SerialIterator(list(range(10)), 2)
        self.iteration = 0

    epoch = property(lambda self: self.iterator.epoch)
    epoch_detail = property(lambda self: self.iterator.epoch_detail)

    def get_all_optimizers(self):
        return {}

    def update(self):
        self.iterator.next()
        self.iteration += 1

    def serialize(self, serializer):
        self.iterator.serialize(serializer["iterator"])
        self.iteration = serializer("iteration", self.iteration)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--wait", action="store_true", help="wait within the second snapshot")
    parser.add_argument("--rank", help="act as this rank of a job of several processes")
    args = parser.parse_args()
    suffix = "" if args.rank is None else f".{args.rank}"

    def savefun(path, target):
        with open(path, "w") as file:
            file.write("half")
            file.flush()
            if args.wait and trainer.updater.iteration == 2:
                print("inside", flush=True)
                sys.stdin.readline()
            file.write(" and half")

    trainer = training.Trainer(CountingUpdater(), (4, "iteration"), out=args.folder)
    snapshot = extensions.snapshot(savefun, "at_{.updater.iteration}" + suffix)
    trainer.extend(snapshot, trigger=(1, "iteration"))
    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    trainer.run()
    print("done", os.getpid(), flush=True)


if __name__ == "__main__":
    main()
