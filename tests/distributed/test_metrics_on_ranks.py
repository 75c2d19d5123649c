"""Tests that metrics are exact for any division of the samples among the ranks."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import iterators, metrics
from mpchain.distributed import create_sharded_iterator

pytest.importorskip("sklearn")


@pytest.fixture
def scores():
    return {
        "accuracy": metrics.accuracy(),
        "top 2": metrics.top_k(2),
        "f1": metrics.precision_recall_f1(),
        "matrix": metrics.confusion_matrix(),
        "auc": metrics.auc(),
        "perplexity": metrics.perplexity(),
    }


@pytest.fixture
def data():
    random = np.random.RandomState(0)
    return random.randn(31, 4).astype(np.float32), random.randint(0, 4, 31)


def check(found, scores, data):
    alone = metrics.Meter(scores)
    alone.add(*data)
    expected = alone.compute()
    assert list(found) == list(expected)
    for name, value in expected.items():
        # scikit-learn adds areas in the order of the samples, which differs.
        np.testing.assert_allclose(found[name], value, rtol=1e-14 if "auc" in name else 0)


@pytest.mark.parametrize("share", ["even", "all on one rank", "growing"])
def test_values_are_those_of_one_process(comm, scores, data, share):
    y, t = data
    bounds = {
        "even": [len(t) * r // comm.size for r in range(comm.size + 1)],
        "all on one rank": [0] * comm.size + [len(t)],
        "growing": [len(t) * r * r // comm.size**2 for r in range(comm.size + 1)],
    }[share]
    meter = metrics.Meter(scores)
    begin, end = bounds[comm.rank : comm.rank + 2]
    for i in range(begin, end, 3):
        meter.add(y[i : min(i + 3, end)], t[i : min(i + 3, end)])
    check(meter.compute(comm), scores, data)


def test_the_extension_evaluates_all_samples(comm, scores, data):
    batches = iterators.SerialIterator([*zip(*data)], 8, repeat=False, shuffle=False)
    batches = create_sharded_iterator(batches, comm)
    evaluator = metrics.MetricsEvaluator(batches, mpchain.Sequential(F.identity), scores, comm)
    for _ in range(2):
        check(evaluator(), scores, data)
