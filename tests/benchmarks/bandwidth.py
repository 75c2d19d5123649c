"""Measures how long it takes to average 25 million float32 gradients in 161 arrays over two ranks.

``python -m tests.benchmarks.bandwidth`` measures in turns: the buckets of mpchain (all gradients at
once, without backward to overlap with), by shared memory within one host, and by messages alone;
PyTorch's gloo with one flat buffer; ``Allreduce`` array by array with mpi4py; and, if
MPCHAIN_TEST_CHAINER_PYTHON names its interpreter, ChainerMN 7.8.1.
"""

import sys

from tests.benchmarks.groups import Group, chainer_python, compare

SIZES = """
import numpy as np
large = [2_359_296] * 3 + [1_048_576] * 6 + [2_048_000] + [589_824] * 6 + [262_144] * 14
n_small = 161 - len(large)
# As in a ResNet-50: few large arrays and many small ones, mixed.
small = [(25_000_000 - sum(large)) // n_small] * n_small
sizes = np.random.RandomState(0).permutation(large + small).tolist()
gradients = [np.ones(n, np.float32) for n in sizes]
"""

_MPCHAIN = (
    SIZES
    + """
from mpchain.distributed import create_communicator
from mpchain.distributed.gradients.buckets import GradientReducer
from mpchain.distributed.communicators import mpi
from mpchain.variable import Parameter
SHARED = {shared}
if not SHARED:
    mpi.make_shared_arrays = lambda *args: None
comm = create_communicator('naive')
params = {{f'/{{i:03}}': Parameter(np.zeros_like(g)) for i, g in enumerate(gradients)}}
reducer = GradientReducer(comm)
reducer.watch(params)
def step():
    for param, gradient in zip(params.values(), gradients):
        param.grad = gradient
    reducer.begin(32)
    reducer.finish()
"""
)

GLOO = """
import torch
torch.set_num_threads(1)
torch.distributed.init_process_group('gloo')
flat = torch.ones(25_000_000)
def step():
    torch.distributed.all_reduce(flat)
    flat.div_(2)
"""

_MPI4PY = (
    SIZES
    + """
from mpi4py import MPI
sums = [np.empty_like(gradient) for gradient in gradients]
def step():
    for gradient, total in zip(gradients, sums):
        MPI.COMM_WORLD.Allreduce(gradient, total)
        total /= 2
"""
)

_CHAINERMN = (
    SIZES
    + """
import chainer, chainermn
comm = chainermn.create_communicator('naive')
model = chainer.Chain()
with model.init_scope():
    for i, gradient in enumerate(gradients):
        setattr(model, f'p{i:03}', chainer.Parameter(np.zeros_like(gradient)))
for i, gradient in enumerate(gradients):
    getattr(model, f'p{i:03}').grad = gradient.copy()
def step():
    comm.multi_node_mean_grad(model)
"""
)


def main(rounds=15):
    """Prints the comparison."""
    groups = [
        Group("mpchain", _MPCHAIN.format(shared=True)),
        Group("mpchain, messages", _MPCHAIN.format(shared=False)),
        Group("gloo", GLOO, "torch"),
        Group("mpi4py, by array", _MPI4PY),
        Group("chainermn", _CHAINERMN, python=chainer_python()),
    ]
    compare("averaging 25 M float32 in 161 arrays, two ranks", groups, "gloo", rounds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
