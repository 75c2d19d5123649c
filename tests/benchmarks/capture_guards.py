"""Measures the cost of replays of captured steps, compared with another checkout of mpchain.

Run with ``python -m tests.benchmarks.capture_guards --against FOLDER``. Each replay first compares
the values on which the function depends, its guards; the table shows their number. Both checkouts
replay the same steps in separate processes, in turns, on one thread.
"""

import argparse
import os
import pathlib
import statistics

from tests.benchmarks.side_by_side import Worker

_HEAD = """
import numpy as np, mpchain
from mpchain import functions as F, links as L, optimizers
np.random.seed(0)
def perceptron(n, n_layers):
    layers = [f for _ in range(n_layers) for f in (L.Linear(n, n), F.relu)]
    return mpchain.Sequential(*layers, L.Linear(n, 10))
def batches(n, size):
    random = np.random.RandomState(0)
    return [(random.randn(n, size).astype('f'), random.randint(0, 10, n).astype('i'))
            for _ in range(8)]
def training(model, optimizer):
    optimizer.setup(model)
    def function(x, t):
        loss = F.softmax_cross_entropy(model(x), t)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        return loss
    return function
"""
_TAIL = """
captured, turn = mpchain.capture(function), 0
def step():
    global turn
    turn += 1
    captured(*data[turn % 8])
    return turn
for _ in range(12):
    step()
assert captured.reason is None, captured.reason
def n_guards():
    around = getattr(next(iter(captured._steps.values())), '_around', None)
    parts = ('_guards', '_cells', '_lengths', '_attributes')
    return sum(len(getattr(around, part)) for part in parts) if around else 0
"""

WORKLOADS = {
    "prediction, 1 layer of 4 units": """
model = L.Linear(4, 2)
function, data = (lambda x, t: model(x).array), batches(3, 4)
""",
    "prediction, 30 layers of 4 units": """
model = perceptron(4, 30)
function, data = (lambda x, t: model(x).array), batches(3, 4)
""",
    "SGD, 3 layers of 16 units": """
function, data = training(perceptron(16, 3), optimizers.SGD()), batches(8, 16)
""",
    "SGD, 3 layers of 100 units": """
function, data = training(perceptron(100, 3), optimizers.SGD()), batches(32, 100)
""",
    "Adam, 3 layers of 300 units": """
function, data = training(perceptron(300, 3), optimizers.Adam()), batches(64, 300)
""",
    "MomentumSGD, convolutions": """
model = mpchain.Sequential(
    L.Convolution2D(3, 16, 3, pad=1), L.BatchNormalization(16), F.relu,
    lambda x: F.max_pooling_2d(x, 2), L.Convolution2D(16, 32, 3, pad=1), F.relu, L.Linear(2048, 10))
random = np.random.RandomState(0)
function = training(model, optimizers.MomentumSGD())
data = [(random.randn(16, 3, 16, 16).astype('f'), random.randint(0, 10, 16).astype('i'))
        for _ in range(8)]
""",
}


def measure(workload, against, rounds, turn):
    """Returns the seconds of a step here and there, in turns, and the number of guards."""
    here = pathlib.Path(__file__).parents[2]
    workers = [
        Worker(
            "mpchain",
            _HEAD + workload + _TAIL,
            environment={"PYTHONPATH": str(folder.resolve()), "PYTHONSAFEPATH": "1"},
        )
        for folder in (here, against)
    ]
    found = [pathlib.Path(worker.ask("repr(mpchain.__file__)")) for worker in workers]
    assert [p.parents[1] for p in found] == [here, against.resolve()], found
    try:
        n_guards = workers[0].ask("n_guards()")
        n = max(1, round(turn / workers[0].ask("seconds(20)") * 20))
        times = [[w.ask(f"seconds({n})") / n for w in workers] for _ in range(rounds)]
    finally:
        for worker in workers:
            worker.close()
    return [*zip(*times)], n_guards


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--against", type=pathlib.Path, required=True, help="another checkout")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--turn", type=float, default=0.1, help="seconds of each turn")
    parser.add_argument("names", nargs="*", help="workloads; by default all")
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, medians of {args.rounds} turns")
    print(
        "| step | guards | here (us) | there (us) | ratio | more (us) |\n|---|--:|--:|--:|--:|--:|"
    )
    for name in args.names or WORKLOADS:
        (here, there), n = measure(WORKLOADS[name], args.against, args.rounds, args.turn)
        ratio = statistics.median(a / b for a, b in zip(here, there))
        more = statistics.median(a - b for a, b in zip(here, there)) * 1e6
        times = [statistics.median(x) * 1e6 for x in (here, there)]
        print(f"| {name} | {n} | {times[0]:.1f} | {times[1]:.1f} | {ratio:.3f} | {more:+.1f} |")


if __name__ == "__main__":
    main()
