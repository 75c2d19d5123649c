"""Backpropagation by expansion of the forward graph: the gradient is a variable with a graph.

    python graph_expansion.py [--check]

The second snippet of NNabla's article on double backward: it prints what forward_graph.py does.
There, bind_grad_output makes the result x.grad; here set_grad does.
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
    (gx,) = mpchain.grad([y], [x], set_grad=True, enable_double_backprop=True)
    assert x.grad_var is gx
    print(x.grad)

    if args.check:
        compare(lambda: F.sum(F.sigmoid(x)).array, [x.array], [x.grad])


if __name__ == "__main__":
    main()
