"""Computes a penalty on a gradient's norm by backpropagation on the backward and forward graphs.

    python both_graphs.py [--check]

This is the third snippet of NNabla's article on double backward: the one-centered penalty of
WGAN-GP, which pushes the norm of the gradient of y at each image towards one.
"""

import argparse

import numpy as np

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.gradient_check import check_backward


def one_centered_penalty(x: Variable) -> Variable:
    y = F.sigmoid(x)
    grads = mpchain.grad([y], [x], enable_double_backprop=True)
    norms = [F.sum(g**2.0, axis=(1, 2, 3)) ** 0.5 for g in grads]
    return sum(F.mean((norm - 1.0) ** 2.0) for norm in norms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()

    rng = np.random.RandomState(313)
    b, c, h, w = 16, 3, 32, 32
    x = Variable(rng.randn(b, c, h, w))
    gp = one_centered_penalty(x)
    gp.backward()
    print(x.grad)

    if args.check:
        # The check uses one random direction, because there are 49,152 elements.
        check_backward(one_centered_penalty, x.array, None, eps=1e-3, atol=0, rtol=1e-6)
        print("finite differences agree")


if __name__ == "__main__":
    main()
