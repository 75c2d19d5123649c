"""The engine's overhead: 200 small elementwise operations in a chain, forward and backward.

Run with ``python -m tests.benchmarks.overhead``. The arrays, (32, 32) in float32, are so small that
a call of NumPy takes about a microsecond: what is measured is what each library adds. The chain
repeats ten operations: arithmetic between arrays and with constants, and activations.
"""

from tests.benchmarks.side_by_side import compare

_CHAIN = """
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
"""

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


def _workload(text):
    return text.replace("CHAIN", "\n    ".join(_CHAIN.strip().splitlines()))


def _recorded(name):
    head, _, _ = _workload(_STEPS[name]).partition("def step")
    return head + f"def step():\n    y = forward()\n    {_TWICE[name]}\n"


if __name__ == "__main__":
    compare("200 operations, forward and backward", {n: _workload(t) for n, t in _STEPS.items()})
    compare("the same, with the graph of the gradient", {n: _recorded(n) for n in _STEPS})
