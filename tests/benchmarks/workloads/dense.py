"""Networks of dense layers, small operations, and optimizers."""

import functools

import common
import numpy as np
from common import classifier_ours, classifier_pytorch, digits


def _mlp_ours(lib, n_units, batch, optimizer):
    F, L = lib.functions, lib.links
    model = lib.Sequential(
        L.Linear(784, n_units), F.relu, L.Linear(n_units, n_units), F.relu, L.Linear(n_units, 10)
    )
    return classifier_ours(lib, model, optimizer, *digits(batch, 784))


def _mlp_pytorch(torch, n_units, batch, make_optimizer):
    nn = torch.nn
    model = nn.Sequential(
        nn.Linear(784, n_units),
        nn.ReLU(),
        nn.Linear(n_units, n_units),
        nn.ReLU(),
        nn.Linear(n_units, 10),
    )
    optimizer = make_optimizer(model.parameters())
    return classifier_pytorch(torch, model, optimizer, *digits(batch, 784))


def mlp_ours(lib):
    return _mlp_ours(lib, 1000, 100, lib.optimizers.Adam())


def mlp_pytorch(torch):
    return _mlp_pytorch(torch, 1000, 100, functools.partial(common.adam, torch))


def mlp_of_100_units_ours(lib):
    return _mlp_ours(lib, 100, 32, lib.optimizers.SGD(0.01))


def mlp_of_100_units_pytorch(torch):
    return _mlp_pytorch(torch, 100, 32, functools.partial(common.sgd, torch))


def small_operations_ours(lib):
    F = lib.functions
    x = lib.Variable(np.random.RandomState(0).rand(32, 32).astype("f"))

    def train():
        y = x
        for _ in range(50):
            y = F.tanh(y * 0.9 + x) - x
        loss = F.sum(y)
        x.cleargrad()
        loss.backward()
        return loss

    train = common.captured(train)
    return lambda: float(train().array)


def small_operations_pytorch(torch):
    x = torch.from_numpy(np.random.RandomState(0).rand(32, 32).astype("f")).requires_grad_()

    def step():
        y = x
        for _ in range(50):
            y = torch.tanh(y * 0.9 + x) - x
        loss = y.sum()
        x.grad = None
        loss.backward()
        return loss.item()

    return step


SHAPES = [(512, 512, 3, 3)] * 8 + [(1000, 2048)] + [(256, 256, 3, 3)] * 8 + [(256,)] * 144
"""About as many arrays and elements as in ResNet-50."""


def _optimizer_ours(lib, optimizer):
    model = lib.Link()
    with model.init_scope():
        for i, shape in enumerate(SHAPES):
            setattr(model, f"p{i}", lib.Parameter(np.zeros(shape, "f")))
    optimizer.setup(model)
    for param in model.params():
        param.grad = np.ones_like(param.array)
    return lambda: optimizer.update()


def _optimizer_pytorch(torch, make_optimizer):
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    for param in params:
        param.grad = torch.ones_like(param)
    return make_optimizer(params).step


def adam_ours(lib):
    return _optimizer_ours(lib, lib.optimizers.Adam())


def adam_pytorch(torch):
    return _optimizer_pytorch(torch, functools.partial(common.adam, torch))


def momentum_sgd_ours(lib):
    return _optimizer_ours(lib, lib.optimizers.MomentumSGD(0.01))


def momentum_sgd_pytorch(torch):
    return _optimizer_pytorch(torch, functools.partial(common.sgd, torch, momentum=0.9))
