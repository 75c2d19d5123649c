"""Computes a gradient as a variable with a graph, by expansion of the forward graph.

    python graph_expansion.py [--check]

This is the second snippet of NNabla's article on double backward; its output equals the output of
forward_graph.py. NNabla's bind_grad_output makes the result x.grad; mpchain has set_grad for this.
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
    (gx,) = mpchain.grad([y], [x], set_grad=True, enable_double_backprop=True)
    assert x.grad_var is gx
    print(x.grad)

    if args.check:
        ones = np.ones((2, 3))
        (numeric,) = numerical_grad(lambda: (F.sigmoid(x),), (x.array,), (ones,), eps=1e-4)
        assert_allclose(x.grad, numeric, atol=0, rtol=1e-6)
        print("finite differences agree")


if __name__ == "__main__":
    main()
