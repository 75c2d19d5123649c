"""Measures the engine's overhead in chains of 200 small elementwise operations, forward and
backward.

Run with ``python -m tests.benchmarks.overhead``. The arrays, (32, 32) in float32, are so small that
a NumPy call takes about a microsecond, so most of the measured time is what each library adds.
There are two chains, because the mix of operations matters: one with ten operations (arithmetic
between arrays and with constants, and activations), and one with five, in which activations, whose
computation is NumPy's or PyTorch's own and no overhead, have more weight.
"""

from tests.benchmarks.side_by_side import compare

_CHAINS = {
    "ten operations, arithmetic and activations": """
for _ in range(20):
    y = y * x
    y = y + x
    y = F.tanh(y)
    y = y * 0.9
    y = y + 0.1
    y = F.sigmoid(y)
    y = 1 - y
    y = y ** 2
    y = y * y
    y = F.relu(y)
""",
    "five operations, three of them activations": """
for _ in range(40):
    y = y * x
    y = y + x
    y = F.tanh(y)
    y = F.sigmoid(y)
    y = F.relu(y)
""",
}

_STEPS = {
    "mpchain": """
import numpy as np
import mpchain, mpchain.functions as F
data = np.random.RandomState(0).randn(32, 32).astype('f')
seed = np.ones((32, 32), 'f')
x = mpchain.Variable(data)
def forward():
    y = x
    CHAIN
    return y
def step():
    x.cleargrad()
    y = forward()
    y.grad = seed
    y.backward()
""",
    "torch": """
import torch, torch as F
torch.set_num_threads(1)
import numpy as np
data = np.random.RandomState(0).randn(32, 32).astype('f')
seed = torch.ones((32, 32))
x = torch.tensor(data, requires_grad=True)
def forward():
    y = x
    CHAIN
    return y
def step():
    x.grad = None
    y = forward()
    y.backward(seed)
""",
}
_STEPS["chainer"] = _STEPS["mpchain"].replace("mpchain", "chainer")
_STEPS = {name: _STEPS[name] for name in ("mpchain", "chainer", "torch")}

_TWICE = {
    "mpchain": "mpchain.grad([y], [x], [mpchain.Variable(seed)], enable_double_backprop=True)",
    "chainer": "chainer.grad([y], [x], [chainer.Variable(seed)], enable_double_backprop=True)",
    "torch": "torch.autograd.grad(y, x, seed, create_graph=True)",
}


def _workload(text, chain):
    return text.replace("CHAIN", "\n    ".join(chain.strip().splitlines()))


def _recorded(name, chain):
    head, _, _ = _workload(_STEPS[name], chain).partition("def step")
    return head + f"def step():\n    y = forward()\n    {_TWICE[name]}\n"


if __name__ == "__main__":
    for title, chain in _CHAINS.items():
        workloads = {name: _workload(text, chain) for name, text in _STEPS.items()}
        compare(f"200 operations ({title}), forward and backward", workloads)
        compare(
            "the same, with the graph of the gradient", {n: _recorded(n, chain) for n in _STEPS}
        )
