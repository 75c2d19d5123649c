"""Backpropagation on the forward graph: the usual way.

    python forward_graph.py [--check]

The first snippet of NNabla's article on double backward; with --check, the gradient is compared
with finite differences.
"""

import argparse

import numpy as np
from finite_differences import compare

import mpchain
import mpchain.functions as F


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()

    rng = np.random.RandomState(313)
    x = mpchain.Variable(rng.randn(2, 3))
    y = F.sigmoid(x)
    y.grad = np.ones_like(y.array)
    y.backward()
    print(x.grad)

    if args.check:
        compare(lambda: F.sum(F.sigmoid(x)).array, [x.array], [x.grad])


if __name__ == "__main__":
    main()
