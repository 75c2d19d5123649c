"""Random programs that are composed of rows of the tables of functions.

A program maps its input by a layer, then by functions of random rows, one after another: the
outputs of a function are reshaped, and squashed into the domain of the next function. A program is
trained by gradients or by gradients of gradients.
"""

import functools
import math

import numpy as np

import mpchain
import mpchain.functions as F
from mpchain import Variable, optimizers
from tests.captured.tables import Case, tables_of_functions

# The row of cast converts to float32, and later functions magnify its rounding.
_LEFT_OUT = {"cast"}
_SHAPE = (3, 4)


@functools.cache
def _rows():
    return [
        case
        for rows in tables_of_functions().values()
        for case in rows
        if case.orders >= 2 and case.name not in _LEFT_OUT and case.shapes
    ]


def _adapted(v, shape, case):
    """Converts a value to an input of a row: gives it the shape and the domain of that input."""
    n = math.prod(shape)
    flat = F.reshape(v, (v.size,))
    flat = F.tile(flat, -(-n // v.size))[:n] if v.size < n else flat[:n]
    # The values stay away from the borders of the domain, and so from poles.
    return F.reshape(F.sigmoid(flat) * ((case.high - case.low) * 0.8), shape) + (
        case.low + 0.1 * (case.high - case.low)
    )


def _applied(case, values):
    """Returns the floating-point outputs of a row, given earlier values, the latest value first."""
    xs = [
        _adapted(values[-1 - i % len(values)], shape, case) for i, shape in enumerate(case.shapes)
    ]
    ys = case.function(*xs)
    ys = ys if isinstance(ys, (tuple, list)) else (ys,)
    return [y for y in ys if isinstance(y, Variable) and y.dtype.kind == "f" and y.size]


def program(seed: int) -> Case:
    """Makes the program for a seed.

    Args:
        seed: a number.
    """
    random = np.random.RandomState(seed)
    rows = _rows()
    chosen = [rows[i] for i in random.choice(len(rows), random.randint(2, 6), replace=False)]
    order = random.randint(1, 3)

    def make():
        with mpchain.using_config("dtype", np.float64):
            link = mpchain.links.Linear(4, 4, initialW=np.random.RandomState(seed).randn(4, 4))
        optimizer = optimizers.MomentumSGD(1e-3).setup(link)
        optimizer.add_hook(mpchain.optimizer_hooks.GradientClipping(1.0))

        def step(x):
            x = Variable(x)
            values = [F.tanh(link(x))]
            for case in chosen:
                values += _applied(case, values)
            terms = [F.mean(F.tanh(v)) for v in values]
            loss = F.add(*terms)
            if order == 2:
                (gx,) = mpchain.grad([loss], [x], enable_double_backprop=True)
                loss = loss + F.mean(F.tanh(gx))
            link.cleargrads()
            loss.backward()
            optimizer.update()
            return loss

        return step, lambda: [link.W.array, link.b.array]

    def draw(seed):
        return [np.random.RandomState(seed).randn(*_SHAPE)]

    name = f"program {seed}, order {order}: {', '.join(case.name for case in chosen)}"
    return Case("programs", name, make, draw)
