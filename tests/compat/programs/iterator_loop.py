"""Trains in a loop over an iterator, epoch by epoch."""

import chainer
import numpy as np
from chainer import iterators, optimizers
from chainer.dataset import concat_examples

np.random.seed(4)
x = np.random.standard_normal((23, 3)).astype("f")
t = (x @ np.array([[1.0], [2.0], [-1.0]], "f")).astype("f")
train_iter = iterators.SerialIterator(chainer.datasets.TupleDataset(x, t), 5)
model = chainer.links.Linear(3, 1)
optimizer = optimizers.Adam()
optimizer.setup(model)
seen = []
while train_iter.epoch < 3:
    batch = train_iter.next()
    x_batch, t_batch = concat_examples(batch, -1)
    loss = chainer.functions.mean_squared_error(model(x_batch), t_batch)
    model.cleargrads()
    loss.backward()
    optimizer.update()
    if train_iter.is_new_epoch:
        seen.append((train_iter.epoch, len(batch), float(loss.data)))
print(*[value for entry in seen for value in entry])
