"""Defines a FunctionNode with second derivatives."""

import chainer
import chainer.functions as F
import numpy as np
from chainer import gradient_check
from chainer.utils import type_check


class Cube(chainer.FunctionNode):
    def check_type_forward(self, in_types):
        type_check.expect(in_types.size() == 1, in_types[0].dtype.kind == "f")

    def forward(self, inputs):
        self.retain_inputs((0,))
        return (inputs[0] ** 3,)

    def backward(self, indexes, gy):
        (x,) = self.get_retained_inputs()
        return (3 * x * x * gy[0],)


x = chainer.Variable(np.array([1.0, -2.0, 3.0]))
y = F.sum(Cube().apply((x,))[0])
(gx,) = chainer.grad([y], [x], enable_double_backprop=True)
(ggx,) = chainer.grad([F.sum(gx)], [x], enable_double_backprop=True)
(gggx,) = chainer.grad([F.sum(ggx)], [x])
try:
    Cube().apply((np.arange(3),))
except type_check.InvalidType as error:
    assert "Expect" in str(error) and "Actual" in str(error)
else:
    raise AssertionError
gradient_check.check_double_backward(
    lambda x: Cube().apply((x,))[0], x.array, np.ones(3), np.ones(3), dtype=np.float64
)
print(*gx.array, *ggx.array, *gggx.array)
