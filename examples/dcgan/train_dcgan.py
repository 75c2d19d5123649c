"""Trains a deep convolutional GAN that draws handwritten digits.

    python train_dcgan.py                       one process
    mpchain-launch -n 2 train_dcgan.py          two ranks, the same numbers

The digits come with mpchain (8x8 pixels); --test uses synthetic images. The updater shows how to
train two models in turn: each has its own optimizer and loss function. Batch normalization uses the
statistics of the batches of all ranks.

See A. Radford et al., Unsupervised representation learning with deep convolutional generative
adversarial networks, ICLR 2016.
"""

import argparse
import pathlib

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers, serializers, training
from mpchain.distributed import create_sharded_iterator
from mpchain.distributed.extensions import ObservationAggregator
from mpchain.distributed.links import create_mnbn_model
from mpchain.training import extensions
from mpchain.typing import Array


class Generator(mpchain.Chain):
    """Draws images (N, 1, 8, 8) from vectors (N, n_latent)."""

    def __init__(self, n_latent: int, width: int):
        super().__init__()
        initial = mpchain.initializers.Normal(0.02)
        self.width = width
        with self.init_scope():
            self.l0 = L.Linear(n_latent, 2 * width * 4, initialW=initial)
            self.norm0 = L.BatchNormalization(2 * width * 4)
            self.deconv1 = L.Deconvolution2D(2 * width, width, 4, 2, 1, initialW=initial)
            self.norm1 = L.BatchNormalization(width)
            self.deconv2 = L.Deconvolution2D(width, 1, 4, 2, 1, initialW=initial)

    def forward(self, z: Array) -> Variable:
        h = F.relu(self.norm0(self.l0(z)))
        h = F.reshape(h, (len(z), 2 * self.width, 2, 2))
        h = F.relu(self.norm1(self.deconv1(h)))
        return F.sigmoid(self.deconv2(h))


class Discriminator(mpchain.Chain):
    """Scores how real images (N, 1, 8, 8) are."""

    def __init__(self, width: int):
        super().__init__()
        initial = mpchain.initializers.Normal(0.02)
        with self.init_scope():
            self.conv0 = L.Convolution2D(1, width, 4, 2, 1, initialW=initial)
            self.conv1 = L.Convolution2D(width, 2 * width, 4, 2, 1, initialW=initial)
            self.norm1 = L.BatchNormalization(2 * width)
            self.l2 = L.Linear(2 * width * 4, 1, initialW=initial)

    def forward(self, x: Array | Variable) -> Variable:
        h = F.leaky_relu(self.conv0(x))
        h = F.leaky_relu(self.norm1(self.conv1(h)))
        return self.l2(F.dropout(h, 0.3))


class GanUpdater(training.updaters.StandardUpdater):
    """Updates the discriminator, then the generator, with each batch."""

    def __init__(self, iterator, gen_optimizer, dis_optimizer, comm, n_latent, device):
        named = {"main": gen_optimizer, "dis": dis_optimizer}
        super().__init__(iterator, named, device=device)
        self.gen, self.dis = gen_optimizer.target, dis_optimizer.target
        self.comm, self.n_latent = comm, n_latent

    def update_core(self) -> None:
        iterator = self.get_iterator("main")
        x_real = self.convert(next(iterator))
        # All ranks draw the vectors of the whole batch, and use the vectors of their own samples.
        z = np.random.normal(size=(iterator.batch_size, self.n_latent)).astype(np.float32)
        with self.comm.batch(mine=iterator.mine) as mine:
            z = self.device.send(z[mine])
            self.get_optimizer("dis").update(self.loss_of_dis, x_real, z)
            self.get_optimizer("main").update(self.loss_of_gen, z)

    def loss_of_dis(self, x_real: Array, z: Array) -> Variable:
        with mpchain.no_backprop_mode():  # the generator does not learn from this loss
            x_fake = self.gen(z).array
        loss = F.mean(F.softplus(-self.dis(x_real))) + F.mean(F.softplus(self.dis(x_fake)))
        mpchain.report({"loss": loss}, self.dis)
        return loss

    def loss_of_gen(self, z: Array) -> Variable:
        loss = F.mean(F.softplus(-self.dis(self.gen(z))))
        mpchain.report({"loss": loss}, self.gen)
        return loss


def draw_images(gen: Generator, n_latent: int):
    """Returns an extension that writes six images, as characters, to a file in the results."""
    z = np.random.RandomState(0).normal(size=(6, n_latent)).astype(np.float32)

    @training.make_extension(trigger=(1, "epoch"))
    def draw(trainer: training.Trainer) -> None:
        with mpchain.using_config("train", False), mpchain.no_backprop_mode():
            images = mpchain.backends.cuda.to_cpu(gen(gen.xp.asarray(z)).array)
        rows = np.concatenate(list(images[:, 0]), axis=1)
        text = "\n".join("".join(" .:-=+*#%@"[int(9 * value)] * 2 for value in row) for row in rows)
        pathlib.Path(trainer.out, "images.txt").write_text(text + "\n")

    return draw


def load_digits(made_up: bool) -> Array:
    """Returns images (N, 1, 8, 8), float32 from 0 to 1."""
    if not made_up:
        return datasets.get_digits(withlabel=False, ndim=3)[0]
    rows = np.arange(80) % 6  # the positions of horizontal lines
    images = np.zeros((80, 1, 8, 8), np.float32)
    images[np.arange(80), 0, rows] = images[np.arange(80), 0, rows + 1] = 1
    return images


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=60, help="passes over the images")
    parser.add_argument("--batchsize", type=int, default=64, help="images in a global batch")
    parser.add_argument("--latent", type=int, default=32, help="size of the random vectors")
    parser.add_argument("--width", type=int, default=32, help="channels of the first convolution")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds on synthetic data")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.batchsize, args.width = 2, 20, 4
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    images = load_digits(args.test)
    batches = create_sharded_iterator(iterators.SerialIterator(images, args.batchsize), comm)
    gen = create_mnbn_model(Generator(args.latent, args.width), comm)
    dis = create_mnbn_model(Discriminator(args.width), comm)
    both = []
    for model in (gen, dis):
        optimizer = optimizers.Adam(alpha=1e-3, beta1=0.5)
        both.append(mpchain.create_multi_node_optimizer(optimizer, comm).setup(model))
    updater = GanUpdater(batches, *both, comm, args.latent, device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)

    for key in ("main/loss", "dis/loss"):
        trainer.extend(ObservationAggregator(comm, key))
    if comm.rank == 0:
        trainer.extend(draw_images(gen, args.latent))
    extensions.standard_reports(
        trainer,
        ["epoch", "main/loss", "dis/loss", "elapsed_time"],
        snapshots=(1, "epoch"),
        arguments=args,
    )
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()
    if comm.rank == 0:
        print(pathlib.Path(args.out, "images.txt").read_text(), end="")


if __name__ == "__main__":
    main()
