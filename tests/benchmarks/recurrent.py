"""Measures layers over sequences, forward and backward: 32 steps, 16 sequences, 128 units, two
layers.

Run with ``python -m tests.benchmarks.recurrent [KIND ...]``, KIND being LSTM, GRU or RNNTanh.
"""

import sys

from tests.benchmarks.side_by_side import compare

_OURS = """
import numpy as np
import mpchain, mpchain.functions as F, mpchain.links as L
np.random.seed(0)
link = L.NStep{bi}{kind}(2, 128, 128, 0.0)
xs = [mpchain.Variable(np.random.randn(32, 128).astype('f')) for _ in range(16)]
seeds = [np.random.randn(32, 128 * link.direction).astype('f') for _ in range(16)]
def step():
    link.cleargrads()
    ys = link(*[None] * link.n_cells, xs)[-1]
    for x in xs:
        x.cleargrad()
    for y, gy in zip(ys, seeds):
        y.grad = gy
    mpchain.backward(ys)
"""

_TORCH = """
import numpy as np
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
module = torch.nn.{module}(128, 128, 2, bidirectional={bidirectional})
x = torch.randn(32, 16, 128, requires_grad=True)
seed = torch.randn(32, 16, 128 * (1 + {bidirectional}))
def step():
    module.zero_grad()
    x.grad = None
    module(x)[0].backward(seed)
"""


def workloads(kind, bidirectional):
    """Returns the text of each library's step."""
    ours = _OURS.format(bi="Bi" if bidirectional else "", kind=kind)
    module = kind.removesuffix("Tanh")
    return {
        "mpchain": ours,
        "chainer": ours.replace("mpchain", "chainer"),
        "torch": _TORCH.format(module=module, bidirectional=bidirectional),
    }


if __name__ == "__main__":
    for name in sys.argv[1:] or ("LSTM", "GRU", "RNNTanh"):
        for both in (False, True):
            title = f"{name}, {'both directions' if both else 'one direction'}"
            compare(title, workloads(name, both), rounds=7, repetitions=3)
