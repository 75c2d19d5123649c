"""Trains on several ranks with a trainer."""

import sys

import chainer
import chainer.links as L
import chainermn
import numpy as np
from chainer import training
from chainer.training import extensions

comm = chainermn.create_communicator("naive")
np.random.seed(0)
model = L.Classifier(L.Linear(3, 2))
optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.MomentumSGD(lr=0.1), comm)
optimizer.setup(model)
if comm.rank == 0:
    x = np.random.standard_normal((24, 3)).astype("f")
    train = chainer.datasets.TupleDataset(x, (x[:, 0] > 0).astype("i"))
else:
    train = None
train = chainermn.scatter_dataset(train, comm, shuffle=True, seed=1)
iterator = chainer.iterators.SerialIterator(train, 12 // comm.size, shuffle=False)
trainer = training.Trainer(
    training.StandardUpdater(iterator, optimizer), (3, "epoch"), out=sys.argv[1]
)
test_iter = chainer.iterators.SerialIterator(train, 4, repeat=False, shuffle=False)
trainer.extend(chainermn.create_multi_node_evaluator(extensions.Evaluator(test_iter, model), comm))
if comm.rank == 0:
    trainer.extend(extensions.LogReport())
trainer.run()
weights = comm.allgather(model.predictor.W.data)
assert all(np.array_equal(w, weights[0]) for w in weights)
if comm.rank == 0:
    log = trainer.get_extension("LogReport").log
    assert log[-1]["validation/main/loss"] < log[0]["validation/main/loss"]
    print("trained", len(log))
