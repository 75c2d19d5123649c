"""More networks, most of them convolutional, for images, sound and sequences."""

import common
import numpy as np
from common import adam, digits, fill, sgd, training_ours, training_pytorch


def _labels(n, *shape):
    return np.random.RandomState(1).randint(0, n, shape).astype("i")


def unet_ours(lib):
    """Returns a step of a segmentation network with three levels and skip connections."""
    F, L = lib.functions, lib.links

    def two(n_in, n):
        layers = []
        for m in (n_in, n):
            layers += [L.Convolution2D(m, n, 3, pad=1), L.BatchNormalization(n), F.relu]
        return lib.Sequential(*layers)

    class UNet(lib.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.down = lib.ChainList(two(3, 16), two(16, 32), two(32, 64))
                self.up = lib.ChainList(
                    L.Deconvolution2D(64, 32, 2, 2), L.Deconvolution2D(32, 16, 2, 2)
                )
                self.after = lib.ChainList(two(64, 32), two(32, 16))
                self.out = L.Convolution2D(16, 5, 1)

        def forward(self, x):
            a = self.down[0](x)
            b = self.down[1](F.max_pooling_2d(a, 2))
            c = self.down[2](F.max_pooling_2d(b, 2))
            b = self.after[0](F.concat((self.up[0](c), b), axis=1))
            a = self.after[1](F.concat((self.up[1](b), a), axis=1))
            return self.out(a)

    model = UNet()
    loss_of = lambda x, t: F.softmax_cross_entropy(model(x), t)
    data = digits(4, 3, 64, 64)[0], _labels(5, 4, 64, 64)
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *data)


def unet_pytorch(torch):
    """Follows the published model; channels_last takes 0.79 of the time."""
    nn = torch.nn

    def two(n_in, n):
        layers = []
        for m in (n_in, n):
            layers += [nn.Conv2d(m, n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList([two(3, 16), two(16, 32), two(32, 64)])
            self.up = nn.ModuleList(
                [nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)]
            )
            self.after = nn.ModuleList([two(64, 32), two(32, 16)])
            self.out = nn.Conv2d(16, 5, 1)

        def forward(self, x):
            pool = nn.functional.max_pool2d
            a = self.down[0](x)
            b = self.down[1](pool(a, 2))
            c = self.down[2](pool(b, 2))
            b = self.after[0](torch.cat((self.up[0](c), b), 1))
            a = self.after[1](torch.cat((self.up[1](b), a), 1))
            return self.out(a)

    model = UNet()
    loss_of = lambda x, t: nn.functional.cross_entropy(model(x), t)
    data = digits(4, 3, 64, 64)[0], _labels(5, 4, 64, 64)
    return training_pytorch(torch, model.parameters(), adam, loss_of, *data, channels_last=True)


WIDTHS = (16, 32), (32, 64), (64, 64), (64, 128), (128, 128)


def mobilenet_ours(lib):
    """Returns a step of depthwise 3x3 convolutions, each before a 1x1 convolution."""
    F, L = lib.functions, lib.links
    norm = lambda n: [L.BatchNormalization(n), F.relu]
    layers = [L.Convolution2D(3, 16, 3, 2, 1, nobias=True), *norm(16)]
    for i, (n, m) in enumerate(WIDTHS):
        stride = 1 + i % 2
        layers += [L.Convolution2D(n, n, 3, stride, 1, nobias=True, groups=n), *norm(n)]
        layers += [L.Convolution2D(n, m, 1, nobias=True), *norm(m)]
    layers += [lambda x: F.mean(x, axis=(2, 3)), L.Linear(128, 10)]
    model = lib.Sequential(*layers)
    loss_of = lambda x, t: F.softmax_cross_entropy(model(x), t)
    optimizer = lib.optimizers.MomentumSGD(0.01)
    return training_ours(lib, model, optimizer, loss_of, *digits(16, 3, 64, 64))


def mobilenet_pytorch(torch):
    """Follows torchvision; channels_last takes 0.70 of the time."""
    nn = torch.nn
    norm = lambda n: [nn.BatchNorm2d(n), nn.ReLU(inplace=True)]
    layers = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), *norm(16)]
    for i, (n, m) in enumerate(WIDTHS):
        stride = 1 + i % 2
        layers += [nn.Conv2d(n, n, 3, stride, 1, bias=False, groups=n), *norm(n)]
        layers += [nn.Conv2d(n, m, 1, bias=False), *norm(m)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    model = nn.Sequential(*layers)
    loss_of = lambda x, t: nn.functional.cross_entropy(model(x), t)
    make = lambda torch, params: sgd(torch, params, momentum=0.9)
    return training_pytorch(
        torch, model.parameters(), make, loss_of, *digits(16, 3, 64, 64), channels_last=True
    )


def dilated_ours(lib):
    """Returns a step of a segmentation network without pooling, whose windows grow by dilation."""
    F, L = lib.functions, lib.links
    layers, n = [], 3
    for d in (1, 2, 4, 8):
        layers += [L.Convolution2D(n, 32, 3, pad=d, dilate=d), L.BatchNormalization(32), F.relu]
        n = 32
    model = lib.Sequential(*layers, L.Convolution2D(32, 5, 1))
    loss_of = lambda x, t: F.softmax_cross_entropy(model(x), t)
    data = digits(4, 3, 48, 48)[0], _labels(5, 4, 48, 48)
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *data)


def dilated_pytorch(torch):
    """Follows the published model; channels_last takes 0.91 of the time."""
    nn = torch.nn
    layers, n = [], 3
    for d in (1, 2, 4, 8):
        layers += [nn.Conv2d(n, 32, 3, padding=d, dilation=d), nn.BatchNorm2d(32), nn.ReLU()]
        n = 32
    model = nn.Sequential(*layers, nn.Conv2d(32, 5, 1))
    loss_of = lambda x, t: nn.functional.cross_entropy(model(x), t)
    data = digits(4, 3, 48, 48)[0], _labels(5, 4, 48, 48)
    return training_pytorch(torch, model.parameters(), adam, loss_of, *data, channels_last=True)


AUDIO = (1, 32, 80, 4), (32, 32, 3, 1), (32, 64, 3, 1), (64, 128, 3, 1)


def audio_ours(lib):
    """Returns a step of a classifier of raw sound with convolutions over time, like M5."""
    F, L = lib.functions, lib.links
    layers = []
    for n, m, k, stride in AUDIO:
        layers += [L.Convolution1D(n, m, k, stride), L.BatchNormalization(m), F.relu]
        layers += [lambda x: F.max_pooling_1d(x, 4, cover_all=False)]
    model = lib.Sequential(*layers, lambda x: F.mean(x, axis=2), L.Linear(128, 10))
    loss_of = lambda x, t: F.softmax_cross_entropy(model(x), t)
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *digits(16, 1, 8000))


def audio_pytorch(torch):
    """Follows PyTorch's tutorial."""
    nn = torch.nn
    layers = []
    for n, m, k, stride in AUDIO:
        layers += [nn.Conv1d(n, m, k, stride), nn.BatchNorm1d(m), nn.ReLU(), nn.MaxPool1d(4)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, 10))
    loss_of = lambda x, t: nn.functional.cross_entropy(model(x), t)
    return training_pytorch(torch, model.parameters(), adam, loss_of, *digits(16, 1, 8000))


def tcn_ours(lib):
    """Returns a step of causal dilated convolutions over time with residuals."""
    F, L = lib.functions, lib.links
    convolutions = lib.ChainList(
        *(L.Convolution1D(32, 32, 3, pad=2 * d, dilate=d) for d in (1, 2, 4, 8, 16))
    )
    ends = lib.ChainList(L.Convolution1D(8, 32, 1), L.Convolution1D(32, 1, 1))
    model = lib.ChainList(convolutions, ends)

    def loss_of(x, t):
        y = ends[0](x)
        for f in convolutions:
            y = y + F.relu(f(y)[:, :, :256])
        return F.mean_squared_error(ends[1](y), t)

    random = np.random.RandomState(0)
    data = random.randn(16, 8, 256).astype("f"), random.randn(16, 1, 256).astype("f")
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *data)


def tcn_pytorch(torch):
    """Follows the published model; a slice cuts off the end."""
    nn = torch.nn
    convolutions = nn.ModuleList(
        nn.Conv1d(32, 32, 3, padding=2 * d, dilation=d) for d in (1, 2, 4, 8, 16)
    )
    ends = nn.ModuleList([nn.Conv1d(8, 32, 1), nn.Conv1d(32, 1, 1)])
    model = nn.ModuleList([convolutions, ends])

    def loss_of(x, t):
        y = ends[0](x)
        for f in convolutions:
            y = y + torch.relu(f(y)[:, :, :256])
        return nn.functional.mse_loss(ends[1](y), t)

    random = np.random.RandomState(0)
    data = random.randn(16, 8, 256).astype("f"), random.randn(16, 1, 256).astype("f")
    return training_pytorch(torch, model.parameters(), adam, loss_of, *data)


def group_norm_ours(lib):
    """Returns a step of a residual network of a diffusion model: group normalization and SiLU."""
    F, L = lib.functions, lib.links
    unit = lambda: [L.GroupNormalization(8, 64), F.silu, L.Convolution2D(64, 64, 3, pad=1)]
    blocks = lib.ChainList(*(lib.Sequential(*unit(), *unit()) for _ in range(3)))
    ends = lib.ChainList(L.Convolution2D(3, 64, 3, pad=1), L.Convolution2D(64, 3, 3, pad=1))
    model = lib.ChainList(blocks, ends)

    def loss_of(x, noise):
        y = ends[0](x + noise)
        for block in blocks:
            y = y + block(y)
        return F.mean_squared_error(ends[1](y), noise)

    random = np.random.RandomState(0)
    data = random.randn(2, 8, 3, 32, 32).astype("f")
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *data)


def group_norm_pytorch(torch):
    """Follows published diffusion models; channels_last takes 0.95 of the time."""
    nn = torch.nn
    unit = lambda: [nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 64, 3, padding=1)]
    blocks = nn.ModuleList(nn.Sequential(*unit(), *unit()) for _ in range(3))
    ends = nn.ModuleList([nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 3, 3, padding=1)])
    model = nn.ModuleList([blocks, ends])

    def loss_of(x, noise):
        y = ends[0](x + noise)
        for block in blocks:
            y = y + block(y)
        return nn.functional.mse_loss(ends[1](y), noise)

    random = np.random.RandomState(0)
    data = random.randn(2, 8, 3, 32, 32).astype("f")
    return training_pytorch(torch, model.parameters(), adam, loss_of, *data, channels_last=True)


def vae_ours(lib):
    """Returns a step of a variational autoencoder of dense layers."""
    F, L = lib.functions, lib.links
    encoder = lib.Sequential(L.Linear(784, 400), F.relu)
    heads = lib.ChainList(L.Linear(400, 20), L.Linear(400, 20))
    decoder = lib.Sequential(L.Linear(20, 400), F.relu, L.Linear(400, 784))
    model = lib.ChainList(encoder, heads, decoder)

    def loss_of(x, eps):
        h = encoder(x)
        mean, ln_var = heads[0](h), heads[1](h)
        z = mean + eps * F.exp(0.5 * ln_var)
        return F.bernoulli_nll(x, decoder(z)) + F.gaussian_kl_divergence(mean, ln_var)

    random = np.random.RandomState(0)
    data = random.rand(128, 784).astype("f"), random.randn(128, 20).astype("f")
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *data)


def vae_pytorch(torch):
    """Follows PyTorch's example, with binary_cross_entropy_with_logits."""
    nn = torch.nn
    encoder = nn.Sequential(nn.Linear(784, 400), nn.ReLU())
    heads = nn.ModuleList([nn.Linear(400, 20), nn.Linear(400, 20)])
    decoder = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))
    model = nn.ModuleList([encoder, heads, decoder])
    bce = nn.functional.binary_cross_entropy_with_logits

    def loss_of(x, eps):
        h = encoder(x)
        mean, ln_var = heads[0](h), heads[1](h)
        z = mean + eps * torch.exp(0.5 * ln_var)
        kld = -0.5 * torch.sum(1 + ln_var - mean.pow(2) - ln_var.exp())
        return bce(decoder(z), x, reduction="sum") + kld

    random = np.random.RandomState(0)
    data = random.rand(128, 784).astype("f"), random.randn(128, 20).astype("f")
    return training_pytorch(torch, model.parameters(), adam, loss_of, *data)


def autoencoder_ours(lib):
    """Returns a step of convolutions that shrink images, and deconvolutions that enlarge them."""
    F, L = lib.functions, lib.links
    model = lib.Sequential(
        L.Convolution2D(1, 16, 3, 2, 1), F.relu, L.Convolution2D(16, 32, 3, 2, 1), F.relu,
        L.Deconvolution2D(32, 16, 4, 2, 1), F.relu, L.Deconvolution2D(16, 1, 4, 2, 1), F.sigmoid,
    )  # fmt: skip
    loss_of = lambda x: F.mean_squared_error(model(x), x)
    x = digits(64, 1, 28, 28)[0]
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, x)


def autoencoder_pytorch(torch):
    """Follows tutorials; channels_last was tried, and is not faster."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Sigmoid(),
    )  # fmt: skip
    loss_of = lambda x: nn.functional.mse_loss(model(x), x)
    x = digits(64, 1, 28, 28)[0]
    return training_pytorch(torch, model.parameters(), adam, loss_of, x)


def convolutions_inference_ours(lib):
    """Returns a step that passes one image through a small network."""
    F, L = lib.functions, lib.links
    layers, n = [], 3
    for m in (16, 32, 64, 64):
        layers += [L.Convolution2D(n, m, 3, 2, 1), L.BatchNormalization(m), F.relu]
        n = m
    model = lib.Sequential(*layers, lambda x: F.mean(x, axis=(2, 3)), L.Linear(64, 10))
    fill(p.array for p in model.params())
    x = digits(1, 3, 64, 64)[0]
    predict = common.captured(lambda x: model(x).array)

    def step():
        with lib.using_config("train", False), lib.no_backprop_mode():
            return float(predict(x).sum())

    return step


def convolutions_inference_pytorch(torch):
    """Uses inference mode; channels_last was tried, and is not faster."""
    nn = torch.nn
    layers, n = [], 3
    for m in (16, 32, 64, 64):
        layers += [nn.Conv2d(n, m, 3, 2, 1), nn.BatchNorm2d(m), nn.ReLU()]
        n = m
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()
    fill(p.detach().numpy() for p in model.parameters())
    x = torch.from_numpy(digits(1, 3, 64, 64)[0])

    def step():
        with torch.inference_mode():
            return model(x).sum().item()

    return step
