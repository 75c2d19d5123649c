"""Uses a checkpointer, and averages persistent values."""

import sys

import chainer
import chainer.links as L
import chainermn
import numpy as np
from chainer import training
from chainermn.extensions import AllreducePersistent, create_multi_node_checkpointer

comm = chainermn.create_communicator("naive")


def make(n):
    np.random.seed(0)
    model = chainer.Sequential(L.Linear(3, 4), L.BatchNormalization(4), L.Linear(4, 2))
    model = L.Classifier(model)
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(), comm)
    optimizer.setup(model)
    x = np.random.standard_normal((16, 3)).astype("f")
    data = chainer.datasets.TupleDataset(x, (x[:, 0] > 0).astype("i"))
    data = chainermn.scatter_dataset(data, comm)
    iterator = chainer.iterators.SerialIterator(data, 4, shuffle=False)
    updater = training.StandardUpdater(iterator, optimizer)
    trainer = training.Trainer(updater, (n, "iteration"), out=sys.argv[1])
    checkpointer = create_multi_node_checkpointer(name="run", comm=comm)
    checkpointer.maybe_load(trainer, optimizer)
    trainer.extend(checkpointer, trigger=(2, "iteration"))
    trainer.extend(AllreducePersistent(model, comm), trigger=(2, "iteration"))
    return trainer, model, checkpointer


interrupted, _, checkpointer = make(4)
for _ in range(2):
    interrupted.updater.update()
checkpointer(interrupted)
resumed, model, _ = make(4)
assert resumed.updater.iteration == 2, resumed.updater.iteration
resumed.run()
means = comm.allgather(model.predictor[1].avg_mean)
assert all(np.allclose(mean, means[0]) for mean in means)
if comm.rank == 0:
    print("resumed", resumed.updater.iteration)
