"""Measures the peak memory of backward through a 50-layer MLP, against Chainer and PyTorch.

Run with ``python -m tests.benchmarks.memory``. Each library runs forward and backward in a separate
process; the program prints by how much this raised the process's largest resident size. Every layer
keeps a batch of 2,000 by 500 numbers, so that activations outweigh weights and libraries.
"""

import os
import subprocess

from tests.benchmarks.side_by_side import interpreter

_MEASURED = """
import resource
import numpy as np
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
random = np.random.RandomState(0)
data = random.randn(2000, 500).astype('f')
weights = [(random.randn(500, 500) / 22).astype('f') for _ in range(50)]
"""

_STEP = {
    "mpchain": """
import mpchain, mpchain.functions as F
def make(w):
    return mpchain.Parameter(w)
def run(ws, x):
    h = mpchain.Variable(x)
    for w in ws:
        h = F.relu(F.linear(h, w))
    loss = F.sum(h * h)
    del h
    loss.backward()
""",
    "torch": """
import torch
torch.set_num_threads(1)
def make(w):
    return torch.tensor(w, requires_grad=True)
def run(ws, x):
    h = torch.tensor(x)
    for w in ws:
        h = torch.relu(torch.nn.functional.linear(h, w))
    loss = (h * h).sum()
    del h
    loss.backward()
""",
}
_STEP["chainer"] = _STEP["mpchain"].replace("mpchain", "chainer")

_MAIN = """
ws = [make(w) for w in weights]
run(ws, data[:10])
before = peak()
for w in ws:
    w.grad = None
run(ws, data)
print(peak() - before)
"""


def measure(library):
    """Returns the number of megabytes by which forward and backward raise the peak."""
    code = _MEASURED + _STEP[library] + _MAIN
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [interpreter(library), "-c", code]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)


if __name__ == "__main__":
    for name in ("mpchain", "chainer", "torch"):
        if interpreter(name):
            print(f"{name:8} {measure(name):8.1f} MB")
