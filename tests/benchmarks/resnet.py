"""Measures a training step of ResNet-50, 112x112 pixels, batches of 4: forward, backward, momentum
SGD.

Run with ``python -m tests.benchmarks.resnet``: one thread (CPU time), then two (wall time).
"""

from tests.benchmarks.side_by_side import compare

_OURS = """
import numpy as np
import LIBRARY as lib, LIBRARY.functions as F, LIBRARY.links as L
random = np.random.RandomState(0)
x = random.randn(4, 3, 112, 112).astype('f')
t = random.randint(0, 1000, 4).astype('i')
model = L.ResNet50Layers(pretrained_model=None)
optimizer = lib.optimizers.MomentumSGD(lr=0.001).setup(model)
def step():
    optimizer.update(lambda: F.softmax_cross_entropy(model(x, layers=['fc6'])['fc6'], t))
"""

_PYTORCH = """
import torch
from torch import nn
class Bottleneck(nn.Module):
    def __init__(self, channels, middle, out, stride):
        super().__init__()
        def unit(i, o, k, s):
            return [nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o)]
        self.body = nn.Sequential(
            *unit(channels, middle, 1, stride), nn.ReLU(),
            *unit(middle, middle, 3, 1), nn.ReLU(),
            *unit(middle, out, 1, 1),
        )
        same = channels == out
        self.side = nn.Identity() if same else nn.Sequential(*unit(channels, out, 1, stride))
    def forward(self, x):
        return torch.relu(self.body(x) + self.side(x))
layers = [nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU()]
layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
channels = 64
for i, n in enumerate((3, 4, 6, 3)):
    for j in range(n):
        out = 256 << i
        layers.append(Bottleneck(channels, 64 << i, out, 2 if i and not j else 1))
        channels = out
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
torch.manual_seed(0)
x = torch.randn(4, 3, 112, 112)
t = torch.randint(0, 1000, (4,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
def step():
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(model(x), t).backward()
    optimizer.step()
"""

_STEPS = {
    "mpchain": _OURS.replace("LIBRARY", "mpchain"),
    "torch": _PYTORCH,
    "chainer": _OURS.replace("LIBRARY", "chainer"),
}

if __name__ == "__main__":
    for threads in (1, 2):
        title = f"ResNet-50, 4 x 112 x 112, a training step, {threads} thread(s)"
        compare(title, _STEPS, rounds=7, repetitions=1, threads=threads)
