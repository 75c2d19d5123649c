"""Passes None to a function, and reads the mode inside a function that F.forget calls."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np


class Masked(chainer.FunctionNode):
    """Doubles x where a mask is 1; the mask may be None."""

    def check_type_forward(self, in_types):
        chainer.utils.type_check.expect(in_types.size() == 2)

    def forward(self, inputs):
        x, mask = inputs
        self.retain_inputs((1,))
        return ((2 * x if mask is None else 2 * x * mask),)

    def backward(self, indexes, grad_outputs):
        (mask,) = self.get_retained_inputs()
        return 2 * grad_outputs[0], None


class Old(chainer.Function):
    def forward(self, inputs):
        return (3 * inputs[0],)

    def backward(self, inputs, grad_outputs):
        return 3 * grad_outputs[0], None


x = chainer.Variable(np.ones(2, "f"))
(y,) = Masked().apply((x, None))
nodes = y.creator_node.inputs
F.sum(y).backward()
empty = chainer.as_variable(None)
words = [*x.grad, *(n.requires_grad for n in nodes), nodes[1].data, empty.array]
x.cleargrad()
F.sum(Old()(x, None)).backward()
words += [*x.grad]

linear = L.Linear(2, 2, initialW=1)
linear.cleargrads()


def forward(x):
    modes = [bool(chainer.config.enable_backprop), bool(chainer.config.in_recomputing)]
    modes += [chainer.config.enable_backprop == False]  # noqa: E712
    if not chainer.config.enable_backprop:
        modes += ["plain"]
    with chainer.force_backprop_mode():
        modes += [bool(chainer.config.enable_backprop)]
    words.extend(modes)
    return F.tanh(linear(x) / 10)


x = chainer.Variable(np.ones((1, 2), "f"))
y = F.forget(forward, x)
words.append(bool(chainer.config.enable_backprop))
F.sum(y).backward()
print(*words, *linear.W.grad.ravel(), *x.grad.ravel())
