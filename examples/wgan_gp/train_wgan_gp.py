"""Trains a Wasserstein GAN with gradient penalty on points around eight centers on a circle.

    python train_wgan_gp.py                     one process
    mpchain-launch -n 2 train_wgan_gp.py        two ranks, the same numbers

The penalty is a function of the critic's gradient with respect to its input. So the critic's
parameters get a gradient of a gradient, which is averaged over the ranks like any other gradient.

See I. Gulrajani et al., Improved training of Wasserstein GANs, NeurIPS 2017.
"""

import argparse
import itertools

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, iterators, optimizers, serializers, training
from mpchain.distributed import create_sharded_iterator
from mpchain.distributed.extensions import ObservationAggregator
from mpchain.training import extensions
from mpchain.typing import Array

ANGLES = np.arange(8) * np.pi / 4
CENTERS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)


def make_mlp(*sizes: int) -> mpchain.Sequential:
    """Returns affine layers of the given sizes with tanh between them."""
    layers = mpchain.Sequential()
    for n_in, n_out in itertools.pairwise(sizes):
        layers.extend(mpchain.Sequential(L.Linear(n_in, n_out), F.tanh))
    layers.pop()
    return layers


def gradient_penalty(critic: mpchain.Link, x: Variable) -> Variable:
    """Returns the mean of (norm of the critic's gradient at x - 1)^2."""
    (gx,) = mpchain.grad([critic(x)], [x], enable_double_backprop=True)
    norm = F.sqrt(F.sum(gx**2, axis=1) + 1e-12)
    return F.mean((norm - 1) ** 2)


class WganUpdater(training.updaters.StandardUpdater):
    """Updates the critic n_critic times, then the generator once."""

    def __init__(self, iterator, gen_optimizer, critic_optimizer, comm, args, device):
        named = {"main": gen_optimizer, "critic": critic_optimizer}
        super().__init__(iterator, named, device=device)
        self.gen, self.critic = gen_optimizer.target, critic_optimizer.target
        self.comm, self.args = comm, args

    def update_core(self) -> None:
        iterator = self.get_iterator("main")
        n = iterator.batch_size
        for _ in range(self.args.n_critic):
            x_real = self.convert(next(iterator))
            # All ranks draw the numbers of the whole batch, and use those of their own samples.
            z = np.random.normal(size=(n, self.args.latent)).astype(np.float32)
            t = np.random.uniform(size=(n, 1)).astype(np.float32)
            with self.comm.batch(mine=iterator.mine) as mine:
                mine_z, mine_t = self.device.send((z[mine], t[mine]))
                self.get_optimizer("critic").update(self.loss_of_critic, x_real, mine_z, mine_t)
        with self.comm.batch(mine=iterator.mine):
            self.get_optimizer("main").update(self.loss_of_gen, mine_z)

    def loss_of_critic(self, x_real: Array, z: Array, t: Array) -> Variable:
        with mpchain.no_backprop_mode():  # the generator does not learn from this loss
            x_fake = self.gen(z).array
        distance = F.mean(self.critic(x_real)) - F.mean(self.critic(x_fake))
        penalty = gradient_penalty(self.critic, Variable(t * x_real + (1 - t) * x_fake))
        mpchain.report({"distance": distance, "penalty": penalty}, self.critic)
        return self.args.weight * penalty - distance

    def loss_of_gen(self, z: Array) -> Variable:
        return -F.mean(self.critic(self.gen(z)))


def measure_quality(gen: mpchain.Link, n_latent: int):
    """Returns an extension that reports the number of centers that have generated points nearby,
    and the share of generated points that are near a center."""
    z = np.random.RandomState(0).normal(size=(1000, n_latent)).astype(np.float32)

    @training.make_extension(trigger=(1, "epoch"), priority=training.PRIORITY_WRITER)
    def measure(trainer: training.Trainer) -> None:
        with mpchain.no_backprop_mode():
            points = mpchain.backends.cuda.to_cpu(gen(gen.xp.asarray(z)).array)
        distances = np.linalg.norm(points[:, None] - CENTERS, axis=2)
        is_near = distances.min(axis=1) < 0.2
        n_centers = len(set(distances.argmin(axis=1)[is_near]))
        trainer.reporter.report({"near_a_center": is_near.mean(), "centers": n_centers})

    return measure


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=40, help="passes over the 20,000 points")
    parser.add_argument("--batchsize", type=int, default=200, help="points in a global batch")
    parser.add_argument("--n-critic", type=int, default=5, help="updates of the critic per step")
    parser.add_argument("--weight", type=float, default=1.0, help="weight of the penalty")
    parser.add_argument("--latent", type=int, default=4, help="size of the random vectors")
    parser.add_argument("--units", type=int, default=64, help="units of the hidden layers")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run for only a few seconds")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.units = 2, 8
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    n = 1000 if args.test else 20000
    points = CENTERS[np.arange(n) % 8] + np.random.normal(scale=0.05, size=(n, 2))
    batches = iterators.SerialIterator(points.astype(np.float32), args.batchsize)
    batches = create_sharded_iterator(batches, comm)
    gen = make_mlp(args.latent, args.units, args.units, 2)
    critic = make_mlp(2, args.units, args.units, 1)
    both = []
    for model in (gen, critic):
        optimizer = optimizers.Adam(alpha=1e-3, beta1=0.0, beta2=0.9)
        both.append(mpchain.create_multi_node_optimizer(optimizer, comm).setup(model))
    updater = WganUpdater(batches, *both, comm, args, device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)

    for key in ("critic/distance", "critic/penalty"):
        trainer.extend(ObservationAggregator(comm, key))
    if comm.rank == 0:
        trainer.extend(measure_quality(gen, args.latent))
    columns = ["epoch", "critic/distance", "critic/penalty", "near_a_center", "centers"]
    extensions.standard_reports(trainer, columns, snapshots=(1, "epoch"), arguments=args)
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()


if __name__ == "__main__":
    main()
