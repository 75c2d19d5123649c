"""Uses functions, decorated functions and classes as extensions."""

import chainer
import numpy as np
from chainer import training
from chainer.training import extension, extensions, trigger

calls = []


@extension.make_extension(trigger=(2, "iteration"), priority=extension.PRIORITY_EDITOR)
def edit(trainer):
    calls.append(("edit", trainer.updater.iteration))


class Count(extension.Extension):
    trigger = 1, "epoch"
    name = "count"

    def initialize(self, trainer):
        calls.append(("begin", 0))

    def __call__(self, trainer):
        calls.append(("count", trainer.updater.epoch))

    def finalize(self):
        calls.append(("end", 0))


model = chainer.links.Classifier(chainer.links.Linear(2, 2, initialW=0.1))
optimizer = chainer.optimizers.SGD(0.1)
optimizer.setup(model)
data = chainer.datasets.TupleDataset(np.ones((6, 2), "f"), np.zeros(6, "i"))
iterator = chainer.iterators.SerialIterator(data, 3)
trainer = training.Trainer(training.StandardUpdater(iterator, optimizer), (2, "epoch"))
trainer.extend(edit)
trainer.extend(Count())
trainer.extend(lambda trainer: calls.append(("lambda", trainer.updater.iteration)), name="l",
               trigger=trigger.get_trigger((3, "iteration")))  # fmt: skip
trainer.extend(extensions.ExponentialShift("lr", 0.5), trigger=(1, "epoch"))
trainer.run()
assert calls == [
    ("begin", 0), ("edit", 2), ("count", 1), ("lambda", 3), ("edit", 4), ("count", 2), ("end", 0)
], calls  # fmt: skip
print(optimizer.lr, len(calls))
