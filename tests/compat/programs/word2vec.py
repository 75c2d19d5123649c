"""Computes a loss by negative sampling, and draws from a walker alias."""

import collections

import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.utils.walker_alias import WalkerAlias

np.random.seed(0)
counts = collections.Counter(np.random.randint(0, 9, 100).tolist())
loss_func = L.NegativeSampling(4, [counts[w] for w in range(9)], 3)
loss_func.W.data[...] = np.random.standard_normal(loss_func.W.shape)
embed = L.EmbedID(9, 4, initialW=np.random.standard_normal((9, 4)).astype("f"))
e = embed(np.array([1, 2, 3], "i"))
loss = loss_func(e, np.array([2, 3, 4], "i"))
embed.cleargrads()
loss_func.cleargrads()
loss.backward()
samples = WalkerAlias([1, 2, 3, 4]).sample(1000)
hard = F.accuracy(np.eye(3, dtype="f"), np.array([0, 1, 1], "i"))
assert samples.shape == (1000,) and 0 <= samples.min() and samples.max() < 4
print(loss.data.shape == (), float(np.isfinite(embed.W.grad).all()), hard.data)
