"""Comparison of gradients with finite differences, for the --check option of these examples."""

import numpy as np


def compare(function, arrays, gradients, n_directions=5, eps=1e-5, tolerance=1e-6):
    """Compares derivatives of a function along random directions with central differences.

    Args:
        function: takes nothing and computes a number from the arrays, as they are then.
        arrays: list of float64 arrays; they are moved in place, and put back.
        gradients: list of arrays, the gradients that are claimed.
        n_directions (int): how many directions are tried.
        eps (float): length of the steps.
        tolerance (float): on the largest error, relative to the largest derivative.

    Raises:
        SystemExit: they differ.
    """
    random = np.random.RandomState(0)
    exact, numeric = [], []
    for _ in range(n_directions):
        directions = [random.standard_normal(x.shape) for x in arrays]
        exact.append(sum((g * v).sum() for g, v in zip(gradients, directions)))
        ends = [_moved(function, arrays, directions, step) for step in (eps, -eps)]
        numeric.append((ends[0] - ends[1]) / (2 * eps))
    error = np.abs(np.subtract(exact, numeric)).max() / np.abs(exact).max()
    print(f"finite differences along {n_directions} directions: relative error {error:.1e}")
    if not error < tolerance:
        raise SystemExit(f"the gradients are wrong: {exact}, but numerically {numeric}")


def _moved(function, arrays, directions, step):
    kept = [x.copy() for x in arrays]
    for x, v in zip(arrays, directions):
        x += step * v
    value = float(function())
    for x, old in zip(arrays, kept):
        x[...] = old
    return value
