"""Measures of how good predictions are; none is differentiated."""

import math

from mpchain.backends.cuda import get_array_module
from mpchain.functions.loss import check_labels, check_option
from mpchain.utils.type_check import check
from mpchain.variable import as_array, as_variable


def accuracy(y, t, ignore_label=None):
    """The share of samples whose largest score is at their label.

    Args:
        y: Variable or array (N, C, d1, ...): scores.
        t: array of integers (N, d1, ...), or (N, 1, ...): labels.
        ignore_label (int): samples with this label do not count; None counts all.

    Returns:
        Variable: a scalar of the dtype of ``y``; 0 if no sample counts.

    Raises:
        InvalidType: shapes or dtypes do not fit.
    """
    y, t = as_array(y), as_array(t)
    fits = y.ndim >= 2 and y.dtype.kind == "f" and t.dtype.kind in "iu"
    rule = "y must be floating point (N, C, ...), t integers"
    check(fits, "accuracy", rule, y=y, t=t)
    if t.ndim == y.ndim and t.shape[1] == 1:
        t = t[:, 0]
    fits = t.shape == (y.shape[0], *y.shape[2:])
    check(fits, "accuracy", "t must have the shape of y without axis 1", y=y, t=t)
    right = y.argmax(axis=1) == t
    counted = t.size if ignore_label is None else (t != ignore_label).sum()
    if ignore_label is not None:
        right = right & (t != ignore_label)
    return _share(right, counted, y)


def binary_accuracy(y, t):
    """The share of elements whose score has the sign that their label says.

    Args:
        y: Variable or array of any shape: scores; at least 0 predicts label 1.
        t: array of integers of the shape of ``y``: 0, 1, or -1, which does not count.

    Returns:
        Variable: a scalar of the dtype of ``y``; 0 if no element counts.

    Raises:
        InvalidType: shapes or dtypes do not fit.
    """
    y, t = as_array(y), as_array(t)
    fits = y.shape == t.shape and y.dtype.kind == "f" and t.dtype.kind in "iu"
    rule = "t must be integers of the shape of y, floating point"
    check(fits, "binary_accuracy", rule, y=y, t=t)
    counted = t != -1
    return _share(((y >= 0) == t) & counted, counted.sum(), y)


def _counts(name, y, t, label_num, ignore_label):
    """Of each label, how many samples have it, are told to have it, and both: integers."""
    y, t = as_array(y), as_array(t)
    fits = y.ndim >= 2 and y.dtype.kind == "f" and t.dtype.kind in "iu"
    check(fits, name, "y must be floating point (N, C, ...), t integers", y=y, t=t)
    fits = t.shape == (y.shape[0], *y.shape[2:])
    check(fits, name, "t must have the shape of y without axis 1", y=y, t=t)
    if label_num is None:
        label_num = max(int(t.max()) + 1, 0) if t.size else 0
    counted = t != ignore_label
    told, t = y.argmax(axis=1)[counted], t[counted]
    check_labels(name, t, label_num, ignore_label)
    xp = get_array_module(y)

    def count(labels):
        return xp.bincount(labels, minlength=label_num)[:label_num]

    return count(t), count(told), count(t[told == t])


def _quotient(x, y):
    xp = get_array_module(x)
    return xp.where(y == 0, math.nan, x / xp.where(y == 0, 1, y))


def classification_summary(y, t, label_num=None, beta=1.0, ignore_label=-1):
    """Precision, recall, F-score and support of each label.

    The precision is the share of what is told to have a label that has it; the recall is the share
    of what has a label that is told so. The F-score is
    (1 + beta ** 2) precision recall / (beta ** 2 precision + recall). The support is the number of
    samples with the label. A share of nothing, and an F-score where both others are zero, is NaN.

    Args:
        y: Variable or array (N, C, d1, ...): scores.
        t: array of integers (N, d1, ...): labels.
        label_num (int): the number of labels; None: one more than the largest in ``t``.
        beta (float): how many times the recall weighs as much as the precision.
        ignore_label (int): samples with this label do not count.

    Returns:
        tuple of four Variables (label_num,): three of float64, the support of integers.

    Raises:
        InvalidType: shapes or dtypes do not fit.
        ValueError: a label is out of range.
    """
    return _summary("classification_summary", y, t, label_num, beta, ignore_label)


def _summary(name, y, t, label_num, beta, ignore_label):
    support, told, right = _counts(name, y, t, label_num, ignore_label)
    precision = _quotient(right, told)
    recall = _quotient(right, support)
    weight = beta * beta
    score = _quotient((1 + weight) * precision * recall, weight * precision + recall)
    return tuple(map(as_variable, (precision, recall, score, support)))


def precision(y, t, label_num=None, ignore_label=-1):
    """Precision and support of each label: see :func:`classification_summary`.

    Returns:
        tuple of two Variables (label_num,).
    """
    value, _, _, support = _summary("precision", y, t, label_num, 1.0, ignore_label)
    return value, support


def recall(y, t, label_num=None, ignore_label=-1):
    """Recall and support of each label: see :func:`classification_summary`.

    Returns:
        tuple of two Variables (label_num,).
    """
    _, value, _, support = _summary("recall", y, t, label_num, 1.0, ignore_label)
    return value, support


def f1_score(y, t, label_num=None, ignore_label=-1):
    """F-score, of equal weights, and support of each label: see :func:`classification_summary`.

    Returns:
        tuple of two Variables (label_num,).
    """
    _, _, value, support = _summary("f1_score", y, t, label_num, 1.0, ignore_label)
    return value, support


def r2_score(pred, true, sample_weight=None, multioutput="uniform_average"):
    """The share of the variance that predictions explain: 1 - residual / total sum of squares.

    Args:
        pred: Variable or array (N, ...), floating point: predictions.
        true: array of that shape: the truth.
        sample_weight: array (N,): weights of the samples; None weighs all alike.
        multioutput (str): 'uniform_average' over the columns, or 'raw_values'.

    Returns:
        Variable: a scalar, or (...,) with multioutput='raw_values'; 0 for a column of which the
        truth does not vary.

    Raises:
        InvalidType: shapes or dtypes do not fit.
        ValueError: an unknown option.
    """
    name = "r2_score"
    check_option(name, "multioutput", multioutput, ("uniform_average", "raw_values"))
    pred, true = as_array(pred), as_array(true)
    fits = pred.shape == true.shape and pred.ndim and pred.dtype.kind == true.dtype.kind == "f"
    rule = "pred and true must have one shape (N, ...) and be floating point"
    check(fits, name, rule, pred=pred, true=true)
    xp = get_array_module(true)
    weight = xp.ones(len(true), true.dtype) if sample_weight is None else as_array(sample_weight)
    fits = weight.shape == true.shape[:1]
    check(
        fits, name, "sample_weight must hold a number per sample", sample_weight=weight, true=true
    )
    weight = weight.reshape((-1,) + (1,) * (true.ndim - 1))
    mean = (weight * true).sum(axis=0) / xp.maximum(weight.sum(axis=0), 1e-30)
    residual = (weight * (true - pred) ** 2).sum(axis=0)
    total = (weight * (true - mean) ** 2).sum(axis=0)
    score = xp.where(total == 0, 0, 1 - residual / xp.where(total == 0, 1, total))
    score = score.astype(pred.dtype, copy=False)
    average = multioutput == "uniform_average" and score.size
    return as_variable(xp.asarray(score.mean() if average else score))


def _share(right, counted, y):
    xp = get_array_module(y)
    return as_variable(xp.asarray(right.sum() / xp.maximum(counted, 1), y.dtype))
