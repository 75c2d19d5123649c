"""The classic script with a trainer, an evaluator, a log and a snapshot."""

import io
import os

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions


class MLP(chainer.Chain):
    def __init__(self, n_units, n_out):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, n_units)
            self.l2 = L.Linear(n_units, n_out)

    def __call__(self, x):
        return self.l2(F.relu(self.l1(x)))


np.random.seed(0)
x = np.random.standard_normal((60, 5)).astype(np.float32)
t = (x.sum(axis=1) > 0).astype(np.int32)
train = chainer.datasets.TupleDataset(x[:40], t[:40])
test = chainer.datasets.TupleDataset(x[40:], t[40:])
train_iter = chainer.iterators.SerialIterator(train, 10, shuffle=False)
test_iter = chainer.iterators.SerialIterator(test, 10, repeat=False, shuffle=False)
model = L.Classifier(MLP(8, 2))
optimizer = chainer.optimizers.Adam(alpha=0.01)
optimizer.setup(model)
updater = training.StandardUpdater(train_iter, optimizer, device=-1)
trainer = training.Trainer(updater, (3, "epoch"), out="result")
trainer.extend(extensions.Evaluator(test_iter, model, device=-1))
trainer.extend(extensions.dump_graph("main/loss"))
trainer.extend(extensions.snapshot(filename="snapshot"), trigger=(3, "epoch"))
trainer.extend(extensions.LogReport(log_name="training.log"))
trainer.extend(extensions.observe_lr())
entries = ["epoch", "main/loss", "validation/main/accuracy"]
trainer.extend(extensions.PrintReport(entries, out=io.StringIO()))
trainer.run()
assert sorted(os.listdir("result")) == ["cg.dot", "snapshot", "training.log"]
log = trainer.get_extension("LogReport").log
print(*[entry["main/loss"] for entry in log], log[-1]["validation/main/loss"])
