"""Weights and data that are the same in each library, and a step of a classifier."""

import numpy as np


def captured(function):
    """Returns the function; measurements of captured steps capture it instead."""
    return function


def compiled(module):
    """Returns the module or function; measurements replace this function by torch.compile."""
    return module


def fill(arrays):
    """Fills arrays with values that depend only on their shapes."""
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


def classifier_pytorch(torch, model, optimizer, x, t, channels_last=False):
    fill(p.detach().numpy() for p in model.parameters())
    x, t = torch.from_numpy(x), torch.from_numpy(t).long()
    if channels_last:
        lay_channels_last(torch, [*model.parameters(), x])
    model = compiled(model)

    def step():
        loss = torch.nn.functional.cross_entropy(model(x), t)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def adam(torch, params, **options):
    """Returns PyTorch's fused Adam, which takes a quarter of the default's time on CPUs."""
    return torch.optim.Adam(params, fused=True, **options)


def sgd(torch, params, rate=0.01, **options):
    """Returns PyTorch's fused SGD, which takes a third to two thirds of the default's time."""
    return torch.optim.SGD(params, rate, fused=True, **options)


def training_ours(lib, model, optimizer, loss_of, *data):
    """Returns a training step on arrays; parameters get the values of :func:`fill`."""
    fill(p.array for p in model.params())
    optimizer.setup(model)

    def train(*data):
        loss = loss_of(*data)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        return loss

    train = captured(train)
    return lambda: float(train(*data).array)


def training_pytorch(torch, params, make_optimizer, loss_of, *data, channels_last=False):
    """Returns a training step on tensors, whose channels may be last in memory; see also
    :func:`fill_gates`."""
    params, data = list(params), tensors(torch, data)
    fill(p.detach().numpy() for p in params)
    if channels_last:
        lay_channels_last(torch, [*params, *data])
    optimizer = make_optimizer(torch, params)

    def step():
        loss = loss_of(*data)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def lay_channels_last(torch, tensors):
    """Changes the layout of images and filters to channels last, with which PyTorch is often
    faster."""
    for x in tensors:
        if x.ndim == 4:
            x.data = x.data.contiguous(memory_format=torch.channels_last)


def tensors(torch, arrays):
    """Returns tensors of the arrays, with int64 instead of int32."""
    made = map(torch.from_numpy, arrays)
    return [x.long() if x.dtype == torch.int32 else x for x in made]


def fill_gates(modules):
    """Fills each gate of PyTorch's recurrent layers with the values that :func:`fill` gives
    mpchain's; nn.GRU has three gates, nn.LSTM four."""
    for module in modules:
        n = 3 if "GRU" in type(module).__name__ else 4
        fill(part for p in module.parameters() for part in np.split(p.detach().numpy(), n))
