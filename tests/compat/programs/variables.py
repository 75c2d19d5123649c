"""Uses data, gradients and chains of Variables."""

import chainer
import chainer.functions as F
import numpy as np

x = chainer.Variable(np.array([[1.0, 2.0], [3.0, 4.0]], "f"), name="x")
y = x**2 - 2 * x + 1
y.grad = np.ones_like(y.data)
y.backward(retain_grad=True)
z = F.exp(x[0]) @ np.ones(2, "f")
z.backward()
h = F.tanh(x)
w = h * 2
h.unchain_backward()
assert h.creator is None and w.creator is not None
p = chainer.Parameter(3.0, (2, 2))
p.cleargrad()
p.grad = np.zeros((2, 2), "f")
assert x.name == "x" and str(x.label) == "(2, 2), float32" and x.T.shape == (2, 2) and len(x) == 2
print(*x.grad.ravel(), z.data, p.data.sum(), x.reshape(4).data[-1])
