"""Constant arrays and recording functions for the tests of backpropagation."""

import numpy as np

import mpchain.functions as F
from mpchain import FunctionNode, Variable


def full(value, shape=(2,), dtype=np.float32):
    return np.full(shape, value, dtype)


class Doubled(FunctionNode):
    """Computes 2 x, and counts how often it is differentiated."""

    def __init__(self):
        self.n_calls = 0

    def forward(self, inputs):
        return (inputs[0] * 2,)

    def backward(self, target_input_indexes, grad_outputs):
        self.n_calls += 1
        return (grad_outputs[0] * 2,)


class Halves(FunctionNode):
    """Returns the two halves of x, and records the gradients that its backward gets."""

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
