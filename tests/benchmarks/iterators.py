"""Measures an epoch of batches of 60,000 examples (28x28 pixels and a label), shuffled, as arrays.

Run with ``python -m tests.benchmarks.iterators``. The program compares mpchain's iterators, whose
batches ``concat_examples`` joins, and PyTorch's ``DataLoader``, in turns, in wall-clock time,
without and with two workers, which are started before the first measured epoch. It prints medians
of an epoch in milliseconds, ratios to PyTorch's, and the largest ratio in a round of turns.
"""

import argparse
import contextlib
import statistics
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from mpchain.dataset import concat_examples
from mpchain.datasets import TupleDataset
from mpchain.iterators import MultiprocessIterator, MultithreadIterator, SerialIterator

N, BATCH_SIZE = 60_000, 100


def mpchain_epoch(iterator):
    """Returns a function that reads one epoch."""

    def run():
        for _ in range(N // BATCH_SIZE):
            x, t = concat_examples(next(iterator))
        return x.shape, t.shape

    return run


def torch_epoch(loader):
    """Returns a function that reads one epoch; the loader's workers continue to exist."""

    def run():
        for batch in loader:
            x, t = batch
        return tuple(x.shape), tuple(t.shape)

    return run


def compare(title, runs, rounds):
    """Measures functions in turns; prints medians, and ratios to the function named 'torch'."""
    seconds = {name: [] for name in runs}
    for run in runs.values():
        assert run() == ((BATCH_SIZE, 28, 28), (BATCH_SIZE,))
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    print(title)
    base = statistics.median(seconds["torch"])
    for name, measured in seconds.items():
        median = statistics.median(measured)
        worst = max(a / b for a, b in zip(measured, seconds["torch"]))
        print(f"  {name:26} {median * 1e3:8.1f} ms   {median / base:5.2f} x torch (<= {worst:.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    x = np.random.rand(N, 28, 28).astype(np.float32)
    t = np.random.randint(0, 10, N).astype(np.int32)
    ours, theirs = TupleDataset(x, t), TensorDataset(torch.tensor(x), torch.tensor(t))

    def loader(n_workers):
        keeps = {"persistent_workers": True} if n_workers else {}
        return DataLoader(theirs, BATCH_SIZE, shuffle=True, num_workers=n_workers, **keeps)

    with contextlib.ExitStack() as stack:
        serial = SerialIterator(ours, BATCH_SIZE)
        threads = stack.enter_context(MultithreadIterator(ours, BATCH_SIZE, n_threads=2))
        processes = stack.enter_context(MultiprocessIterator(ours, BATCH_SIZE, n_processes=2))
        ahead = MultiprocessIterator(ours, BATCH_SIZE, n_processes=2, n_prefetch=4)
        stack.enter_context(ahead)
        compare(
            "in one process",
            {"torch": torch_epoch(loader(0)), "SerialIterator": mpchain_epoch(serial)},
            rounds,
        )
        compare(
            "two workers",
            {
                "torch": torch_epoch(loader(2)),
                "MultiprocessIterator": mpchain_epoch(processes),
                "the same, n_prefetch=4": mpchain_epoch(ahead),
                "MultithreadIterator": mpchain_epoch(threads),
                "SerialIterator": mpchain_epoch(serial),
            },
            rounds,
        )


if __name__ == "__main__":
    main()
