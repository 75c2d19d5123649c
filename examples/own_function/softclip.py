"""Declares functions with their derivatives, checks the derivatives, and trains with one function.

    python softclip.py                          one process
    mpchain-launch -n 2 softclip.py             two ranks, the same numbers

The script shows three ways: an elementwise function and its derivative as formulas, which become
one kernel on a GPU; any function of arrays with its vector-Jacobian product; and a class, which the
other two ways make internally.
"""

import argparse
import pathlib

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import FunctionNode, Variable, gradient_check, optimizers, serializers
from mpchain.typing import Array

# 1. This is an elementwise function. The first argument of its derivative is the gradient of the
# output; the other arguments are inputs, constants, or y, the output. Derivatives are formulas,
# too, so all orders exist.


@mpchain.elementwise(lambda g, x: g / (1 + x * x) ** 1.5)
def softclip(x):
    """Returns x / sqrt(1 + x^2), which is between -1 and 1."""
    return x / (1 + x * x) ** 0.5


# 2. Any function of arrays can be declared. NumPy's functions in derivatives also take Variables.


@mpchain.differentiable(
    lambda g, W: np.matmul(g, W),
    lambda g, x: np.matmul(np.swapaxes(g, 0, 1), x),
)
def affine(x, W):
    """Returns x (N, n_in) times the transpose of W (n_out, n_in)."""
    return x.dot(W.T)


# 3. A class is the most general way, for functions that need more than a formula.


class Cube(FunctionNode):
    """Computes x^3."""

    def forward(self, inputs: tuple[Array]) -> tuple[Array]:
        self.retain_inputs((0,))
        (x,) = inputs
        return (x * x * x,)

    def backward(self, indexes: tuple, grad_outputs: tuple) -> tuple[Variable]:
        (x,) = self.get_retained_inputs()
        (gy,) = grad_outputs
        return (3 * x * x * gy,)


def cube(x: Array | Variable) -> Variable:
    """Returns x^3."""
    return Cube().apply((x,))[0]


def check() -> None:
    """Compares derivatives of first, second and third order with finite differences; for affine,
    only those of first order."""
    random = np.random.RandomState(0)
    x, gy, ggx = random.uniform(-2, 2, (3, 4, 3))
    W = random.uniform(-1, 1, (2, 3))
    for function in (softclip, cube):
        gradient_check.check_backward(function, x, gy, rtol=1e-4, atol=1e-5)
        gradient_check.check_double_backward(function, x, gy, ggx, rtol=1e-4, atol=1e-5)

        def slope(x, function=function):
            (gx,) = mpchain.grad([function(x)], [x], enable_double_backprop=True)
            return gx

        gradient_check.check_double_backward(slope, x, gy, ggx, rtol=1e-4, atol=1e-4)
    gradient_check.check_backward(affine, (x, W), random.uniform(-1, 1, (4, 2)), rtol=1e-4)


class Net(mpchain.Chain):
    """A network with softclip as its activation."""

    def __init__(self, n_units: int):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(1, n_units)
            self.l2 = L.Linear(n_units, 1)

    def forward(self, x: Array) -> Variable:
        return self.l2(softclip(self.l1(x)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iteration", type=int, default=1000, help="number of updates")
    parser.add_argument("--out", default="result", help="folder of the model")
    parser.add_argument("--resume", help="model to resume from")
    parser.add_argument("--test", action="store_true", help="a few updates only")
    args = parser.parse_args()
    if args.test:
        args.iteration = 20
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    np.random.seed(0)
    check()
    if comm.rank == 0:
        print("finite differences agree")

    model = Net(32)
    if args.resume:
        serializers.load_npz(args.resume, model)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(alpha=0.01), comm).setup(model)
    for _ in range(args.iteration):
        x = np.random.uniform(-3, 3, (60, 1)).astype(np.float32)
        with comm.batch(len(x)) as mine:
            optimizer.update(lambda x: F.mean_squared_error(model(x), np.sin(x)), x[mine])
    x = np.linspace(-3, 3, 7, dtype=np.float32)[:, None]
    if comm.rank == 0:
        print("sine of x:  ", *(f"{value:6.3f}" for value in np.sin(x[:, 0])))
        print("network:    ", *(f"{value:6.3f}" for value in model(x).array[:, 0]))
        pathlib.Path(args.out).mkdir(parents=True, exist_ok=True)
        serializers.save_npz(f"{args.out}/model.npz", model)


if __name__ == "__main__":
    main()
