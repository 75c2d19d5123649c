"""Prints the computational graph as text, and walks over it."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import computational_graph
from chainer.functions.activation.relu import ReLU
from chainer.functions.connection.convolution_2d import Convolution2DFunction
from chainer.functions.connection.linear import LinearFunction


def functions_of(variable):
    stack, seen = [variable.creator], []
    while stack:
        function = stack.pop()
        if function is not None and function not in seen:
            seen.append(function)
            stack.extend(node.creator for node in function.inputs)
    return seen


x = chainer.Variable(np.ones((1, 2, 5, 5), "f"))
y = L.Linear(None, 3)(F.relu(L.Convolution2D(2, 4, 3, pad=1, stride=2)(x)))
found = functions_of(y)
kinds = [
    sum(isinstance(f, kind) for f in found)
    for kind in (ReLU, Convolution2DFunction, LinearFunction)
]
(convolution,) = [f for f in found if isinstance(f, Convolution2DFunction)]
assert (convolution.sy, convolution.ph) == (2, 1)
dot = computational_graph.build_computational_graph([y]).dump()
assert dot.startswith("digraph graphname{") and "ReLU" in dot and "LinearFunction" in dot
print(*kinds)
