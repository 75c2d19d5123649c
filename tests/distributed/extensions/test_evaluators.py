"""Evaluators on several ranks, and the means of persistent values."""

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain import report
from mpchain.datasets import TupleDataset
from mpchain.distributed import create_multi_node_evaluator
from mpchain.distributed.extensions import AllreducePersistent, GenericMultiNodeEvaluator
from mpchain.iterators import SerialIterator
from mpchain.link import Chain
from mpchain.training import extensions
from mpchain.variable import Variable
from tests.distributed.devices import assert_array_equal, on_device, xp

ON_GPUS = True


class Words(GenericMultiNodeEvaluator):
    """Collects what it sees; the result is no mean."""

    def calc_local(self, x):
        assert F.exp(Variable(x)).creator is None
        return [int(i) for i in x]

    def aggregate(self, results):
        assert self.comm.rank == self.root
        return {"words": [i for result in results for i in result]}


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_generic_evaluator(comm, batch_size):
    mine = xp.arange(3 + comm.rank) + 10.0 * comm.rank  # uneven
    iterator = SerialIterator(mine, batch_size, repeat=False, shuffle=False)
    seen = []
    root = comm.size - 1
    evaluator = Words(
        comm, iterator, on_device(L.Linear(1, 1)), root=root, progress_hook=seen.append
    )
    batches = [
        [list(range(len_))[i : i + batch_size] for i in range(0, len_, batch_size)]
        for len_ in range(3, 3 + comm.size)
    ]
    expected = [
        10 * rank + i
        for n in range(max(map(len, batches)))
        for rank in range(comm.size)
        if n < len(batches[rank])
        for i in batches[rank][n]
    ]
    for _ in range(2):
        assert evaluator() == {"words": expected}
    assert len(seen) == (2 * len(batches[root]) if comm.rank == root else 0)


def test_generic_evaluator_needs_its_methods(comm):
    iterator = SerialIterator(xp.zeros(1), 1, repeat=False)
    evaluator = GenericMultiNodeEvaluator(comm, iterator, L.Linear(1, 1))
    with pytest.raises(NotImplementedError, match="does not implement calc_local"):
        evaluator.calc_local(1)
    with pytest.raises(NotImplementedError, match="does not implement aggregate"):
        evaluator.aggregate([])


def test_an_evaluator_whose_other_ranks_have_no_samples(comm):
    mine = xp.full((3 if comm.rank == 0 else 0, 1), 2, np.float32)
    iterator = SerialIterator(TupleDataset(mine), 2, repeat=False, shuffle=False)
    model = on_device(L.Linear(1, 1, nobias=True, initialW=3))
    evaluator = extensions.Evaluator(
        iterator, model, eval_func=lambda x: report({"loss": F.average(model(x))}, model)
    )
    assert create_multi_node_evaluator(evaluator, comm)() == {"main/loss": 6}
    words = SerialIterator(mine[:, 0], 2, repeat=False)
    assert Words(comm, words, model)() == {"words": [2, 2, 2]}


def test_one_progress_bar_of_evaluators(comm, capsys):
    iterator = SerialIterator(TupleDataset(xp.ones((4, 1), np.float32)), 2, repeat=False)
    model = on_device(L.Linear(1, 1))
    evaluator = extensions.Evaluator(iterator, model, progress_bar=True)
    create_multi_node_evaluator(evaluator, comm)()
    assert ("4 samples" in capsys.readouterr().out) == (comm.rank == 0)


def test_allreduce_persistent(comm):
    model = on_device(Chain(a=L.BatchNormalization(3), b=L.BatchNormalization(2)))
    model.b.add_persistent("count", np.array(comm.rank))
    model.a.avg_mean[...] = comm.rank
    model.b.avg_var[...] = 2 * comm.rank
    before = model.a.avg_mean, model.a.gamma.array.copy()
    AllreducePersistent(model, comm)()
    mean = np.mean(range(comm.size))
    assert_array_equal(model.a.avg_mean, np.full(3, mean, np.float32))
    assert_array_equal(model.b.avg_var, np.full(2, 2 * mean, np.float32))
    assert model.b.count == comm.rank  # no floating-point number
    assert model.a.avg_mean is before[0]
    assert_array_equal(model.a.gamma.array, before[1])
    assert AllreducePersistent.priority > extensions.Evaluator.priority
