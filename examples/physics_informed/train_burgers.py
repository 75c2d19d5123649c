"""Solves Burgers' equation with a network whose loss is the equation itself.

    python train_burgers.py                     one process
    mpchain-launch -n 2 train_burgers.py        two ranks, the same numbers

The network u(t, x) is to satisfy u_t + u u_x = nu u_xx for 0 < t < 1 and -1 < x < 1, with
u(0, x) = -sin(pi x) and u(t, -1) = u(t, 1) = 0. The derivatives of u are computed by backward, not
by differences; the loss needs the third order: the gradient of u_xx in the parameters. Each rank
has its part of the points at which the equation is to hold.

See M. Raissi et al., Physics-informed neural networks, Journal of Computational Physics, 2019.
"""

import argparse

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, iterators, optimizers, serializers, training
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.training import extensions
from mpchain.typing import Array

NU = 0.1 / np.pi


class Solution(mpchain.Chain):
    """The network u(t, x), and the loss."""

    def __init__(self, n_units: int):
        super().__init__()
        with self.init_scope():
            self.layers = mpchain.Sequential(
                L.Linear(2, n_units), F.tanh, L.Linear(n_units, n_units), F.tanh,
                L.Linear(n_units, n_units), F.tanh, L.Linear(n_units, 1),
            )  # fmt: skip

    def u(self, t: Array | Variable, x: Array | Variable) -> Variable:
        """Returns u (N, 1) at t and x (N, 1)."""
        return self.layers(F.concat([t, x], axis=1))

    def residual(self, t: Array, x: Array) -> Variable:
        """Returns u_t + u u_x - nu u_xx (N, 1), which is to be zero."""
        t, x = Variable(t), Variable(x)
        u = self.u(t, x)
        u_t, u_x = mpchain.grad([u], [t, x], enable_double_backprop=True)
        (u_xx,) = mpchain.grad([u_x], [x], enable_double_backprop=True)
        return u_t + u * u_x - NU * u_xx

    def forward(self, points: Array) -> Variable:
        """Returns the loss of points (N, 4): t and x inside, x at the start, t at the edges."""
        t, x, x_start, t_edge = (points[:, i : i + 1] for i in range(4))
        one = self.xp.ones_like(t)
        equation = F.mean(self.residual(t, x) ** 2)
        start = F.mean((self.u(0 * one, x_start) + self.xp.sin(np.pi * x_start)) ** 2)
        edges = F.mean(self.u(t_edge, -one) ** 2 + self.u(t_edge, one) ** 2)
        loss = equation + 10 * (start + edges)
        mpchain.report({"loss": loss, "equation": equation, "start": start, "edges": edges}, self)
        return loss


def draw_points(n: int) -> Array:
    """Returns points (n, 4), float32; see Solution.forward."""
    t, x_start = np.random.uniform(0, 1, n), np.random.uniform(-1, 1, n)
    x, t_edge = np.random.uniform(-1, 1, n), np.random.uniform(0, 1, n)
    return np.stack([t, x, x_start, t_edge], axis=1).astype(np.float32)


def exact(t: float, x: Array) -> Array:
    """Returns the solution at one time by the Cole-Hopf transformation, an integral."""
    nodes, weights = np.polynomial.hermite.hermgauss(100)
    shift = 2 * np.sqrt(NU * t) * nodes
    y = x[:, None] - shift
    weights = weights * np.exp(-np.cos(np.pi * y) / (2 * np.pi * NU))
    return -(np.sin(np.pi * y) * weights).sum(axis=1) / weights.sum(axis=1)


def report_error(model: Solution):
    """Returns an extension that reports the largest error at t = 0.5."""
    x = np.linspace(-1, 1, 101)
    expected = exact(0.5, x)
    column = x[:, None].astype(np.float32)

    @training.make_extension(trigger=(1, "epoch"), priority=training.PRIORITY_WRITER)
    def measure(trainer: training.Trainer) -> None:
        x = model.xp.asarray(column)
        with mpchain.no_backprop_mode():
            u = mpchain.backends.cuda.to_cpu(model.u(0 * x + 0.5, x).array)
        mpchain.report({"largest_error": abs(u[:, 0] - expected).max()})

    return measure


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=150, help="sweeps over the points")
    parser.add_argument("--points", type=int, default=4000, help="number of points")
    parser.add_argument("--batchsize", type=int, default=200, help="points in a global batch")
    parser.add_argument("--units", type=int, default=32, help="units of the hidden layers")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="a few seconds with few points")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.points, args.batchsize, args.units = 3, 100, 20, 8
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    batches = iterators.SerialIterator(draw_points(args.points), args.batchsize)
    batches = create_sharded_iterator(batches, comm)
    model = Solution(args.units).to_device(device)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(alpha=2e-3), comm).setup(model)
    updater = MultiNodeUpdater(batches, optimizer, comm, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    n_updates = args.epoch * args.points // args.batchsize
    trainer.extend(extensions.CosineShift("alpha", n_updates))
    if comm.rank == 0:
        trainer.extend(report_error(model))
    columns = ["epoch", "main/equation", "main/start", "main/edges", "largest_error"]
    extensions.standard_reports(
        trainer, [*columns, "elapsed_time"], snapshots=(1, "epoch"), arguments=args
    )
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()


if __name__ == "__main__":
    main()
