"""Solves Burgers' equation with a network whose loss is the equation itself.

    python train_burgers.py                     one process
    mpchain-launch -n 2 train_burgers.py        two ranks, the same numbers

The function u(t, x) must satisfy u_t + u u_x = nu u_xx for 0 < t < 1 and -1 < x < 1, with
u(0, x) = -sin(pi x) and u(t, -1) = u(t, 1) = 0; every network satisfies these conditions.
Backpropagation, not finite differences, computes the derivatives of u. Training needs the third
order: the gradient of u_xx with respect to the parameters. Adam, with batches of points, finds the
shape of the solution; then L-BFGS, with all points, finds further digits. The ranks divide the
points.

See M. Raissi et al., Physics-informed neural networks, Journal of Computational Physics, 2019.
"""

import argparse

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, iterators, optimizers, serializers, training
from mpchain.distributed import CommunicatorBase, MultiNodeUpdater, create_sharded_iterator
from mpchain.training import extensions
from mpchain.typing import Array

NU = 0.1 / np.pi


class Solution(mpchain.Chain):
    """The function u(t, x), and the loss of points."""

    def __init__(self, n_units: int):
        super().__init__()
        with self.init_scope():
            self.layers = mpchain.Sequential(
                L.Linear(2, n_units), F.tanh, L.Linear(n_units, n_units), F.tanh,
                L.Linear(n_units, n_units), F.tanh, L.Linear(n_units, 1),
            )  # fmt: skip

    def u(self, t: Array | Variable, x: Array | Variable) -> Variable:
        """Returns u (N, 1) at t and x (N, 1); u is exact at the start and at the edges."""
        return t * (1 - x**2) * self.layers(F.concat([t, x], axis=1)) - F.sin(np.pi * x)

    def residual(self, t: Array, x: Array) -> Variable:
        """Returns u_t + u u_x - nu u_xx (N, 1), which should be zero."""
        t, x = Variable(t), Variable(x)
        u = self.u(t, x)
        u_t, u_x = mpchain.grad([u], [t, x], enable_double_backprop=True)
        (u_xx,) = mpchain.grad([u_x], [x], enable_double_backprop=True)
        return u_t + u * u_x - NU * u_xx

    def forward(self, points: Array) -> Variable:
        """Returns the loss of points (N, 2): t and x."""
        loss = F.mean(self.residual(points[:, :1], points[:, 1:]) ** 2)
        mpchain.report({"loss": loss}, self)
        return loss


def exact(t: float, x: Array) -> Array:
    """Returns the solution at one time, as an integral (the Cole-Hopf transformation)."""
    nodes, weights = np.polynomial.hermite.hermgauss(100)
    shift = 2 * np.sqrt(NU * t) * nodes
    y = x[:, None] - shift
    weights = weights * np.exp(-np.cos(np.pi * y) / (2 * np.pi * NU))
    return -(np.sin(np.pi * y) * weights).sum(axis=1) / weights.sum(axis=1)


def on_grid(model: Solution, ts: Array, xs: Array) -> Array:
    """Returns u at all pairs of ts and xs: (len(ts), len(xs))."""
    t, x = (model.xp.asarray(v.reshape(-1, 1)) for v in np.meshgrid(ts, xs, indexing="ij"))
    with mpchain.no_backprop_mode():
        u = mpchain.backends.cuda.to_cpu(model.u(t, x).array)
    return u.reshape(len(ts), len(xs))


def error_of(model: Solution) -> float:
    """Returns the error relative to the solution, in the L2 norm."""
    ts, xs = np.linspace(0.05, 1, 20), np.linspace(-1, 1, 201)
    expected = np.stack([exact(t, xs) for t in ts])
    return float(np.linalg.norm(on_grid(model, ts, xs) - expected) / np.linalg.norm(expected))


def report_error(model: Solution, trigger: tuple[int, str]):
    """Returns an extension that reports the error."""

    @training.make_extension(trigger=trigger, priority=training.PRIORITY_WRITER)
    def measure(trainer: training.Trainer) -> None:
        mpchain.report({"error": error_of(model)})

    return measure


def minimize(model: Solution, comm: CommunicatorBase, points: Array, n_steps: int) -> None:
    """Takes steps of L-BFGS, with all points, and prints the error at intervals."""
    lbfgs = optimizers.LBFGS(memory=50, max_iter=max(1, n_steps // 8))
    optimizer = mpchain.create_multi_node_optimizer(lbfgs, comm).setup(model)
    for step in range(lbfgs.max_iter, n_steps + 1, lbfgs.max_iter):
        with comm.batch(len(points)) as mine:
            optimizer.update(model, points[mine])
        if comm.rank == 0:
            print(f"L-BFGS {step:4}   error {error_of(model):.4g}")


def show(model: Solution) -> None:
    """Prints u, with t from left to right and x from bottom to top, dark where u is negative."""
    u = on_grid(model, np.linspace(0, 1, 60), np.linspace(1, -1, 17))
    for row in u.T:
        print("".join("@%#*+=-:. "[int(4.99 * (value.clip(-1, 1) + 1))] for value in row))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=100, help="passes over the points by Adam")
    parser.add_argument("--steps", type=int, default=800, help="steps of L-BFGS thereafter")
    parser.add_argument("--points", type=int, default=1500, help="number of points")
    parser.add_argument("--batchsize", type=int, default=300, help="points in a global batch")
    parser.add_argument("--units", type=int, default=24, help="units of the hidden layers")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds with few points")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.steps, args.points, args.batchsize, args.units = 3, 4, 100, 20, 8
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)
    mpchain.config.dtype = np.float64

    points = np.random.uniform([0, -1], 1, (args.points, 2))
    model = Solution(args.units).to_device(device)

    batches = create_sharded_iterator(iterators.SerialIterator(points, args.batchsize), comm)
    adam = optimizers.Adam(alpha=2e-3)
    optimizer = mpchain.create_multi_node_optimizer(adam, comm).setup(model)
    updater = MultiNodeUpdater(batches, optimizer, comm, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    trainer.extend(extensions.CosineShift("alpha", args.epoch * args.points // args.batchsize))
    trigger = max(1, args.epoch // 5), "epoch"
    if comm.rank == 0:
        trainer.extend(report_error(model, trigger))
    columns = ["epoch", "main/loss", "error", "elapsed_time"]
    extensions.standard_reports(
        trainer, columns, trigger=trigger, snapshots=trigger, arguments=args
    )
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()
    minimize(model, comm, model.xp.asarray(points), args.steps)
    if comm.rank == 0:
        show(model)


if __name__ == "__main__":
    main()
