"""Tests that evaluators weight the means of batches as Chainer's evaluators do."""

import numpy as np
import pytest

pytestmark = pytest.mark.slow


def test_means_over_labels_are_averaged_over_batches():
    import chainer
    from chainer.training import extensions

    x = np.array([[0, 0], [0, 9], [9, 0], [9, 0]], "f")
    t = np.array([0, -1, 0, 1], "i")
    model = chainer.links.Classifier(chainer.functions.identity)
    means = [float(model(x[i : i + 2], t[i : i + 2]).array) for i in (0, 2)]
    dataset = chainer.datasets.TupleDataset(x, t)
    iterator = chainer.iterators.SerialIterator(dataset, 2, repeat=False, shuffle=False)
    found = extensions.Evaluator(iterator, model)()["main/loss"]
    assert float(found) == pytest.approx(np.mean(means), rel=1e-6)
    # The mean over all three labels differs.
    assert float(found) != pytest.approx(float(model(x, t).array), rel=1e-3)
