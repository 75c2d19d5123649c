"""Computes numerical gradients."""

import chainer.functions as F
import numpy as np
from chainer import gradient_check, testing

rng = np.random.RandomState(0)
x, W, b = rng.standard_normal((2, 3)), rng.standard_normal((4, 3)), rng.standard_normal(4)
gy = rng.standard_normal((2, 4))
gradient_check.check_backward(F.linear, (x, W, b), gy, dtype=np.float64, atol=1e-4, rtol=1e-4)
f = lambda: (x**3,)
(gx,) = gradient_check.numerical_grad(f, (x,), (np.ones_like(x),))
testing.assert_allclose(gx, 3 * x**2, atol=1e-3)
try:
    gradient_check.check_backward(
        lambda x: F.identity(x) * x.array, (x,), np.ones_like(x), dtype=np.float64
    )
except AssertionError:
    failed = 1
else:
    failed = 0
print(failed, gx.sum())
