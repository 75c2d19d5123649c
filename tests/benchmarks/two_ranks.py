"""Compares steps of two ranks with one thread each with PyTorch's DDP, and collectives with gloo's.

``python -m tests.benchmarks.two_ranks [ROUNDS]`` prints a table; ``tests.benchmarks.compare
--ranks`` adds it to the table of the other workloads. The program also compares the throughput of
two ranks with that of two processes without communication, and of four ranks with that of two.
"""

import statistics
import sys

from tests.benchmarks import bandwidth, steps
from tests.benchmarks.groups import Group, compare

_SMALL = ("mlp", "resnet50")  # four ranks on two cores take long with the other models
_MODEL = (
    bandwidth.SIZES
    + """
import mpchain
from mpchain.distributed import create_communicator
comm = create_communicator('naive')
model = mpchain.Link()
with model.init_scope():
    for i, gradient in enumerate(gradients):
        setattr(model, f'p{i:03}', mpchain.Parameter(np.zeros_like(gradient)))
params = list(model.params())
"""
)
_MEAN = """
def step():
    for param, gradient in zip(params, gradients):
        param.grad = gradient
    comm.multi_node_mean_grad(model)
"""
_BCAST = """
def step():
    comm.bcast_data(model)
"""
_GLOO_BCAST = """
import torch
torch.set_num_threads(1)
torch.distributed.init_process_group('gloo')
flat = torch.ones(25_000_000)
def step():
    torch.distributed.broadcast(flat, 0)
"""


def _milliseconds(group):
    return f"{statistics.median(group.seconds) * 1e3:.2f}"


def _against(title, ours, theirs, rounds, repetitions=1):
    """Returns a row for two groups that do the same work."""
    ratios = compare(title, [ours, theirs], theirs.name, rounds, repetitions)
    return [title, _milliseconds(ours), f"{ratios[ours.name]:.2f}", "", "", ""]


def _steps(model, rounds, repetitions):
    """Returns a row for a training step."""
    groups = {group.name: group for group in steps.groups(model)}
    chosen = [groups[name] for name in ("mpchain", "captured", "ddp", "independent")]
    four = Group("four ranks", groups["mpchain"].workload, n=4) if model in _SMALL else None
    title = f"a step of {model}"
    ratios = compare(title, chosen + [four] * bool(four), "mpchain", rounds, repetitions)
    to_ddp = [f"{ratios[name] / ratios['ddp']:.2f}" for name in ("mpchain", "captured")]
    four_to_two = f"{2 / ratios['four ranks']:.2f}" if four else ""
    return [title, _milliseconds(chosen[0]), *to_ddp, f"{ratios['independent']:.2f}", four_to_two]


def table(rounds):
    """Measures everything; returns the lines of a Markdown table."""
    rows = [
        _steps("mlp", rounds, 10),
        _steps("resnet50", rounds, 1),
        _steps("unrolled", rounds, 1),
        _steps("lstm", rounds, 2),
        _steps("transformer", rounds, 1),
        _against(
            "multi_node_mean_grad of 25 M gradients",
            Group("mpchain", _MODEL + _MEAN),
            Group("gloo", bandwidth.GLOO, "torch"),
            rounds,
            3,
        ),
        _against(
            "bcast_data of 25 M parameters",
            Group("mpchain", _MODEL + _BCAST),
            Group("gloo", _GLOO_BCAST, "torch"),
            rounds,
            3,
        ),
    ]
    head = ["two ranks of one thread", "ms", "/ DDP, gloo", "captured / DDP"]
    head += ["throughput / two processes", "throughput of four ranks / of two"]
    lines = ["## Two ranks, wall time", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


if __name__ == "__main__":
    print(*table(*(map(int, sys.argv[1:]) if sys.argv[1:] else [7])), sep="\n")
