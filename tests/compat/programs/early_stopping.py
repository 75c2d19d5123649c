"""Uses triggers that watch a reported value."""

import chainer
import numpy as np
from chainer import training
from chainer.training import triggers
from chainer.training.triggers.early_stopping_trigger import EarlyStoppingTrigger

values = iter([1.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
model = chainer.links.Classifier(chainer.links.Linear(1, 2))
optimizer = chainer.optimizers.SGD()
optimizer.setup(model)
data = chainer.datasets.TupleDataset(np.ones((2, 1), "f"), np.zeros(2, "i"))
iterator = chainer.iterators.SerialIterator(data, 2)
stop = EarlyStoppingTrigger(monitor="watched", patients=2, max_trigger=(7, "epoch"))
trainer = training.Trainer(training.StandardUpdater(iterator, optimizer), stop)
trainer.extend(
    lambda trainer: trainer.observation.update(watched=next(values)), name="watch", priority=1000,
    trigger=(1, "iteration"),
)  # fmt: skip
best = []
trainer.extend(
    lambda trainer: best.append(trainer.updater.iteration), name="best",
    trigger=triggers.MinValueTrigger("watched", trigger=(1, "iteration")),
)  # fmt: skip
trainer.run()
print(trainer.updater.epoch, *best)
