"""Computes a gradient by backpropagation on the forward graph, the usual way.

    python forward_graph.py [--check]

This is the first snippet of NNabla's article on double backward. With --check, the gradient is
compared with finite differences.
"""

import argparse

import numpy as np

import mpchain
import mpchain.functions as F
from mpchain.gradient_check import assert_allclose, numerical_grad


def main() -> None:
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
        ones = np.ones((2, 3))
        (numeric,) = numerical_grad(lambda: (F.sigmoid(x),), (x.array,), (ones,), eps=1e-4)
        assert_allclose(x.grad, numeric, atol=0, rtol=1e-6)
        print("finite differences agree")


if __name__ == "__main__":
    main()
