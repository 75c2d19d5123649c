"""Prints the nodes below F.scale and F.bias, and the numbers that a Gaussian has drawn."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np


def walk(y):
    """Returns the functions below a Variable, with the shapes of their inputs."""
    found, todo = [], [y.creator_node]
    while todo:
        f = todo.pop()
        found.append(f)
        todo += [x.creator_node for x in f.inputs if x.creator_node is not None]
    shapes = [":".join("x".join(map(str, x.shape)) for x in f.inputs) for f in found]
    return sorted(f"{type(f).__name__}:{f.rank}:{s}" for f, s in zip(found, shapes))


def given(*shape):
    return chainer.Variable(np.random.RandomState(0).rand(*shape).astype(np.float32) + 0.1)


x, y = given(2, 3, 4), given(3)
shown = []
for function in (F.scale, F.bias):
    z = function(x, y, axis=1)
    z.grad = x.array
    z.backward()
    shown += walk(z) + [z.array.sum(), y.grad.sum(), x.grad.sum()]
    shown += walk(function(given(2, 3), given(2), axis=0))
    shown += walk(function(given(2, 3), given(2, 3), axis=0))
    x.cleargrad(), y.cleargrad()
shown += walk(L.Scale(1, (3,), bias_term=True)(x)) + walk(L.Bias(1, (3,))(x))

mean, ln_var = given(2, 3), given(2, 3)
np.random.seed(0)
creator = F.gaussian(mean, ln_var).creator_node
shown += [creator.eps.sum(), creator.noise.sum()]
z, eps = F.gaussian(mean, ln_var, eps=np.ones((2, 3), np.float32), return_eps=True)
shown += [int(z.creator_node.eps is eps), eps.sum(), z.creator_node.noise.sum()]
print(*shown)
