"""Computes the loss and the best paths of a conditional random field over sequences."""

import chainer.functions as F
import chainer.links as L
import numpy as np

rng = np.random.RandomState(0)
crf = L.CRF1d(3)
crf.cost.data[...] = rng.standard_normal((3, 3))
xs = [rng.standard_normal((n, 3)).astype("f") for n in (4, 3, 2)]
ys = [rng.randint(0, 3, n).astype("i") for n in (4, 3, 2)]
xs_t = F.transpose_sequence(xs)
ys_t = F.transpose_sequence(ys)
loss = crf(xs_t, ys_t)
crf.cleargrads()
loss.backward()
score, path = crf.argmax(xs_t)
print(loss.data, abs(crf.cost.grad).sum(), score.data.sum(), sum(int(p.sum()) for p in path))
