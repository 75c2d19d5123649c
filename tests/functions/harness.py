"""Checks that every differentiable function must pass, at any order."""

import numpy as np

import mpchain
from mpchain.gradient_check import check_order


def check_orders(function, arrays, orders=3, device="@numpy", eps=1e-3, tolerance=1e-6):
    """Compares the derivatives of each order with finite differences of the previous order."""
    arrays = tuple(mpchain.get_device(device).send(x) for x in arrays)
    for n in range(1, orders + 1):
        check_order(function, arrays, n, eps=eps, atol=tolerance, rtol=tolerance)


def weighted_sum(function, arrays, seed=1):
    """Returns a scalar function: the sum of the outputs of ``function`` with fixed random
    weights."""
    random = np.random.RandomState(seed)
    weights = []

    def scalar(*xs):
        ys = function(*xs)
        ys = ys if isinstance(ys, tuple) else (ys,)
        if not weights:
            weights.extend(random.uniform(0.5, 1.5, y.shape) for y in ys)
        send = ys[0].device.send
        terms = [mpchain.functions.sum(y * send(w)) for y, w in zip(ys, weights)]
        return mpchain.functions.add(*terms)

    return scalar
