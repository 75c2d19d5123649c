"""Prints the directions of a seeded gradient check, and runs a test that requires a version of
Chainer."""

import chainer
import numpy as np
from chainer import gradient_check, testing

seen = []


def note(*xs):
    seen.append([x.array.copy() for x in xs])
    return sum(x * x for x in xs)


def moves(first, *others):
    return [
        value
        for ys in others
        for x, y in zip(first, ys)
        for value in np.round((y - x).ravel() * 1e3, 4)
        if value
    ]


x, gy = np.array([[1.0, 2.0], [3.0, 4.0]]), np.ones((2, 2))
np.random.seed(3)
gradient_check.check_backward(note, (x, x + 1), gy, atol=1)
printed = moves(*seen)
seen.clear()
np.random.seed(3)
gradient_check.check_backward(lambda y: note(y) * chainer.Variable(gy), x, gy, atol=1)
printed += moves(*seen)
seen.clear()
gradient_check.check_double_backward(lambda y: note(y) * y, x, gy, gy, atol=1)
printed += moves(*seen)


@testing.with_requires("chainer>=5", "numpy")
def needed():
    return 1


@testing.without_requires("chainer>=7.9")
def lacking():
    return 2


print(*printed, needed(), lacking(), np.random.rand())
