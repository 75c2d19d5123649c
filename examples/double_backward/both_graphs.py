"""Backpropagation on the backward and the forward graph: a penalty on the norm of a gradient.

    python both_graphs.py [--check]

The third snippet of NNabla's article on double backward: the one-centred penalty, as in WGAN-GP,
which asks that the gradient of y in each image has norm one.
"""

import argparse

import numpy as np
from finite_differences import compare

import mpchain
import mpchain.functions as F


def one_centred_penalty(x):
    y = F.sigmoid(x)
    grads = mpchain.grad([y], [x], enable_double_backprop=True)
    norms = [F.sum(g**2.0, axis=(1, 2, 3)) ** 0.5 for g in grads]
    return sum(F.mean((norm - 1.0) ** 2.0) for norm in norms)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()

    rng = np.random.RandomState(313)
    b, c, h, w = 16, 3, 32, 32
    x = mpchain.Variable(rng.randn(b, c, h, w))
    gp = one_centred_penalty(x)
    gp.backward()
    print(x.grad)

    if args.check:
        compare(lambda: one_centred_penalty(x).array, [x.array], [x.grad])


if __name__ == "__main__":
    main()
