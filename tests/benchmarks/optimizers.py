"""Measures updates of whole models with given gradients: mpchain's optimizers and PyTorch's.

Run with ``python -m tests.benchmarks.optimizers``. The line ``alone`` shows mpchain's time if it
updates each parameter separately, without compiled loops. PyTorch has three variants: the default
(``torch``), ``foreach`` and ``fused``. Compiled loops are used if numba is installed.
"""

from tests.benchmarks.side_by_side import compare


def _resnet50():
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    n_in = 64
    for n_blocks, n in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for i in range(n_blocks):
            convolutions = [(n, n_in, 1, 1), (n, n, 3, 3), (4 * n, n, 1, 1)]
            if i == 0:
                convolutions.append((4 * n, n_in, 1, 1))
            for shape in convolutions:
                shapes += [shape, shape[:1], shape[:1]]
            n_in = 4 * n
    return [*shapes, (1000, 2048), (1000,)]


MODELS = {
    "MLP, 1.8 M in 6 arrays": (
        [(1000, 784), (1000,), (1000, 1000), (1000,), (10, 1000), (10,)],
        10,
    ),
    "ResNet-50, 25.6 M in 161 arrays": (_resnet50(), 1),
    "200 tiny arrays": ([(8, 8), (8,)] * 100, 20),
}

OPTIMIZERS = {
    "SGD": ("SGD()", "SGD(ps, lr=0.01, {})"),
    "MomentumSGD": ("MomentumSGD()", "SGD(ps, lr=0.01, momentum=0.9, {})"),
    "Adam": ("Adam()", "Adam(ps, {})"),
    "AdamW": ("AdamW(weight_decay_rate=1e-5)", "AdamW(ps, {})"),
    "RMSprop": ("RMSprop()", "RMSprop(ps, {})"),
}

_OURS = """
import numpy as np
from mpchain import link, optimizers, variable
from mpchain.kernels import thresholds
rng = np.random.RandomState(0)
model = link.Link()
with model.init_scope():
    for i, shape in enumerate({shapes}):
        setattr(model, f"p{{i}}", variable.Parameter(rng.randn(*shape).astype("f")))
optimizer = optimizers.{optimizer}.setup(model)
for p in model.params():
    p.grad = rng.randn(*p.shape).astype("f")
{setting}
step = optimizer.update
for _ in range(1 + 2**27 // model.count_params() if model.count_params() > 10**6 else 1):
    step()
"""

_ALONE = "thresholds.small, thresholds.compiled_step = -1, 1 << 62"

_THEIRS = """
import torch
torch.set_num_threads(1)
ps = [torch.randn(shape, requires_grad=True) for shape in {shapes}]
for p in ps:
    p.grad = torch.randn(p.shape)
step = torch.optim.{optimizer}.step
"""


def _workloads(shapes, ours, theirs):
    texts = {
        "mpchain": _OURS.format(shapes=shapes, optimizer=ours, setting=""),
        "alone": _OURS.format(shapes=shapes, optimizer=ours, setting=_ALONE),
    }
    for name, option in (("torch", ""), ("foreach", "foreach=True"), ("fused", "fused=True")):
        # PyTorch's RMSprop has no fused variant.
        if name != "fused" or not theirs.startswith("RMSprop"):
            texts[name] = _THEIRS.format(shapes=shapes, optimizer=theirs.format(option))
    return texts


if __name__ == "__main__":
    for model, (shapes, repetitions) in MODELS.items():
        for name, (ours, theirs) in OPTIMIZERS.items():
            compare(f"{name}: {model}", _workloads(shapes, ours, theirs), 11, repetitions)
