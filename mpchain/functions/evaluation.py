"""Measures of how good predictions are; none is differentiated."""

from mpchain.backends.cuda import get_array_module
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


def _share(right, counted, y):
    xp = get_array_module(y)
    return as_variable(xp.asarray(right.sum() / xp.maximum(counted, 1), y.dtype))
