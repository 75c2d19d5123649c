"""Trains a GAN with the zero-centered R1 penalty on handwritten digits.

    python r1_gan.py [--epoch 20] [--check]

This is the fourth snippet of NNabla's article on double backward. The discriminator's loss contains
gamma / 2 times the mean squared norm of its gradient at real images. With --check, the gradients of
this loss, which contain second derivatives, are first compared with finite differences.

See L. Mescheder et al., Which training methods for GANs do actually converge?, ICML 2018.
"""

import argparse
import functools

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers
from mpchain.gradient_check import check_backward
from mpchain.typing import Array


class Generator(mpchain.Chain):
    """Makes images (N, 1, 8, 8) from vectors (N, n_latent)."""

    def __init__(self, n_latent: int, n_hidden: int):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(n_latent, n_hidden)
            self.l2 = L.Linear(n_hidden, n_hidden)
            self.l3 = L.Linear(n_hidden, 64)

    def forward(self, z: Array) -> Variable:
        h = F.leaky_relu(self.l1(z))
        h = F.leaky_relu(self.l2(h))
        return F.reshape(F.sigmoid(self.l3(h)), (len(z), 1, 8, 8))


class Discriminator(mpchain.Chain):
    """Scores how real images are; the network is smooth, so that its gradients have derivatives."""

    def __init__(self, n_channels: int):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(1, n_channels, ksize=3, pad=1)
            self.conv2 = L.Convolution2D(n_channels, 2 * n_channels, ksize=4, stride=2, pad=1)
            self.l1 = L.Linear(2 * n_channels * 16, 1)

    def forward(self, x: Array) -> Variable:
        h = F.softplus(self.conv1(x))
        h = F.softplus(self.conv2(h))
        return self.l1(h)


def r1_penalty(p_real: Variable, x_real: Variable) -> Variable:
    (gx,) = mpchain.grad([p_real], [x_real], enable_double_backprop=True)
    # The squared norm avoids the square root, which has no derivative at zero.
    return F.mean(F.sum(gx**2, axis=(1, 2, 3)))


def discriminator_loss(
    dis: Discriminator, x_real: Variable, x_fake: Array, gamma: float
) -> Variable:
    p_real, p_fake = dis(x_real), dis(x_fake)
    loss = F.mean(F.softplus(-p_real)) + F.mean(F.softplus(p_fake))
    return loss + 0.5 * gamma * r1_penalty(p_real, x_real)


def generator_loss(dis: Discriminator, x_fake: Variable) -> Variable:
    return F.mean(F.softplus(-dis(x_fake)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=20, help="passes over the digits")
    parser.add_argument("--batchsize", type=int, default=64)
    parser.add_argument("--gamma", type=float, default=1.0, help="weight of the penalty")
    parser.add_argument("--latent", type=int, default=16, help="size of the random vectors")
    parser.add_argument("--hidden", type=int, default=128, help="units of the generator's layers")
    parser.add_argument("--channels", type=int, default=16, help="channels of the discriminator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    np.random.seed(args.seed)
    if args.check:
        mpchain.global_config.dtype = np.dtype(np.float64)
    digits, _ = datasets.get_digits(withlabel=False, ndim=3)
    gen, dis = Generator(args.latent, args.hidden), Discriminator(args.channels)

    def sample(n):
        return gen(np.random.randn(n, args.latent).astype(digits.dtype))

    if args.check:
        x_fake = sample(args.batchsize).array
        check(dis, digits[: args.batchsize], x_fake, args.gamma)

    opt_gen = optimizers.Adam(alpha=1e-3, beta1=0.5).setup(gen)
    opt_dis = optimizers.Adam(alpha=1e-3, beta1=0.5).setup(dis)
    batches = iterators.SerialIterator(digits, args.batchsize)
    losses = []
    while batches.epoch < args.epoch:
        x_real = Variable(np.stack(batches.next()))
        x_fake = sample(len(x_real))

        loss_dis = discriminator_loss(dis, x_real, x_fake.array, args.gamma)
        dis.cleargrads()
        loss_dis.backward()
        opt_dis.update()

        loss_gen = generator_loss(dis, x_fake)
        gen.cleargrads()
        loss_gen.backward()
        opt_gen.update()

        losses.append((loss_dis.item(), loss_gen.item()))
        if batches.is_new_epoch:
            report(batches.epoch, losses, digits, sample(1000).array)
            losses = []
    show(sample(6).array)


def check(dis: Discriminator, x_real: Array, x_fake: Array, gamma: float) -> None:
    """Compares the gradients of the discriminator's loss with finite differences."""
    loss = functools.partial(discriminator_loss, dis, x_fake=x_fake, gamma=gamma)
    check_backward(loss, x_real, None, tuple(dis.params()), eps=1e-4, atol=0, rtol=1e-6)
    print("finite differences agree")


def report(epoch: int, losses: list, digits: Array, generated: Array) -> None:
    """Prints the mean losses, and the distance between the mean generated and mean real image."""
    loss_dis, loss_gen = np.mean(losses, axis=0)
    distance = np.abs(digits.mean(axis=0) - generated.mean(axis=0)).mean()
    print(
        f"epoch {epoch:3}  loss of the discriminator {loss_dis:.4f}, of the generator "
        f"{loss_gen:.4f}, distance of the mean images {distance:.4f}",
        flush=True,
    )


def show(images: Array) -> None:
    """Prints images side by side, as characters."""
    rows = np.concatenate(list(images[:, 0]), axis=1)
    for row in rows:
        print("".join(" .:-=+*#%@"[min(int(value * 10), 9)] * 2 for value in row))


if __name__ == "__main__":
    main()
