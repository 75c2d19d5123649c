"""Measures steps of two ranks with one thread each: mpchain, PyTorch's DDP (gloo) and ChainerMN.

``python -m tests.benchmarks.steps [MODEL ...]`` measures by turns, for an MLP of 2.8 million
parameters, a ResNet-50 at 64x64, an LSTM language model, both by NStepLSTM and by layers of 650
units that are called step by step (``unrolled``; DDP by nn.LSTM), and a transformer with dropout:

* ``mpchain``, ``ddp``, and ``chainermn`` if MPCHAIN_TEST_CHAINER_PYTHON names its interpreter;
* ``captured``: mpchain, the step captured;
* ``independent``: two processes of mpchain that run at the same time without exchanging anything,
  which is what the machine can do at best; the same with PyTorch;
* ``no exchange``: mpchain with the communicator ``dummy``: what ``mpchain`` takes longer than this
  is the part of the exchange that is not hidden behind the computation;
* ``at the end``: mpchain that begins to exchange when backward has ended: nothing is hidden.
"""

import sys

from tests.benchmarks.groups import Group, chainer_python, compare

_DATA = """
import os
import numpy as np
rank = int(os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ.get('RANK') or 0)
random = np.random.RandomState(rank)
"""

_DATA_OF = {
    "mlp": """
x = random.uniform(0, 1, (100, 784)).astype('f')
t = random.randint(0, 10, 100).astype('i')
""",
    "resnet50": """
x = random.standard_normal((16, 3, 64, 64)).astype('f')
t = random.randint(0, 1000, 16).astype('i')
""",
    "lstm": """
x = random.randint(0, 10_000, (35, 20)).astype('i')
t = np.roll(x, -1, 0)
""",
    "transformer": """
x = random.standard_normal((8, 128, 256)).astype('f')
t = random.randint(0, 10, 8).astype('i')
""",
}

_DATA_OF["unrolled"] = _DATA_OF["lstm"]

_CHAINER_MODEL = {
    "mlp": """
model = L.Classifier(chainer.Sequential(
    L.Linear(784, 1000), F.relu, L.Linear(1000, 1000), F.relu, L.Linear(1000, 1000), F.relu,
    L.Linear(1000, 10)))
model.compute_accuracy = False
def loss():
    return model(x, t)
""",
    "resnet50": """
model = L.ResNet50Layers(pretrained_model=None)
def loss():
    return F.softmax_cross_entropy(model(x, layers=['fc6'])['fc6'], t)
""",
    "lstm": """
class Model(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(10_000, 200)
            self.rnn = L.NStepLSTM(2, 200, 200, 0.0)
            self.out = L.Linear(200, 10_000)
    def forward(self, x):
        xs = F.split_axis(self.embed(x.T), len(x.T), 0)
        ys = self.rnn(None, None, [F.reshape(x, x.shape[1:]) for x in xs])[-1]
        return self.out(F.concat(ys, 0))
model = Model()
targets = t.T.reshape(-1)
def loss():
    return F.softmax_cross_entropy(model(x), targets)
""",
    "unrolled": """
model = chainer.ChainList(
    L.EmbedID(10_000, 650), L.LSTM(650, 650), L.LSTM(650, 650), L.Linear(650, 10_000))
def loss():
    embed, first, second, out = model
    first.reset_state()
    second.reset_state()
    return sum(
        F.softmax_cross_entropy(out(second(first(embed(x)))), t) for x, t in zip(x, t)) / len(x)
""",
    "transformer": """
model = chainer.Sequential(
    *(L.TransformerEncoderLayer(256, 8, 1024, 0.1) for _ in range(4)),
    lambda h: F.mean(h, axis=1), L.Linear(256, 10))
def loss():
    return F.softmax_cross_entropy(model(x), t)
""",
}

_MPCHAIN = """
import mpchain as chainer, mpchain.functions as F, mpchain.links as L
from mpchain import distributed
"""
_CHAINERMN = """
import chainer, chainer.functions as F, chainer.links as L
import chainermn as distributed
"""
_TRAIN = """
comm = distributed.create_communicator({communicator!r})
optimizer = chainer.optimizers.MomentumSGD(lr=0.001)
optimizer = distributed.create_multi_node_optimizer(optimizer, comm).setup(model)
def step():
    optimizer.update(loss)
"""
_CAPTURED = """
step = chainer.capture(step)
"""
_TRAIN_ALONE = """
optimizer = chainer.optimizers.MomentumSGD(lr=0.001).setup(model)
def step():
    optimizer.update(loss)
"""
_AT_THE_END = """
distributed.gradients.buckets.GradientReducer.ready = lambda self, param: None
"""

_TORCH = """
import torch
from torch import nn
torch.set_num_threads(1)
x, t = torch.from_numpy(x).to(torch.int64 if x.dtype.kind == 'i' else torch.float32), (
    torch.from_numpy(t).long())
"""
_TORCH_MODEL = {
    "mlp": """
model = nn.Sequential(
    nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 1000),
    nn.ReLU(), nn.Linear(1000, 10))
""",
    "resnet50": """
class Bottleneck(nn.Module):
    def __init__(self, channels, middle, out, stride):
        super().__init__()
        def unit(i, o, k, s):
            return [nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o)]
        self.body = nn.Sequential(
            *unit(channels, middle, 1, stride), nn.ReLU(True),
            *unit(middle, middle, 3, 1), nn.ReLU(True),
            *unit(middle, out, 1, 1),
        )
        same = channels == out
        self.side = nn.Identity() if same else nn.Sequential(*unit(channels, out, 1, stride))
    def forward(self, x):
        return torch.relu_(self.body(x) + self.side(x))
layers = [nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(True)]
layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
channels = 64
for i, n in enumerate((3, 4, 6, 3)):
    for j in range(n):
        out = 256 << i
        layers.append(Bottleneck(channels, 64 << i, out, 2 if i and not j else 1))
        channels = out
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
""",
    "lstm": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10_000, 200)
        self.rnn = nn.LSTM(200, 200, 2)
        self.out = nn.Linear(200, 10_000)
    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0]).reshape(-1, 10_000)
model = Model()
t = t.reshape(-1)
""",
    "transformer": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 8, 1024, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.out = nn.Linear(256, 10)
    def forward(self, x):
        return self.out(self.layers(x).mean(1))
model = Model()
""",
}
_TORCH_MODEL["unrolled"] = _TORCH_MODEL["lstm"].replace("200", "650")
_TORCH_DDP = """
torch.distributed.init_process_group('gloo')
model = nn.parallel.DistributedDataParallel(model)
"""
_TORCH_TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, fused=True)
def step():
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(model(x), t).backward()
    optimizer.step()
"""


def groups(model):
    """Returns the groups of processes that train one model."""
    data = _DATA + _DATA_OF[model]
    ours = data + _MPCHAIN + _CHAINER_MODEL[model]
    train, dummy = (_TRAIN.format(communicator=name) for name in ("naive", "dummy"))
    torch = data + _TORCH + _TORCH_MODEL[model]
    chainer = None if model == "transformer" else chainer_python()  # Chainer has no such layers
    return [
        Group("mpchain", ours + train),
        Group("ddp", torch + _TORCH_DDP + _TORCH_TRAIN, "torch"),
        Group("chainermn", data + _CHAINERMN + _CHAINER_MODEL[model] + train, python=chainer),
        Group("captured", ours + train + _CAPTURED),
        Group("independent", ours + _TRAIN_ALONE, "alone"),
        Group("independent (torch)", torch + _TORCH_TRAIN, "alone"),
        Group("no exchange", ours + dummy),
        Group("at the end", ours + _AT_THE_END + train),
    ]


def main(models, rounds=15):
    """Prints the comparison of each model."""
    for model in models or _DATA_OF:
        repetitions = {"mlp": 20, "lstm": 2}.get(model, 1)
        ratios = compare(f"{model}, two ranks", groups(model), "ddp", rounds, repetitions)
        print(
            f"  throughput of 2 ranks: {ratios['independent'] / ratios['mpchain']:.3f} of that of "
            "2 independent processes; DDP's: "
            f"{ratios['independent (torch)'] / ratios['ddp']:.3f}"
        )
        hidden = ratios["at the end"] - ratios["mpchain"]
        exchange = ratios["at the end"] - ratios["no exchange"]
        print(f"  hidden behind backward: {hidden / exchange:.0%} of the exchange's time")


if __name__ == "__main__":
    main(
        [name for name in sys.argv[1:] if name in _DATA_OF],
        *map(int, (text for text in sys.argv[1:] if text.isdecimal())),
    )
