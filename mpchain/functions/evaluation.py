"""Metrics of predictions, which have no gradient."""

import math

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.functions import counting
from mpchain.functions.indexing import check_labels
from mpchain.functions.loss import check_option
from mpchain.typing import Input
from mpchain.utils.arrays import converted
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_array, as_variable


@counting.noted
def accuracy(y: Input, t: Input, ignore_label: int | None = None) -> Variable:
    """Fraction of the samples whose label has the largest score.

    Args:
        y: Variable or array (N, C, d1, ...): scores.
        t: array of integers (N, d1, ...), or (N, 1, ...): labels.
        ignore_label: samples with this label do not count; None means that all samples count.

    Returns:
        Variable: a scalar of the dtype of ``y``; 0 if no sample counts.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.

    Example:
        >>> y, t = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1])
        >>> F.accuracy(y, t).array.round(2).item()
        0.67
    """
    y, t = as_array(y), as_array(t)
    fits = y.ndim >= 2 and is_floating(y.dtype) and t.dtype.kind in "iu"
    rule = "y must be floating point (N, C, ...), t integers"
    check(fits, "accuracy", rule, y=y, t=t)
    if t.ndim == y.ndim and t.shape[1] == 1:
        t = t[:, 0]
    if set(y.shape[t.ndim + 1 :]) == {1}:
        y = y.reshape(y.shape[: t.ndim + 1])
    fits = t.shape == (y.shape[0], *y.shape[2:])
    check(fits, "accuracy", "t must have the shape of y without axis 1", y=y, t=t)
    right = y.argmax(axis=1) == t
    if ignore_label is None:
        count = counting.denominator(t.size, t, np.float64) if t.ndim > 1 else max(t.size, 1)
        return _share(right, count, y)
    counted = t != ignore_label
    return _share(right & counted, counting.denominator(counted.sum(), t, np.float64), y)


@counting.noted
def binary_accuracy(y: Input, t: Input) -> Variable:
    """Fraction of the elements whose score predicts their label.

    Args:
        y: Variable or array of any shape: scores; at least 0 predicts label 1.
        t: array of integers of the shape of ``y``: 0, 1, or -1; elements of label -1 do not count.

    Returns:
        Variable: a scalar of the dtype of ``y``; 0 if no element counts.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.

    Example:
        >>> F.binary_accuracy(np.array([1.5, -0.5]), np.array([1, 1])).item()
        0.5
    """
    y, t = as_array(y), as_array(t)
    fits = y.shape == t.shape and is_floating(y.dtype) and t.dtype.kind in "iu"
    rule = "t must be integers of the shape of y, floating point"
    check(fits, "binary_accuracy", rule, y=y, t=t)
    counted = t != -1
    count = counting.denominator(counted.sum(), t, np.float64)
    return _share(((y >= 0) == t) & counted, count, y)


def _counts(name, y, t, label_num, ignore_label):
    """Returns, for each label, the number of samples with the label, the number of samples that are
    predicted to have the label, and the number of samples for which both hold."""
    y, t = as_array(y), as_array(t)
    fits = y.ndim >= 2 and is_floating(y.dtype) and t.dtype.kind in "iu"
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


def classification_summary(
    y: Input, t: Input, label_num: int | None = None, beta: float = 1.0, ignore_label: int = -1
) -> tuple[Variable, Variable, Variable, Variable]:
    """Precision, recall, F-score and support of each label.

    With TP, FP and FN the true positives, false positives and false negatives of a label, the
    precision is TP / (TP + FP), the recall TP / (TP + FN), and the F-score
    (1 + beta ** 2) precision recall / (beta ** 2 precision + recall). The support is the number of
    samples with the label. A quotient of zeros is NaN.

    Args:
        y: Variable or array (N, C, d1, ...): scores.
        t: array of integers (N, d1, ...): labels.
        label_num: number of labels; None means one more than the largest label in ``t``.
        beta: weight of the recall relative to the precision.
        ignore_label: samples with this label do not count.

    Returns:
        tuple of four Variables (label_num,): three of float64, the support of integers.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: a label is out of range; on a GPU, only in debug mode.

    Example:
        >>> y, t = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1])
        >>> precision, recall, f1, support = F.classification_summary(y, t)
        >>> precision.array, recall.array, support.array
        (array([0.5, 1. ]), array([1. , 0.5]), array([1, 2]))
    """
    return _summary("classification_summary", y, t, label_num, beta, ignore_label)


def _summary(name, y, t, label_num, beta, ignore_label):
    support, told, right = _counts(name, y, t, label_num, ignore_label)
    precision = _quotient(right, told)
    recall = _quotient(right, support)
    weight = beta * beta
    score = _quotient((1 + weight) * precision * recall, weight * precision + recall)
    variables = as_variable(precision), as_variable(recall), as_variable(score)
    return *variables, as_variable(support)


def precision(
    y: Input, t: Input, label_num: int | None = None, ignore_label: int = -1
) -> tuple[Variable, Variable]:
    """Precision and support of each label: see :func:`classification_summary`.

    Returns:
        tuple of two Variables (label_num,).

    Example:
        >>> y, t = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1])
        >>> F.precision(y, t)[0].array
        array([0.5, 1. ])
    """
    value, _, _, support = _summary("precision", y, t, label_num, 1.0, ignore_label)
    return value, support


def recall(
    y: Input, t: Input, label_num: int | None = None, ignore_label: int = -1
) -> tuple[Variable, Variable]:
    """Recall and support of each label: see :func:`classification_summary`.

    Returns:
        tuple of two Variables (label_num,).

    Example:
        >>> y, t = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1])
        >>> F.recall(y, t)[0].array
        array([1. , 0.5])
    """
    _, value, _, support = _summary("recall", y, t, label_num, 1.0, ignore_label)
    return value, support


def f1_score(
    y: Input, t: Input, label_num: int | None = None, ignore_label: int = -1
) -> tuple[Variable, Variable]:
    """F1 score and support of each label: see :func:`classification_summary`.

    Returns:
        tuple of two Variables (label_num,).

    Example:
        >>> y, t = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1])
        >>> F.f1_score(y, t)[0].array.round(2)
        array([0.67, 0.67])
    """
    _, _, value, support = _summary("f1_score", y, t, label_num, 1.0, ignore_label)
    return value, support


def r2_score(
    pred: Input,
    true: Input,
    sample_weight: Input | None = None,
    multioutput: str = "uniform_average",
) -> Variable:
    """Coefficient of determination: 1 - (residual sum of squares) / (total sum of squares).

    Args:
        pred: Variable or array (N, ...), floating point: predictions.
        true: array of the same shape: the true values.
        sample_weight: array (N,): weights of the samples; None means equal weights.
        multioutput: 'uniform_average' over the columns, or 'raw_values'.

    Returns:
        Variable: a scalar, or (...,) with multioutput='raw_values'; 0 for a column whose true
        values are constant.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: ``multioutput`` is unknown.

    Example:
        >>> F.r2_score(np.array([1.0, 2.0]), np.array([1.0, 3.0])).item()
        0.5
    """
    name = "r2_score"
    check_option(name, "multioutput", multioutput, ("uniform_average", "raw_values"))
    pred, true = as_array(pred), as_array(true)
    fits = pred.shape == true.shape and pred.ndim and is_floating(pred.dtype, true.dtype)
    rule = "pred and true must have the same shape (N, ...) and be floating point"
    check(fits, name, rule, pred=pred, true=true)
    xp = get_array_module(true)
    weight = xp.ones(len(true), true.dtype) if sample_weight is None else as_array(sample_weight)
    fits = weight.shape == true.shape[:1]
    rule = "sample_weight must hold a number per sample"
    check(fits, name, rule, sample_weight=weight, true=true)
    weight = weight.reshape((-1,) + (1,) * (true.ndim - 1))
    mean = (weight * true).sum(axis=0) / xp.maximum(weight.sum(axis=0), 1e-30)
    residual = (weight * (true - pred) ** 2).sum(axis=0)
    total = (weight * (true - mean) ** 2).sum(axis=0)
    score = xp.where(total == 0, 0, 1 - residual / xp.where(total == 0, 1, total))
    score = score.astype(pred.dtype, copy=False)
    average = multioutput == "uniform_average" and score.size
    return as_variable(converted(xp, score.mean() if average else score))


def _share(right, counted, y):
    xp = get_array_module(y)
    share = right.sum() / counted
    return as_variable(converted(xp, share.astype(y.dtype, copy=False)))
