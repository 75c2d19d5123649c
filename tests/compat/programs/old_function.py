"""Defines an old-style Function that returns a list of gradients."""

import chainer
import numpy as np


class MulAdd(chainer.Function):
    def forward(self, inputs):
        x, y, z = inputs
        return (x * y + z,)

    def backward(self, inputs, grad_outputs):
        x, y, z = inputs
        (gw,) = grad_outputs
        return [y * gw, x * gw, gw]


x, y, z = [
    chainer.Variable(np.random.RandomState(i).uniform(-1, 1, (3, 2)).astype("f")) for i in range(3)
]
w = MulAdd()(x, y, z)
w.grad = np.ones((3, 2), dtype=np.float32)
w.backward()
assert isinstance(w.creator, MulAdd)
print(w.data.sum(), x.grad.sum(), y.grad.sum(), z.grad.sum())
