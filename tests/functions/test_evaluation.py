"""Tests measures of predictions against scikit-learn."""

import numpy as np
import pytest
import sklearn.metrics

import mpchain.functions as F
from mpchain import Variable


def _expected_summary(y, t, labels, beta):
    return sklearn.metrics.precision_recall_fscore_support(
        t, y.argmax(1), beta=beta, labels=labels, zero_division=np.nan
    )


@pytest.mark.parametrize("beta", [1.0, 0.5, 3])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("label_num", [None, 5])
def test_classification_summary(beta, dtype, label_num):
    random = np.random.RandomState(0)
    y, t = random.randn(60, 5).astype(dtype), random.randint(0, 4, 60)
    t[:7] = -1
    y[:, 2] = -9  # this class is never predicted
    summary = F.classification_summary(Variable(y), t, label_num, beta)
    counted = t != -1
    labels = range(label_num or 4)
    expected = _expected_summary(y[counted], t[counted], labels, beta)
    # Where precision or recall is NaN, scikit-learn defines the F-score in another way.
    expected[2][np.isnan(expected[0] + expected[1])] = np.nan
    assert np.isnan(expected[0][2]) and not np.isnan(expected[2][:2]).any()
    for value, reference in zip(summary, expected, strict=True):
        np.testing.assert_allclose(value.array, reference, 1e-12)
        assert value.dtype == (np.int64 if value is summary[3] else np.float64)


def test_parts_of_the_summary():
    random = np.random.RandomState(1)
    y, t = random.randn(4, 3, 5), random.randint(0, 3, (4, 5))
    precision, recall, score, support = F.classification_summary(y, t, 3, ignore_label=1)
    for function, value in [(F.precision, precision), (F.recall, recall), (F.f1_score, score)]:
        parts = function(y, t, 3, ignore_label=1)
        np.testing.assert_array_equal(parts[0].array, value.array)
        np.testing.assert_array_equal(parts[1].array, support.array)
    flat = y.swapaxes(1, 2).reshape(20, 3), t.ravel()
    again = F.classification_summary(*flat, 3, ignore_label=1)
    np.testing.assert_array_equal(again[0].array, precision.array)
    assert support.array.tolist() == [(t == 0).sum(), 0, (t == 2).sum()]


def test_shares_of_nothing_are_not_numbers():
    y, t = np.array([[1.0, 0], [1, 0]]), np.array([1, 1])
    precision, recall, score, support = (v.array for v in F.classification_summary(y, t))
    np.testing.assert_array_equal(precision, [0, np.nan])
    np.testing.assert_array_equal(recall, [np.nan, 0])
    np.testing.assert_array_equal(score, [np.nan, np.nan])
    np.testing.assert_array_equal(support, [0, 2])


def test_a_summary_of_nothing():
    y, t = np.zeros((0, 3)), np.zeros(0, int)
    assert F.classification_summary(y, t)[3].shape == (0,)
    precision, support = F.precision(y, t, 2)
    assert np.isnan(precision.array).all() and support.array.tolist() == [0, 0]


@pytest.mark.parametrize("label", [-2, 3])
def test_a_label_out_of_range(label):
    with pytest.raises(
        ValueError, match=rf"recall: every element of t .* below 3.* one is {label}"
    ):
        F.recall(np.ones((2, 3)), np.array([0, label]), 3)


@pytest.mark.parametrize("shape", [(9,), (9, 3), (9, 2, 3)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_r2_score(shape, weighted, dtype):
    random = np.random.RandomState(0)
    pred, true = random.randn(2, *shape).astype(dtype)
    weight = random.rand(9).astype(dtype) if weighted else None
    columns = np.prod(shape[1:], dtype=int)
    expected = sklearn.metrics.r2_score(
        true.reshape(9, columns),
        pred.reshape(9, columns),
        sample_weight=weight,
        multioutput="raw_values",
    )
    tolerance = 1e-4 if dtype == np.float32 else 1e-12
    raw = F.r2_score(Variable(pred), true, weight, multioutput="raw_values")
    assert raw.shape == shape[1:] and raw.dtype == dtype
    np.testing.assert_allclose(raw.array.ravel(), expected, tolerance)
    mean = F.r2_score(pred, true, weight)
    assert mean.shape == () and mean.dtype == dtype
    np.testing.assert_allclose(mean.array, expected.mean(), tolerance)


def test_a_truth_that_does_not_vary_scores_zero():
    true = np.ones((4, 2))
    true[:, 1] = [1, 2, 3, 4]
    score = F.r2_score(true, true, multioutput="raw_values")
    np.testing.assert_array_equal(score.array, [0, 1])


def test_r2_of_unknown_multioutput():
    with pytest.raises(ValueError, match=r"r2_score: multioutput must be one of .* not 'mean'"):
        F.r2_score(np.ones(3), np.ones(3), multioutput="mean")
