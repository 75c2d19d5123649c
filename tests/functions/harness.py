"""Checks that any differentiable function must pass, at any order."""

import numpy as np

import mpchain
from mpchain import Variable


def directional(function, arrays, directions, device="@numpy"):
    """Returns the derivative of a scalar function along directions, one more per order.

    With D f = <grad f, v>, the list is [f, D f, D D f, ...]: one entry more than there are directions.

    Args:
        function: takes Variables, returns a scalar Variable.
        arrays: where to differentiate.
        directions: for each order, one array per input.
    """
    send = mpchain.get_device(device).send
    xs = [Variable(send(x)) for x in arrays]
    value = function(*xs)
    values = [value]
    for vs in directions:
        gradients = mpchain.grad([value], xs, enable_double_backprop=True)
        terms = [
            mpchain.functions.sum(g * send(v)) for g, v in zip(gradients, vs) if g is not None
        ]
        value = mpchain.functions.add(*terms) if terms else None
        values.append(value)
        if value is None:
            break
    return [0.0 if v is None else float(v.array) for v in values]


def check_orders(function, arrays, orders=3, device="@numpy", eps=1e-3, tolerance=1e-6, seed=0):
    """Compares each order's directional derivative with differences of the order below.

    A five-point rule: its error is of order eps ** 4. The scale of the tolerance is that of the compared
    values, or of the function's own, so that a derivative that is zero passes when it is nearly zero.
    """
    random = np.random.RandomState(seed)
    directions = [[random.uniform(-1, 1, x.shape) for x in arrays] for _ in range(orders)]

    def at(step, order):
        moved = [x + step * v for x, v in zip(arrays, directions[order])]
        values = directional(function, moved, directions[:order], device)
        return values[order] if order < len(values) else 0.0

    exact = directional(function, arrays, directions, device)
    exact += [0.0] * (orders + 1 - len(exact))
    for order in range(orders):
        near = at(eps, order) - at(-eps, order)
        far = at(2 * eps, order) - at(-2 * eps, order)
        numeric = (8 * near - far) / (12 * eps)
        scale = max(1.0, abs(numeric), abs(exact[order]))
        error = abs(numeric - exact[order + 1]) / scale
        assert error < tolerance, f"order {order + 1}: {exact[order + 1]} but numerically {numeric}"


def weighted_sum(function, arrays, seed=1):
    """Makes a scalar function of ``function`` by fixed random weights on its outputs."""
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
