"""Trains a variational autoencoder of handwritten digits.

    python train_vae.py                         one process
    mpchain-launch -n 2 train_vae.py            two ranks, the same numbers

The digits come with mpchain (8x8 pixels); --test uses synthetic images. The loss function draws
noise for each sample of the batch, and this noise does not depend on the number of ranks.

See D. P. Kingma and M. Welling, Auto-encoding variational Bayes, ICLR 2014.
"""

import argparse

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, distributions, iterators, optimizers, serializers, training
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.training import extensions
from mpchain.typing import Array


class VAE(mpchain.Chain):
    """An encoder from images to normal distributions, and a decoder to pixels that are 0 or 1."""

    def __init__(self, n_pixels: int, n_units: int, n_latent: int):
        super().__init__()
        with self.init_scope():
            self.encoder = mpchain.Sequential(L.Linear(n_pixels, n_units), F.tanh)
            self.to_mean = L.Linear(n_units, n_latent)
            self.to_log_scale = L.Linear(n_units, n_latent)
            self.decoder = mpchain.Sequential(
                L.Linear(n_latent, n_units), F.tanh, L.Linear(n_units, n_pixels)
            )

    def encode(self, x: Array) -> distributions.Normal:
        h = self.encoder(x)
        return distributions.Normal(self.to_mean(h), log_scale=self.to_log_scale(h))

    def decode(self, z: Array | Variable) -> distributions.Bernoulli:
        return distributions.Bernoulli(logit=self.decoder(z))

    def forward(self, x: Array) -> Variable:
        """Returns the negative evidence lower bound of x (N, n_pixels), in nats per image."""
        posterior = self.encode(x)
        prior = distributions.Normal(self.xp.zeros_like(posterior.mean.array), scale=1.0)
        kl = F.mean(F.sum(mpchain.kl_divergence(posterior, prior), axis=1))
        z = posterior.sample() if mpchain.config.train else posterior.mean
        log_likelihood = self.decode(z).log_prob(x)
        reconstruction = -F.mean(F.sum(log_likelihood, axis=1))
        loss = reconstruction + kl
        mpchain.report({"loss": loss, "reconstruction": reconstruction, "kl": kl}, self)
        return loss


def load_digits(made_up: bool) -> tuple[Array, Array]:
    """Returns training and test images (N, 64) whose pixels are 0 or 1, float32."""
    if made_up:
        train = np.repeat(np.arange(60) % 8, 64).reshape(60, 64) == np.arange(64) // 8
        return train.astype(np.float32), train[:16].astype(np.float32)
    train, test = datasets.get_digits(withlabel=False, ndim=1)
    return (train > 0.5).astype(np.float32), (test > 0.5).astype(np.float32)


def show(model: VAE, x: Array) -> None:
    """Prints images, their reconstructions, and new images below, as characters."""
    with mpchain.using_config("train", False), mpchain.no_backprop_mode():
        x = model.xp.asarray(x)
        z = np.random.RandomState(0).normal(size=(len(x), model.to_mean.out_size))
        again = model.decode(model.encode(x).mean).mean.array
        new = model.decode(model.xp.asarray(z.astype(np.float32))).mean.array
    for title, images in (("images", x), ("decoded", again), ("new", new)):
        print(title)
        images = mpchain.backends.cuda.to_cpu(images).reshape(-1, 8, 8)
        for row in np.concatenate(list(images), axis=1):
            print("".join(" .:-=+*#%@"[int(9 * value)] * 2 for value in row))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=100, help="passes over the images")
    parser.add_argument("--batchsize", type=int, default=64, help="images in a global batch")
    parser.add_argument("--units", type=int, default=128, help="units of the hidden layers")
    parser.add_argument("--latent", type=int, default=8, help="size of the latent vectors")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds on synthetic data")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.batchsize, args.units = 3, 20, 16
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    train, test = load_digits(args.test)
    train_iter = iterators.SerialIterator(train, args.batchsize)
    test_iter = iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)

    model = VAE(64, args.units, args.latent).to_device(device)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(), comm).setup(model)
    updater = MultiNodeUpdater(train_iter, optimizer, comm, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    evaluator = extensions.Evaluator(test_iter, model, device=device)
    trainer.extend(mpchain.create_multi_node_evaluator(evaluator, comm))
    columns = ["epoch", "main/loss", "main/reconstruction", "main/kl", "validation/main/loss"]
    extensions.standard_reports(trainer, columns, snapshots=(1, "epoch"), arguments=args)
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()
    if comm.rank == 0:
        show(model, test[:6])


if __name__ == "__main__":
    main()
