"""Tests evaluators on several ranks, and means of persistent values."""

import warnings

import numpy as np
import pytest

import mpchain
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
    """An evaluator that collects the data that it gets; the result is not a mean."""

    def calc_local(self, x):
        assert F.exp(Variable(x)).creator is None
        return [int(i) for i in x]

    def aggregate(self, results):
        assert self.comm.rank == self.root
        return {"words": [i for result in results for i in result]}


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_generic_evaluator(comm, batch_size):
    # The ranks have different numbers of elements.
    mine = xp.arange(3 + comm.rank) + 10.0 * comm.rank
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
    assert model.b.count == comm.rank  # the count is an integer, so it is not averaged
    assert model.a.avg_mean is before[0]
    assert_array_equal(model.a.gamma.array, before[1])
    assert AllreducePersistent.priority > extensions.Evaluator.priority


class Counting(Chain):
    """A model that reports means over counts, and means over samples."""

    def forward(self, x, t, mask):
        flat = np.ravel(t)
        scores = F.reshape(F.stack([x, -x, x * x], axis=2), (-1, 3))
        binary = np.where(mask, t % 2, -1)
        values = {
            "loss": F.softmax_cross_entropy(scores, flat, label_smoothing=0.1),
            "accuracy": F.accuracy(scores, flat, ignore_label=-1),
            "binary": F.sigmoid_cross_entropy(x, binary),
            "binary_accuracy": F.binary_accuracy(x, binary),
            "focal": F.focal_loss(x, binary),
            "average": F.average(x, weights=0.1 + mask),
            "own": mpchain.batch_mean(x**2, weights=0.1 + mask),
            "elements": mpchain.batch_mean(x**2),
            "samples": F.mean(x),
            "summed": F.softmax_cross_entropy(scores, flat, normalize=False),
            "pair": (F.mean(x), 2 * x.size),
        }
        report(values, self)


def ragged():
    """Returns samples with ignored labels; in some samples, all labels are ignored."""
    draws = np.random.RandomState(1)
    x, t = draws.standard_normal((11, 4)), draws.randint(0, 3, (11, 4)).astype(np.int32)
    mask = draws.uniform(size=(11, 4)) < np.linspace(0, 1, 11)[:, None]
    return TupleDataset(x, np.where(mask, t, -1), mask)


@pytest.mark.parametrize("batch_size", [1, 3, 11])
def test_means_over_counts_are_those_of_all_samples(comm, batch_size):
    data, model = ragged(), Counting()
    evaluate = lambda data, n: extensions.Evaluator(
        SerialIterator(data, n, repeat=False, shuffle=False), model
    )
    expected = evaluate(data, 11)()
    # The ranks have different numbers of samples.
    ends = [11 * r * r // comm.size**2 for r in range(comm.size + 1)]
    mine = data[ends[comm.rank] : ends[comm.rank + 1]]
    means = create_multi_node_evaluator(evaluate(mine, batch_size), comm)()
    assert means.keys() == expected.keys()
    for name, mean in means.items():
        np.testing.assert_allclose(mean, expected[name], 1e-12, err_msg=name)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_means_of_half_precision_are_weighted_too(comm, is_weighted):
    data = [np.full(1 + i, i, np.float16) for i in range(5)]
    model = L.Linear(1, 1)

    def evaluate(x):
        report({"mean": mpchain.batch_mean(x, np.ones_like(x) if is_weighted else None)}, model)

    mine = SerialIterator(data[slice(*comm.share_of(5))], 1, repeat=False, shuffle=False)
    evaluator = extensions.Evaluator(mine, model, eval_func=evaluate)
    (mean,) = create_multi_node_evaluator(evaluator, comm)().values()
    np.testing.assert_allclose(mean, np.concatenate(data).mean(dtype=float), 1e-6)


def test_a_classifier_reports_exact_means(comm):
    x, t, _ = map(np.array, zip(*ragged()))
    classifier = L.Classifier(F.identity, accfun=lambda y, t: F.accuracy(y, t, ignore_label=-1))
    # The shapes are (11, 3, 4) for data and (11, 4) for labels.
    data = TupleDataset(np.stack([x, -x, x * x], axis=1), t)
    share = slice(*comm.share_of(11))
    iterators = [
        SerialIterator(d, n, repeat=False, shuffle=False) for d, n in ((data, 11), (data[share], 2))
    ]
    expected, found = (extensions.Evaluator(i, classifier) for i in iterators)
    expected, means = expected(), create_multi_node_evaluator(found, comm)()
    assert means == pytest.approx(expected, rel=1e-12)


def test_rank_0_alone_tells_of_values_that_are_computed_from_other_means(comm):
    class Total(Chain):
        def forward(self, x):
            report({"total": F.sqrt(F.mean_squared_error(x, 0 * x))}, self)

    # The atoms of two molecules.
    atoms = [np.ones((2 + 2 * comm.rank, 3), "f"), np.ones((1, 3), "f")]
    evaluator = extensions.Evaluator(
        SerialIterator(atoms, 2, repeat=False), Total(), converter=lambda batch, _: np.vstack(batch)
    )
    evaluator = create_multi_node_evaluator(evaluator, comm)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluator()
        evaluator()
    assert len(caught) == (comm.rank == 0)
    assert all(
        "'main/total' is weighted by the number of samples" in str(w.message) for w in caught
    )
