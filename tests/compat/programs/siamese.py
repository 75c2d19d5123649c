"""Computes a contrastive loss with shared weights."""

import chainer.functions as F
import chainer.links as L
import numpy as np

rng = np.random.RandomState(0)
net = L.Linear(3, 2, initialW=rng.standard_normal((2, 3)).astype("f"))
x0, x1 = rng.standard_normal((2, 4, 3)).astype("f")
loss = F.contrastive(net(x0), net(x1), np.array([0, 1, 1, 0], "i"), margin=1)
triplet = F.triplet(net(x0), net(x1), net(x0[::-1].copy()))
net.cleargrads()
(loss + triplet).backward()
print(loss.data, triplet.data, *net.W.grad.ravel())
