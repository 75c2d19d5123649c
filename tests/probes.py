"""What the tests of the engine have in common: constant arrays, and functions that take notes."""

import numpy as np

import mpchain.functions as F
from mpchain import FunctionNode, Variable


def full(value, shape=(2,), dtype=np.float32):
    return np.full(shape, value, dtype)


class Doubled(FunctionNode):
    """y = 2 x, which counts how often it is differentiated."""

    def __init__(self):
        self.n_calls = 0

    def forward(self, inputs):
        return (inputs[0] * 2,)

    def backward(self, target_input_indexes, grad_outputs):
        self.n_calls += 1
        return (grad_outputs[0] * 2,)


class Halves(FunctionNode):
    """(x[:n], x[n:]), which notes the gradients that it is given."""

    seen = None

    def forward(self, inputs):
        n = inputs[0].size // 2
        return inputs[0][:n], inputs[0][n:]

    def backward(self, target_input_indexes, grad_outputs):
        self.seen = grad_outputs
        zeros = Variable(np.zeros(1, np.float32))
        return (F.concat([zeros if g is None else g for g in grad_outputs], 0),)


def doubled(x):
    function = Doubled()
    return function, function.apply((x,))[0]
