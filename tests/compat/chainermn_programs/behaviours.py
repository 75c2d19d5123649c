"""Uses tuples in a chain list, communicators of a program, and a generic evaluator."""

import os
import sys

import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np
from chainermn.communicators.communicator_base import CommunicatorBase
from chainermn.extensions import GenericMultiNodeEvaluator, _multi_node_snapshot

comm = chainermn.create_communicator("naive")
last = comm.size - 1


class Both(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l = L.Linear(3, 3, initialW=1)

    def __call__(self, x):
        y = self.l(x)
        return y, y * 2


class Sum(Both):
    def __call__(self, pair):
        a, b = pair
        return self.l(a + b)


def gradient(first):
    """Backpropagates through two links: the first one sends two results to the last rank, whose
    link gets them as one argument."""
    model = chainermn.MultiNodeChainList(comm=comm)
    if comm.rank == 0:
        model.add_link(first, rank_in=None, rank_out=last)
    elif comm.rank == last:
        model.add_link(Sum(), rank_in=0, rank_out=None)
    else:
        return None
    model.cleargrads()
    y = model(np.arange(6, dtype="f").reshape(2, 3)) if comm.rank == 0 else model()
    (F.sum(y) if comm.rank == last else y).backward()
    return [float(abs(p.grad).sum()) for p in model.params()]


class Listed(Both):
    def __call__(self, x):
        return list(super().__call__(x))


class Mine(CommunicatorBase):
    """A communicator that sends by another communicator, and records calls that average
    gradients or send a model."""

    def __init__(self):
        super().__init__()
        self.calls = []

    rank = property(lambda self: comm.rank)
    size = property(lambda self: comm.size)

    def multi_node_mean_grad(self, model, zero_fill=False):
        self.calls.append("mean")
        comm.multi_node_mean_grad(model, zero_fill)

    def bcast_data(self, model):
        self.calls.append("bcast")
        comm.bcast_data(model)


def passed_on(name):
    return lambda self, *args, **kwargs: getattr(comm, name)(*args, **kwargs)


for name in CommunicatorBase.__abstractmethods__ - {"multi_node_mean_grad", "bcast_data"}:
    setattr(Mine, name, passed_on(name))
Mine.__abstractmethods__ = frozenset()


def trained(own):
    model = L.Linear(2, 1, initialW=comm.rank + 1, nobias=True)
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), own)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.1))
    for _ in range(3):
        optimizer.update(lambda: F.sum(model(np.full((1, 2), comm.rank + 1, "f"))))
    return round(float(model.W.array[0, 0]), 5), optimizer.t


def evaluated(own):
    model = L.Classifier(L.Linear(2, 2, initialW=np.eye(2)))
    data = [(np.array([i, comm.rank], "f"), np.int32(i % 2)) for i in range(4)]
    iterator = chainer.iterators.SerialIterator(data, 2, repeat=False, shuffle=False)
    evaluator = chainer.training.extensions.Evaluator(iterator, model)
    means = chainermn.create_multi_node_evaluator(evaluator, own)()
    return round(float(means["main/loss"]), 4)


class Sorted(GenericMultiNodeEvaluator):
    def calc_local(self, *xs):
        return float(np.sum(xs[0]))

    def aggregate(self, results):
        return sorted(results)


words = [gradient(Both()), gradient(Listed())]
own = Mine()
words += [isinstance(comm, CommunicatorBase), trained(own), own.calls, evaluated(own)]
words += [list(chainermn.scatter_dataset([1, 2, 3, 4] if comm.rank == 0 else None, own))]
iterator = chainer.iterators.SerialIterator(
    list(np.arange(4.0) + comm.rank), 2, repeat=False, shuffle=False
)
words += [Sorted(comm, iterator, lambda x: x)(None)]
for sizes in ([4, 7, 1], [5, 2, 2], [2, 1, 3]):  # ranks have unequal numbers of batches
    data = list(np.arange(float(sizes[comm.rank])) + 10 * comm.rank)
    iterator = chainer.iterators.SerialIterator(data, 2, repeat=False, shuffle=False)
    evaluator = Sorted(comm, iterator, lambda x: x)
    words += [evaluator(None), evaluator(None)]
for n in (0, 1):
    for equal in (True, False):
        data = list(range(n)) if comm.rank == 0 else None
        words += [len(chainermn.scatter_dataset(data, comm, force_equal_length=equal))]
comm.set_config("batched_copy", True)
words += [comm.batched_copy]
for call in (comm.set_config, comm.get_config):
    try:
        call("nonsense")
    except Exception as error:
        words += [type(error).__name__]
words += [_multi_node_snapshot._parse_replica_sets([[0]], comm.size)]
words += [_multi_node_snapshot._find_latest_snapshot("none_{.updater.iteration}", sys.argv[1])]
if comm.rank == 0:
    for name in ("at_10", "at_9"):
        path = os.path.join(sys.argv[1], name)
        open(path, "w").close()
        os.utime(path, (0, 0) if name == "at_10" else (9, 9))
comm.mpi_comm.barrier()
words += [_multi_node_snapshot._find_latest_snapshot("at_{.updater.iteration}", sys.argv[1])]
words += [
    comm._init_ranks(),
    comm._intra_rank,
    comm._intra_size,
    comm._inter_rank,
    comm._inter_size,
]
for given in (np.arange(3, dtype="f") + comm.rank, None):
    means = np.arange(3, dtype="f") + comm.rank
    comm._multi_node_mean(given, means)
    words += [*means.astype("d")]
model = chainer.Chain()
with model.init_scope():
    model.a, model.b = L.Linear(None, 2), L.Linear(2, 1)
optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(), comm).setup(model)
words += [optimizer.target_params, optimizer.is_changed(model), optimizer.is_changed(model)]
for _ in range(2):
    optimizer.update(lambda: F.sum(model.b(model.a(np.ones((1, 3), "f")))))
words += [*optimizer.target_params, optimizer.is_changed(model), optimizer.is_changed(L.Linear(2))]
gathered = comm.gather_obj(words)
if comm.rank == 0:
    for line in gathered:
        print(*line)
