"""Trains in a loop without a trainer, which takes columns of a dataset by a permutation."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

np.random.seed(0)
x = np.random.standard_normal((50, 4)).astype("f")
t = (x[:, 0] > 0).astype("i")
train = chainer.datasets.TupleDataset(x, t)
model = chainer.Chain(l1=L.Linear(4, 6), l2=L.Linear(6, 2))
optimizer = chainer.optimizers.SGD()
optimizer.setup(model)
losses = []
for epoch in range(2):
    perm = np.random.permutation(len(train))
    for i in range(0, len(train), 10):
        x_batch, t_batch = train[perm[i : i + 10]]
        model.cleargrads()
        y = model.l2(F.sigmoid(model.l1(chainer.Variable(x_batch))))
        loss = F.softmax_cross_entropy(y, chainer.Variable(t_batch))
        loss.backward()
        optimizer.update()
        losses.append(float(loss.data))
print(losses[0], losses[-1])
