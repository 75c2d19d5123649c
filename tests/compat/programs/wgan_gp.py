"""Computes the gradient penalty of a critic."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

rng = np.random.RandomState(0)
critic = chainer.Sequential(
    L.Linear(3, 5, initialW=rng.standard_normal((5, 3)).astype("f")),
    F.leaky_relu,
    L.Linear(5, 1, initialW=rng.standard_normal((1, 5)).astype("f")),
)
real, fake = rng.standard_normal((2, 4, 3)).astype("f")
epsilon = rng.uniform(size=(4, 1)).astype("f")
x_mid = chainer.Variable(epsilon * real + (1 - epsilon) * fake)
(grad,) = chainer.grad([critic(x_mid)], [x_mid], enable_double_backprop=True)
norm = F.sqrt(F.batch_l2_norm_squared(grad))
penalty = 10 * F.mean_squared_error(norm, np.ones_like(norm.data))
critic.cleargrads()
penalty.backward()
print(
    penalty.data,
    *[abs(p.grad).sum() for _, p in sorted(critic.namedparams()) if p.grad is not None],
)
