"""Measures the cost of a profile: steps of LeNet-5 in a process with a profile and one without, in
turns.

``python -m tests.benchmarks.profiling [PAIRS]`` prints the trimmed mean of the ratios of turns of
two steps, in CPU time of the thread, for a step that consists of overhead (a batch of 1 at 16x16)
and for a step of about 10 ms (a batch of 28x28), and the standard error over pairs of processes:
two equal processes differ by 1 %. Page faults are shown, too, because they would affect the
comparison.
"""

import contextlib
import multiprocessing
import os
import resource
import sys
import time

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import optimizers

TURNS, STEPS = 100, 2


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


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def serve(questions, cpu, is_on, size):
    """Answers a batch size with seconds and page faults of a step; answers 0, the last request,
    with the number of spans of a step."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cpu})
    model = L.Classifier(LeNet())
    # The rate is tiny, because vanishing gradients would be subnormal numbers, which are slow.
    optimizer = optimizers.MomentumSGD(lr=1e-9).setup(model)
    with mpchain.profile() if is_on else contextlib.nullcontext() as profile:
        for batch in iter(questions.recv, 0):
            x = np.random.RandomState(0).randn(batch, 1, size, size).astype("f")
            t = np.zeros(batch, np.int32)
            before = np.array([time.thread_time(), page_faults()])
            for _ in range(STEPS):
                optimizer.update(model, x, t)
            questions.send((np.array([time.thread_time(), page_faults()]) - before) / STEPS)
    events = profile.trace["traceEvents"] if profile else []
    kinds = [event.get("cat") for event in events if event["ph"] == "X"]
    questions.send(len(kinds) / max(1, kinds.count("step")))


@contextlib.contextmanager
def served(*arguments):
    """Context manager: yields a function that sends a request to a process, and returns the answer.
    The block must send the last request, 0, because its end waits for the end of the process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, *arguments), daemon=True)
    process.start()

    def ask(batch):
        here.send(batch)
        return here.recv()

    yield ask
    process.join()


def compare_pair(cpu, size, batch, wanted):
    """Returns seconds and page faults of a step, in turns without and with a profile, and the
    number of spans."""
    with served(cpu, False, size) as off, served(cpu, True, size) as on:
        for ask in (off, on):
            for _ in range(30):
                ask(batch)
        if wanted is not None:
            batch = max(1, round(batch * wanted / np.median([off(batch)[0] for _ in range(10)])))
        turns = [
            (off(batch), on(batch)) if i % 2 else (on(batch), off(batch))[::-1]
            for i in range(TURNS)
        ]
        off(0)
        return np.array(turns), on(0)


def compare(pairs, size, batch, wanted=None):
    """Prints the comparison; if ``wanted`` is given, a batch size is chosen so that a step takes
    that many seconds."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    means, before, faults = [], [], []
    for i in range(pairs):
        turns, n = compare_pair(cpus[i % len(cpus)], size, batch, wanted)
        seconds = turns[:, :, 0]
        ratios = np.sort(np.log(seconds[:, 1] / seconds[:, 0]))
        means.append(ratios[TURNS // 10 : -TURNS // 10].mean())
        before.append(np.median(seconds[:, 0]))
        faults.append(turns[:, :, 1].mean(0))
    cost, step, error = np.mean(means), np.median(before), np.std(means) / max(1, pairs - 1) ** 0.5
    print(
        f"{size}x{size}: {1e3 * step:.2f} ms a step, "
        f"{100 * cost:+.1f} % with a profile (standard error {100 * error:.1f}, median "
        f"{100 * np.median(means):+.1f}), {n:.0f} spans, {1e6 * cost * step / n:.1f} us each; "
        "page faults {:.0f} without and {:.0f} with it".format(*np.mean(faults, 0)),
        flush=True,
    )


def main(pairs=10):
    """Prints the comparisons."""
    compare(pairs, size=16, batch=1)
    compare(pairs, size=28, batch=24, wanted=0.01)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
