"""What a profile costs: steps of LeNet-5 with and without one, by turns.

``python -m tests.benchmarks.profiling [ROUNDS]`` prints the median of the ratios of turns of 50
steps with a profile to the turns before and after it without one, in CPU time of the thread: for a
batch of 1 at 16x16, where a step is all overhead; and for batches of 28x28 whose step takes about
10 ms. The first steps of a turn do not count: the interpreter adapts to the methods that a profile
replaces.
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


def compare(rounds, batch, size, steps=50, wanted=None):
    """Prints the comparison; ``wanted`` is the seconds of a step, for which a batch is chosen."""
    model = L.Classifier(LeNet())
    # It learns next to nothing: gradients that vanish would be subnormal numbers, which are slow.
    optimizer = optimizers.MomentumSGD(lr=1e-9).setup(model)

    def turn(batch):
        x = np.random.RandomState(0).randn(batch, 1, size, size).astype("f")
        t = np.zeros(batch, np.int32)
        times = []
        for _ in range(steps):
            start = time.thread_time()
            optimizer.update(model, x, t)
            times.append(time.thread_time() - start)
        return np.median(times[5:])

    turn(batch)
    if wanted is not None:
        batch = max(1, round(batch * wanted / turn(batch)))
    off, on = [turn(batch)], []
    for _ in range(rounds):
        with mpchain.profile() as profile:
            on.append(turn(batch))
        off.append(turn(batch))
    ratios = 2 * np.array(on) / np.add(off[1:], off[:-1])
    n = sum(event["ph"] == "X" for event in profile.trace["traceEvents"]) / steps
    cost, before = np.median(ratios) - 1, np.median(off)
    error = ratios.std() / rounds**0.5
    print(
        f"batch of {batch}: {1e3 * before:.2f} ms a step, {100 * cost:+.1f} % with a profile "
        f"(standard error {100 * error:.1f}), {n:.0f} spans, {1e6 * cost * before / n:.1f} us each"
    )


def main(rounds=20):
    """Prints the comparisons."""
    compare(rounds, batch=1, size=16)
    compare(rounds, batch=24, size=28, wanted=0.01)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
