"""Generative adversarial networks."""

import common
import numpy as np
from common import fill


def dcgan_ours(lib):
    F, L = lib.functions, lib.links

    def up(n_in, n_out):
        return L.Deconvolution2D(n_in, n_out, 4, 2, 1), L.BatchNormalization(n_out), F.relu

    def down(n_in, n_out):
        return L.Convolution2D(n_in, n_out, 4, 2, 1), L.BatchNormalization(n_out), F.leaky_relu

    generator = lib.Sequential(
        L.Linear(100, 512 * 16),
        lambda x: F.reshape(x, (-1, 512, 4, 4)),
        *up(512, 256),
        *up(256, 128),
        L.Deconvolution2D(128, 3, 4, 2, 1),
        F.tanh,
    )
    critic = lib.Sequential(
        L.Convolution2D(3, 128, 4, 2, 1),
        F.leaky_relu,
        *down(128, 256),
        *down(256, 512),
        L.Linear(512 * 16, 1),
    )
    optimizers = [lib.optimizers.Adam(2e-4, beta1=0.5).setup(m) for m in (generator, critic)]
    random = np.random.RandomState(0)
    x, z = random.rand(50, 3, 32, 32).astype("f"), random.randn(50, 100).astype("f")

    def train(x, z):
        made = generator(z)
        y_made, y_real = critic(made), critic(x)
        losses = F.mean(F.softplus(-y_made)), F.mean(F.softplus(y_made) + F.softplus(-y_real))
        # As in PyTorch below, each loss belongs to one of the models, and gives no other gradients.
        for loss, optimizer in zip(losses, optimizers):
            params = list(optimizer.target.params())
            for param, grad in zip(params, lib.grad([loss], params)):
                param.grad = grad.array
            optimizer.update()

    train = common.captured(train)
    return lambda: train(x, z)


def dcgan_pytorch(torch):
    nn = torch.nn

    def up(n_in, n_out):
        return nn.ConvTranspose2d(n_in, n_out, 4, 2, 1), nn.BatchNorm2d(n_out), nn.ReLU()

    def down(n_in, n_out):
        return nn.Conv2d(n_in, n_out, 4, 2, 1), nn.BatchNorm2d(n_out), nn.LeakyReLU(0.2)

    generator = nn.Sequential(
        nn.Linear(100, 512 * 16),
        nn.Unflatten(1, (512, 4, 4)),
        *up(512, 256),
        *up(256, 128),
        nn.ConvTranspose2d(128, 3, 4, 2, 1),
        nn.Tanh(),
    )
    critic = nn.Sequential(
        nn.Conv2d(3, 128, 4, 2, 1),
        nn.LeakyReLU(0.2),
        *down(128, 256),
        *down(256, 512),
        nn.Flatten(),
        nn.Linear(512 * 16, 1),
    )
    models = generator, critic
    optimizers = [
        torch.optim.Adam(m.parameters(), 2e-4, betas=(0.5, 0.999), fused=True) for m in models
    ]
    random = np.random.RandomState(0)
    x, z = random.rand(50, 3, 32, 32).astype("f"), random.randn(50, 100).astype("f")
    x, z = torch.from_numpy(x), torch.from_numpy(z)
    softplus = nn.functional.softplus

    def step():
        # The losses share a graph, whose parameters must not change in between.
        made = generator(z)
        y_made, y_real = critic(made), critic(x)
        losses = softplus(-y_made).mean(), (softplus(y_made) + softplus(-y_real)).mean()
        gradients = [
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            for model, loss in zip(models, losses)
        ]
        for model, grads, optimizer in zip(models, gradients, optimizers):
            for param, grad in zip(model.parameters(), grads):
                param.grad = grad
            optimizer.step()

    return step


def _wgan_gp_ours(lib, critic, shape):
    F = lib.functions
    fill(p.array for p in critic.params())
    optimizer = lib.optimizers.Adam(1e-4, beta1=0.5).setup(critic)
    random = np.random.RandomState(0)
    real, made = random.rand(2, 64, *shape).astype("f")

    def train(real, made):
        x = lib.Variable((real + made) / 2)
        (gx,) = lib.grad([critic(x)], [x], enable_double_backprop=True)
        norms = F.sqrt(F.sum(F.reshape(gx, (64, -1)) ** 2, axis=1))
        loss = F.mean(critic(made)) - F.mean(critic(real)) + 10 * F.mean((norms - 1) ** 2)
        critic.cleargrads()
        loss.backward()
        optimizer.update()
        return loss

    train = common.captured(train)
    return lambda: float(train(real, made).array)


def _wgan_gp_pytorch(torch, critic, shape):
    fill(p.detach().numpy() for p in critic.parameters())
    optimizer = torch.optim.Adam(critic.parameters(), 1e-4, betas=(0.5, 0.999), fused=True)
    random = np.random.RandomState(0)
    real, made = map(torch.from_numpy, random.rand(2, 64, *shape).astype("f"))

    def step():
        x = ((real + made) / 2).requires_grad_()
        (gx,) = torch.autograd.grad(critic(x).sum(), [x], create_graph=True)
        norms = gx.reshape(64, -1).pow(2).sum(1).sqrt()
        loss = critic(made).mean() - critic(real).mean() + 10 * ((norms - 1) ** 2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def wgan_gp_mlp_ours(lib):
    F, L = lib.functions, lib.links
    critic = lib.Sequential(
        L.Linear(784, 512), F.leaky_relu, L.Linear(512, 512), F.leaky_relu, L.Linear(512, 1)
    )
    return _wgan_gp_ours(lib, critic, (784,))


def wgan_gp_mlp_pytorch(torch):
    nn = torch.nn
    critic = nn.Sequential(
        nn.Linear(784, 512),
        nn.LeakyReLU(0.2),
        nn.Linear(512, 512),
        nn.LeakyReLU(0.2),
        nn.Linear(512, 1),
    )
    return _wgan_gp_pytorch(torch, critic, (784,))


def wgan_gp_convolutions_ours(lib):
    F, L = lib.functions, lib.links
    critic = lib.Sequential(
        L.Convolution2D(1, 32, 4, 2, 1),
        F.leaky_relu,
        L.Convolution2D(32, 64, 4, 2, 1),
        F.leaky_relu,
        L.Linear(64 * 49, 1),
    )
    return _wgan_gp_ours(lib, critic, (1, 28, 28))


def wgan_gp_convolutions_pytorch(torch):
    nn = torch.nn
    critic = nn.Sequential(
        nn.Conv2d(1, 32, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(64 * 49, 1),
    )
    return _wgan_gp_pytorch(torch, critic, (1, 28, 28))
