"""Convolutional networks."""

import common
from common import classifier_ours, classifier_pytorch, digits, fill


def lenet_ours(lib):
    F, L = lib.functions, lib.links
    pool = lambda x: F.max_pooling_2d(x, 2)
    model = lib.Sequential(
        L.Convolution2D(1, 20, 5),
        pool,
        L.Convolution2D(20, 50, 5),
        pool,
        L.Linear(800, 500),
        F.relu,
        L.Linear(500, 10),
    )
    optimizer = lib.optimizers.MomentumSGD(0.01)
    return classifier_ours(lib, model, optimizer, *digits(64, 1, 28, 28))


def lenet_pytorch(torch):
    """Uses channels_last, which takes 0.88 of the time."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    return classifier_pytorch(torch, model, optimizer, *digits(64, 1, 28, 28), channels_last=True)


def vgg_ours(lib):
    F, L = lib.functions, lib.links
    layers, channels = [], 3
    for n in (64, 128, 256):
        for _ in range(2):
            layers += [L.Convolution2D(channels, n, 3, pad=1, nobias=True)]
            layers += [L.BatchNormalization(n), F.relu]
            channels = n
        layers += [lambda x: F.max_pooling_2d(x, 2), lambda x: F.dropout(x, 0.3)]
    model = lib.Sequential(*layers, L.Linear(4096, 10))
    step = classifier_ours(lib, model, lib.optimizers.MomentumSGD(0.01), *digits(32, 3, 32, 32))
    return lambda: step() and None  # the masks differ


def vgg_pytorch(torch):
    """Uses channels_last, which takes 0.88 of the time."""
    nn = torch.nn
    layers, channels = [], 3
    for n in (64, 128, 256):
        for _ in range(2):
            layers += [nn.Conv2d(channels, n, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(n), nn.ReLU()]
            channels = n
        layers += [nn.MaxPool2d(2), nn.Dropout(0.3)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4096, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    step = classifier_pytorch(torch, model, optimizer, *digits(32, 3, 32, 32), channels_last=True)
    return lambda: step() and None


def _unit_ours(lib, n_in, n_out, ksize, stride=1, activation=True):
    L = lib.links
    pad = ksize // 2
    layers = [L.Convolution2D(n_in, n_out, ksize, stride, pad, nobias=True)]
    layers += [L.BatchNormalization(n_out), *[lib.functions.relu] * activation]
    return layers


def _block_ours(lib, layers, side):
    F = lib.functions

    class Block(lib.Chain):
        def __init__(self):
            super().__init__(body=lib.Sequential(*layers))
            if side:
                with self.init_scope():
                    self.side = lib.Sequential(*side)

        def forward(self, x):
            return F.relu(self.body(x) + (self.side(x) if side else x))

    return Block()


def _resnet_ours(lib, numbers, expansion):
    F, L = lib.functions, lib.links
    layers = [*_unit_ours(lib, 3, 64, 7, 2), lambda x: F.max_pooling_2d(x, 3, 2, 1)]
    channels = 64
    for i, n in enumerate(numbers):
        for j in range(n):
            width, stride = 64 << i, 2 if i and not j else 1
            out = width * expansion
            if expansion == 1:
                body = _unit_ours(lib, channels, width, 3, stride)
            else:
                body = _unit_ours(lib, channels, width, 1) + _unit_ours(
                    lib, width, width, 3, stride
                )
            body += _unit_ours(lib, width, out, 3 if expansion == 1 else 1, activation=False)
            same = stride == 1 and channels == out
            side = [] if same else _unit_ours(lib, channels, out, 1, stride, activation=False)
            layers.append(_block_ours(lib, body, side))
            channels = out
    pool = lambda x: F.average(x, axis=(2, 3))
    return lib.Sequential(*layers, pool, L.Linear(channels, 1000))


def _resnet_pytorch(torch, numbers, expansion):
    nn = torch.nn

    def unit(n_in, n_out, ksize, stride=1, activation=True):
        layers = [nn.Conv2d(n_in, n_out, ksize, stride, ksize // 2, bias=False)]
        layers += [nn.BatchNorm2d(n_out), *[nn.ReLU()] * activation]
        return layers

    class Block(nn.Module):
        def __init__(self, body, side):
            super().__init__()
            self.body, self.side = nn.Sequential(*body), nn.Sequential(*side)

        def forward(self, x):
            return torch.relu(self.body(x) + self.side(x))

    layers, channels = [*unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1, ceil_mode=True)], 64
    for i, n in enumerate(numbers):
        for j in range(n):
            width, stride = 64 << i, 2 if i and not j else 1
            out = width * expansion
            if expansion == 1:
                body = unit(channels, width, 3, stride)
            else:
                body = unit(channels, width, 1) + unit(width, width, 3, stride)
            body += unit(width, out, 3 if expansion == 1 else 1, activation=False)
            same = stride == 1 and channels == out
            side = [] if same else unit(channels, out, 1, stride, activation=False)
            layers.append(Block(body, side))
            channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def _train_resnet_ours(lib, numbers, expansion, batch):
    model = _resnet_ours(lib, numbers, expansion)
    optimizer = lib.optimizers.MomentumSGD(0.001)
    return classifier_ours(lib, model, optimizer, *digits(batch, 3, 112, 112))


def _train_resnet_pytorch(torch, numbers, expansion, batch):
    model = _resnet_pytorch(torch, numbers, expansion)
    optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9, fused=True)
    return classifier_pytorch(
        torch, model, optimizer, *digits(batch, 3, 112, 112), channels_last=True
    )


def resnet18_ours(lib):
    return _train_resnet_ours(lib, (2, 2, 2, 2), 1, 8)


def resnet18_pytorch(torch):
    """Uses channels_last, which takes 0.96 of the time."""
    return _train_resnet_pytorch(torch, (2, 2, 2, 2), 1, 8)


def resnet50_ours(lib):
    return _train_resnet_ours(lib, (3, 4, 6, 3), 4, 4)


def resnet50_pytorch(torch):
    return _train_resnet_pytorch(torch, (3, 4, 6, 3), 4, 4)


def resnet50_inference_ours(lib):
    model = _resnet_ours(lib, (3, 4, 6, 3), 4)
    fill(p.array for p in model.params())
    x, _ = digits(4, 3, 112, 112)

    predict = common.captured(lambda x: model(x).array)

    def step():
        with lib.using_config("train", False), lib.no_backprop_mode():
            return float(predict(x).mean())

    return step


def resnet50_inference_pytorch(torch):
    model = _resnet_pytorch(torch, (3, 4, 6, 3), 4).eval()
    fill(p.detach().numpy() for p in model.parameters())
    model = common.compiled(model)
    x = torch.from_numpy(digits(4, 3, 112, 112)[0])

    def step():
        with torch.inference_mode():
            return model(x).mean().item()

    return step
