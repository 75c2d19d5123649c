"""Measures what ``mpchain-launch --record`` costs a step of training.

``python -m tests.benchmarks.record_cost`` trains ResNet-18 (32 images of CIFAR), a transformer of 4
layers (8 sequences of 128) and a small MLP in one process with one thread, alternately with and
without a record, and prints the ratio of the medians. This ratio is lost in noise on a machine with
other work, so the program also prints the recorder's time in a step, as a share of the median
without it. It also prints the size of the longest line, and the mean number of pieces of parameters
that have fingerprints in a line. Its exit code is 1 if the recorder takes more than 2 % of a step
of ResNet-18 or the transformer, or a line is longer than 1000 bytes.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from examples.cifar.train_cifar import ResNet18
from mpchain import optimizers
from mpchain.distributed import create_communicator, create_multi_node_optimizer
from mpchain.replays.history import History
from mpchain.replays.recording import Recorder
from mpchain.replays.records import FORMAT, NAME

BLOCK = 3  # the number of steps with a record, then without


class Timed(Recorder):
    """A recorder that adds up its own time."""

    seconds = 0.0

    def begins(self, span):
        begun = time.perf_counter()
        super().begins(span)
        self.seconds += time.perf_counter() - begun

    def ends(self, span, begun):
        begun_at = time.perf_counter()
        super().ends(span, begun)
        self.seconds += time.perf_counter() - begun_at


def resnet18():
    random = np.random.RandomState(0)
    x = random.rand(32, 3, 32, 32).astype(np.float32)
    t = random.randint(0, 10, 32).astype(np.int32)
    return L.Classifier(ResNet18(64, 10)), optimizers.MomentumSGD(0.001), (x, t)


def transformer():
    x = np.random.RandomState(0).randn(8, 128, 256).astype(np.float32)
    layers = mpchain.Sequential(*(L.TransformerEncoderLayer(256, 8, 1024, 0.1) for _ in range(4)))

    class Loss(mpchain.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.layers = layers

        def forward(self, x):
            return F.mean(self.layers(x) ** 2)

    return Loss(), optimizers.Adam(), (x,)


def mlp():
    random = np.random.RandomState(0)
    x, t = random.rand(100, 784).astype(np.float32), random.randint(0, 10, 100).astype(np.int32)
    layers = L.Linear(784, 1000), F.relu, L.Linear(1000, 1000), F.relu, L.Linear(1000, 10)
    return L.Classifier(mpchain.Sequential(*layers)), optimizers.Adam(), (x, t)


MODELS = {"resnet18": resnet18, "transformer": transformer, "mlp": mlp}
BOUNDED = {"resnet18", "transformer"}


def measure(name, n_blocks, folder):
    """Prints the results for a model; returns whether they are within the bounds."""
    model, optimizer, batch = MODELS[name]()
    optimizer = create_multi_node_optimizer(optimizer, create_communicator()).setup(model)
    recorder = Timed(folder, {"format": FORMAT})
    times, shares = {True: [], False: []}, []
    for i in range(-2, n_blocks):
        for is_recorded in (True, False) if i % 2 else (False, True):
            if is_recorded:
                recorder.__enter__()
            for _ in range(BLOCK):
                recorder.seconds = 0.0
                begun = time.perf_counter()
                optimizer.update(model, *batch)
                if i >= 0:
                    times[is_recorded].append(time.perf_counter() - begun)
                if i >= 0 and is_recorded:
                    shares.append(recorder.seconds)
            if is_recorded:
                recorder.__exit__(None, None, None)
    step = statistics.median(times[False])
    share = statistics.mean(shares) / step
    ratio = statistics.median(times[True]) / step
    with open(os.path.join(folder, NAME), "rb") as file:
        lines = [line for line in file if b'"t":' in line]
    model = History(folder).main
    n_pieces = len(model.pieces())
    of_line = statistics.mean(len(x.prints) for x in [*model.updates.values()][4 * BLOCK :])
    longest = max(map(len, lines))
    print(
        f"{name:12} step {1e3 * step:8.2f} ms; with a record {ratio:.4f} of that; the recorder "
        f"takes {1e3 * statistics.mean(shares):.2f} ms, {share:.2%}; lines of at most {longest} "
        f"bytes, with {of_line:.1f} of {n_pieces} pieces",
        flush=True,
    )
    return longest <= 1000 and (name not in BOUNDED or share <= 0.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("models", nargs="*", default=[*MODELS])
    arguments = parser.parse_args()
    kept = []
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            kept.append(measure(name, arguments.blocks, folder))
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main())
