"""Trains a mean flow: a generator of handwritten digits that takes one step from noise.

    python train_mean_flow.py                   one process
    mpchain-launch -n 2 train_mean_flow.py      two ranks, the same numbers

A path z = (1 - t) x + t e leads from an image x to noise e with the velocity v = e - x. The
network u(z, r, t) is the mean velocity between the times r and t. Then u = v - (t - r) du/dt, where
du/dt is the derivative along the path: a product of the network's Jacobian with a vector, which
``mpchain.jvp`` computes together with u. So the loss contains a forward-mode derivative. From noise
e, one step makes the image e - u(e, 0, 1).

The digits come with mpchain (8x8 pixels); --test uses synthetic images. Each sample of the batch
has its own noise and times, which do not depend on the number of ranks.

See Z. Geng et al., Mean flows for one-step generative modeling, arXiv:2505.13447.
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


class MeanFlow(mpchain.Chain):
    """The network u(z, r, t), and the loss of images."""

    def __init__(self, n_pixels: int, n_units: int):
        super().__init__()
        with self.init_scope():
            self.layers = mpchain.Sequential(
                L.Linear(n_pixels + 6, n_units), F.silu, L.Linear(n_units, n_units), F.silu,
                L.Linear(n_units, n_units), F.silu, L.Linear(n_units, n_pixels),
            )  # fmt: skip

    def u(self, z: Array | Variable, r: Array | Variable, t: Array | Variable) -> Variable:
        """Returns the mean velocity (N, n_pixels) at z (N, n_pixels), between r and t (N, 1)."""
        times = [f(w * s) for s in (t, t - r) for w in (1.0, np.pi) for f in (F.sin, F.cos)]
        return self.layers(F.concat([z, *times[1:4], *times[5:]], axis=1))

    def forward(self, x: Array) -> Variable:
        """Returns the loss of images x (N, n_pixels)."""
        xp = self.xp
        noise = distributions.Normal(xp.zeros((len(x), x.shape[1] + 3), x.dtype), scale=1.0)
        noise = noise.sample().array  # a sample's numbers do not depend on its rank
        e, times, choice = noise[:, :-3], 1 / (1 + xp.exp(0.4 - noise[:, -3:-1])), noise[:, -1:]
        t, r = times.max(axis=1, keepdims=True), times.min(axis=1, keepdims=True)
        r = xp.where(choice > -0.67, t, r)  # in three quarters of the cases, u is the velocity
        z, v = (1 - t) * x + t * e, e - x
        u, slope = mpchain.jvp(self.u, (z, r, t), (v, xp.zeros_like(r), xp.ones_like(t)))
        errors = F.sum((u - (v - (t - r) * slope.array)) ** 2, axis=1)
        loss = F.mean(errors / (errors.array + 1))  # large errors do not dominate
        mpchain.report({"loss": loss, "error": F.mean(errors)}, self)
        return loss

    def generate(self, e: Array) -> Array:
        """Returns the images that one step makes from noise e (N, n_pixels)."""
        with mpchain.no_backprop_mode():
            one = self.xp.ones((len(e), 1), e.dtype)
            return e - self.u(e, 0 * one, one).array


def load_digits(made_up: bool) -> Array:
    """Returns images (N, 64) of pixels from -1 to 1, float32."""
    if made_up:
        bars = np.repeat(np.arange(60) % 8, 64).reshape(60, 64) == np.arange(64) // 8
        return 2 * bars.astype(np.float32) - 1
    train, _ = datasets.get_digits(withlabel=False, ndim=1)
    return 2 * train - 1


def show(model: MeanFlow, n: int) -> None:
    """Prints new images as characters."""
    e = np.random.RandomState(0).normal(size=(n, 64)).astype(np.float32)
    images = mpchain.backends.cuda.to_cpu(model.generate(model.xp.asarray(e)))
    images = ((images + 1) / 2).clip(0, 1).reshape(-1, 8, 8)
    for row in np.concatenate(list(images), axis=1):
        print("".join(" .:-=+*#%@"[int(9 * value)] * 2 for value in row))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=300, help="passes over the images")
    parser.add_argument("--batchsize", type=int, default=128, help="images in a global batch")
    parser.add_argument("--units", type=int, default=256, help="units of the hidden layers")
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

    images = load_digits(args.test)
    batches = create_sharded_iterator(iterators.SerialIterator(images, args.batchsize), comm)
    model = MeanFlow(images.shape[1], args.units).to_device(device)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(alpha=2e-3), comm).setup(model)
    updater = MultiNodeUpdater(batches, optimizer, comm, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    n_updates = args.epoch * len(images) // args.batchsize
    trainer.extend(extensions.CosineShift("alpha", n_updates))
    columns = ["epoch", "main/loss", "main/error", "elapsed_time"]
    extensions.standard_reports(trainer, columns, snapshots=(1, "epoch"), arguments=args)
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()
    if comm.rank == 0:
        show(model, 6)


if __name__ == "__main__":
    main()
