"""What a profile costs: steps of LeNet-5 with and without one, by turns.

``python -m tests.benchmarks.profiling [ROUNDS]`` prints lower quartiles of the thread's CPU time,
which other programs on the machine disturb less than medians, and than the time of the clock: of a
batch of 1 at 16x16, where a step is all overhead, for the cost of a span; and of batches of 24 at
28x28. A turn is 100 steps, what a trainer's profile records: the interpreter adapts to the methods
that a profile replaces, and back, in the first ones.
"""

import sys
import time

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import optimizers


class LeNet(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1, self.conv2 = L.Convolution2D(1, 16, 5), L.Convolution2D(16, 32, 5)
            self.l1, self.l2 = L.Linear(None, 128), L.Linear(128, 10)

    def forward(self, x):
        for conv in (self.conv1, self.conv2):
            x = F.max_pooling_2d(F.relu(conv(x)), 2)
        return self.l2(F.relu(self.l1(x)))


def compare(rounds, batch, size, steps=100):
    """Prints the comparison for one size of images."""
    model = L.Classifier(LeNet())
    # It learns next to nothing: gradients that vanish would be subnormal numbers, which are slow.
    optimizer = optimizers.MomentumSGD(lr=1e-9).setup(model)
    x = np.random.RandomState(0).randn(batch, 1, size, size).astype("f")
    t = np.zeros(batch, np.int32)

    def take():
        start = time.thread_time()
        optimizer.update(model, x, t)
        return time.thread_time() - start

    take()
    off, on = [], []
    for _ in range(rounds):
        off += [take() for _ in range(steps)][1:]
        with mpchain.profile() as profile:
            on += [take() for _ in range(steps)][1:]  # the first one learns the names
    n = sum(event["ph"] == "X" for event in profile.trace["traceEvents"]) / steps
    before, after = (1e3 * np.percentile(times, 25) for times in (off, on))
    cost = 1e3 * (after - before) / n
    print(
        f"batch of {batch}: {before:.3f} ms a step, {after:.3f} ms with a profile "
        f"({100 * (after / before - 1):+.1f} %), {n:.0f} spans, {cost:.1f} us each: "
        f"{100 * n * cost / 1e4:.1f} % of 10 ms"
    )


def main(rounds=10):
    """Prints the comparisons."""
    compare(rounds, batch=1, size=16)
    compare(rounds, batch=24, size=28)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
