"""Saves a run, and resumes it."""

import chainer
import chainer.links as L
import numpy as np
from chainer import serializers, training
from chainer.training import extensions


def make(n):
    np.random.seed(3)
    x = np.random.standard_normal((12, 3)).astype("f")
    t = x.sum(axis=1, keepdims=True)
    model = L.Classifier(L.Linear(3, 1), lossfun=chainer.functions.mean_squared_error)
    model.compute_accuracy = False
    optimizer = chainer.optimizers.MomentumSGD(lr=0.05)
    optimizer.setup(model)
    iterator = chainer.iterators.SerialIterator(
        chainer.datasets.TupleDataset(x, t), 4, shuffle=False
    )
    trainer = training.Trainer(
        training.StandardUpdater(iterator, optimizer), (n, "epoch"), out="out"
    )
    trainer.extend(extensions.snapshot(), trigger=(1, "epoch"))
    trainer.extend(
        extensions.snapshot_object(model, "model_{.updater.iteration}"), trigger=(1, "epoch")
    )
    return trainer, model


trainer, _ = make(2)
trainer.run()
resumed, model = make(4)
serializers.load_npz("out/snapshot_iter_6", resumed)
resumed.run()
whole, expected = make(4)
whole.run()
assert np.array_equal(model.predictor.W.data, expected.predictor.W.data)
serializers.load_npz("out/model_6", model)
print(*expected.predictor.W.data.ravel(), resumed.updater.iteration)
