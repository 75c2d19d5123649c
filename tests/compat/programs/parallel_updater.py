"""Divides one batch among devices, here twice the CPU."""

import chainer
import chainer.links as L
import numpy as np
from chainer import training

np.random.seed(0)
x = np.random.standard_normal((8, 3)).astype("f")
data = chainer.datasets.TupleDataset(x, (x[:, 0] > 0).astype("i"))
model = L.Classifier(L.Linear(3, 2))
optimizer = chainer.optimizers.SGD(0.1)
optimizer.setup(model)
iterator = chainer.iterators.SerialIterator(data, 4, shuffle=False)
updater = training.updaters.ParallelUpdater(iterator, optimizer, devices={"main": -1, "second": -2})
trainer = training.Trainer(updater, (2, "epoch"))
trainer.run()
# Chainer added the devices' gradients; mpchain takes their mean, as one device would.
assert np.isfinite(model.predictor.W.data).all()
print(updater.iteration, updater.epoch)
