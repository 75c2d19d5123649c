"""Weights and data that are the same in each library, and a step of a classifier."""

import numpy as np


def captured(function):
    """What mpchain.capture replaces where captured steps are measured."""
    return function


def compiled(module):
    """What torch.compile replaces where it is measured."""
    return module


def fill(arrays):
    """Gives arrays of one shape the same values in each library."""
    for array in arrays:
        seed = sum((i + 1) * n for i, n in enumerate(array.shape))
        values = np.random.RandomState(seed).randn(*array.shape)
        fan = np.prod(array.shape[1:]) if array.ndim > 1 else 100.0
        array[...] = values / np.sqrt(fan)


def digits(n, *shape):
    random = np.random.RandomState(0)
    return random.rand(n, *shape).astype("f"), random.randint(0, 10, n).astype("i")


def classifier_ours(lib, model, optimizer, x, t):
    F = lib.functions
    fill(p.array for p in model.params())
    optimizer.setup(model)

    def train(x, t):
        loss = F.softmax_cross_entropy(model(x), t)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        return loss

    train = captured(train)
    return lambda: float(train(x, t).array)


def classifier_pytorch(torch, model, optimizer, x, t):
    fill(p.detach().numpy() for p in model.parameters())
    x, t = torch.from_numpy(x), torch.from_numpy(t).long()
    model = compiled(model)

    def step():
        loss = torch.nn.functional.cross_entropy(model(x), t)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
