"""Measures steps with and without ``mpchain.keep_freed_memory``.

Run with ``python -m tests.benchmarks.freed_memory``. It prints the medians and their ratio.
"""

import statistics

from tests.benchmarks.side_by_side import Worker

_STEP = """
import numpy as np
import mpchain, mpchain.functions as F, mpchain.links as L
model = {model}
optimizer = mpchain.optimizers.Adam().setup(model)
x, t = np.random.rand(*{shape}).astype('f'), np.zeros({shape}[0], 'i')
def step():
    optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
"""
_STEPS = {
    "MLP, 784-100-10, 100 samples": _STEP.format(
        model="mpchain.Sequential(L.Linear(784, 100), F.relu, L.Linear(10))", shape=(100, 784)
    ),
    "MLP, 784-1000-1000-10, 100 samples": _STEP.format(
        model="mpchain.Sequential(L.Linear(784, 1000), F.relu, L.Linear(1000), F.relu, "
        "L.Linear(10))",
        shape=(100, 784),
    ),
    "convolutions, 32x32, 32 samples": _STEP.format(
        model="mpchain.Sequential(L.Convolution2D(3, 32, 3, pad=1), F.relu, "
        "L.Convolution2D(32, 32, 3, pad=1), F.relu, L.Linear(10))",
        shape=(32, 3, 32, 32),
    ),
}


def main(rounds=11, repetitions=10):
    for name, text in _STEPS.items():
        workers = [Worker("mpchain", text, keeps_memory=keeps) for keeps in (True, False)]
        for _ in range(rounds):
            for worker in workers:
                worker.take_turn(repetitions)
        for worker in workers:
            worker.close()
        kept, returned = (statistics.median(worker.seconds) for worker in workers)
        print(f"{name}: {kept * 1e3:.2f} ms kept, {returned * 1e3:.2f} ms returned", end=", ")
        print(f"ratio {returned / kept:.2f}", flush=True)


if __name__ == "__main__":
    main()
