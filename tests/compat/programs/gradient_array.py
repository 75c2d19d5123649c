"""Defines an old-style function whose backward returns one array with the gradients as rows."""

import chainer
import numpy as np


class Mean(chainer.Function):
    def forward(self, inputs):
        return ((inputs[0] + inputs[1]) / 2,)

    def backward(self, inputs, grad_outputs):
        return np.stack([grad_outputs[0], grad_outputs[0] * 3])


x, y = [chainer.Variable(np.array([v, 2 * v], np.float32)) for v in (1.0, 5.0)]
chainer.functions.sum(Mean()(x, y)).backward()
print(*x.grad, *y.grad)
