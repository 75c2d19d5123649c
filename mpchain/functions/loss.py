"""Losses of classification."""

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.functions.activation import log_softmax, relu, sigmoid, softplus
from mpchain.functions.declaration import differentiable
from mpchain.functions.mathematics import exp, square, where
from mpchain.functions.reduction import mean, sum
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_array


def check_labels(name, t, n_classes, ignore_label, argument="t"):
    """Raises ValueError where a label is neither a class nor the ignored one."""
    xp = get_array_module(t)
    wrong = (t < 0) | (t >= n_classes)
    if ignore_label is not None:
        wrong &= t != ignore_label
    if xp.any(wrong):
        label = int(t[wrong].ravel()[0])
        ignored = "" if ignore_label is None else f", or {ignore_label} (ignored)"
        raise ValueError(
            f"{name}: every label in {argument} must be at least 0 and below {n_classes}, the "
            f"number of classes{ignored}, but one is {label}"
        )


def check_option(function, argument, value, allowed):
    if value not in allowed:
        raise ValueError(f"{function}: {argument} must be one of {allowed}, not {value!r}")


def reduced(function, loss, reduce, allowed=("sum", "mean", "no")):
    """The losses' sum, mean, or the losses themselves, as asked; of no losses, the mean is zero."""
    check_option(function, "reduce", reduce, allowed)
    if reduce == "no":
        return loss
    return mean(loss) if reduce == "mean" and loss.size else sum(loss)


def _cross_entropy_derivative(g, x, aux):
    """(softmax(x) - onehot(t)) * weight, the weight of each sample being what its loss counts."""
    exp_x, total, labels, weight = aux
    if g.shape:
        g = np.reshape(g, weight.shape)
    weight = g * weight
    if isinstance(g, Variable):
        onehot = np.zeros_like(exp_x)
        onehot[labels] = 1
        return (np.exp(log_softmax.on(x, 1)) - onehot) * weight
    gx = exp_x * (weight / total)
    gx[labels] -= weight.reshape(gx[labels].shape)
    return gx


@differentiable(_cross_entropy_derivative)
def _softmax_cross_entropy(x, t, normalize, class_weight, ignore_label, reduce):
    xp = get_array_module(x)
    is_ignored = t == ignore_label
    t = xp.where(is_ignored, 0, t)
    first, *others = map(xp.asarray, np.indices(t.shape, sparse=True))
    labels = (first, t, *others)
    # The exponentials are kept: computing them takes longer than all else.
    exp_x = x - x.max(axis=1, keepdims=True, initial=-np.inf)
    of_labels = exp_x[labels]
    xp.exp(exp_x, out=exp_x)
    total = exp_x.sum(axis=1, keepdims=True)
    weight = (~is_ignored).astype(x.dtype)
    count = xp.maximum(weight.sum() if normalize else len(x), 1).astype(x.dtype)
    if class_weight is not None:
        weight *= xp.take(class_weight, t).astype(x.dtype)
    if reduce == "mean":
        weight /= count
    # An ignored sample counts nothing, also where its log-probabilities are infinite.
    loss = xp.where(is_ignored, 0, xp.log(total[:, 0]) - of_labels) * weight
    y = loss.sum() if reduce == "mean" else loss
    return y.astype(x.dtype, copy=False), (exp_x, total, labels, weight[:, None])


def softmax_cross_entropy(
    x,
    t,
    normalize=True,
    cache_score=True,
    class_weight=None,
    ignore_label=-1,
    reduce="mean",
    enable_double_backprop=False,
    soft_target_loss="cross-entropy",
    label_smoothing=0.0,
):
    """Cross entropy of the softmax of ``x`` with labels, or with distributions.

    Args:
        x: Variable or array (N, C, d1, ...), floating point: unnormalized log-probabilities.
        t: array of integers (N, d1, ...): labels; or an array of the shape of ``x``: distributions
            over axis 1.
        normalize (bool): with labels and the mean, divide by the number of labels not ignored;
            else by N.
        cache_score (bool): kept for Chainer's programs; the score is always cached.
        class_weight: array (C,): factors on the loss by label.
        ignore_label (int): samples with this label count nothing.
        reduce (str): 'mean', or 'no' for one loss per sample.
        enable_double_backprop (bool): kept for Chainer's programs; every order is always there.
        soft_target_loss (str): with distributions, 'cross-entropy' or 'kl-divergence'.
        label_smoothing (float): the share of each target, from 0 to 1, that is spread evenly over
            all classes.

    Returns:
        Variable: a scalar, or (N, d1, ...) with reduce='no'.

    Raises:
        InvalidType: shapes or dtypes do not fit.
        ValueError: a label out of range, an unknown option, or ``label_smoothing`` out of range.

    Label smoothing: C. Szegedy et al., Rethinking the Inception architecture for computer vision,
    CVPR 2016.
    """
    name = "softmax_cross_entropy"
    check_option(name, "reduce", reduce, ("mean", "no"))
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{name}: label_smoothing must be from 0 to 1, but is {label_smoothing}")
    t = as_array(t)
    check(x.ndim >= 2 and x.dtype.kind == "f", name, "x must be floating point (N, C, ...)", x=x)
    if t.dtype.kind == "f":
        if label_smoothing:
            t = t * (1 - label_smoothing) + label_smoothing / x.shape[1]
        return _soft_cross_entropy(name, x, t, normalize, reduce, soft_target_loss)
    fits = t.dtype.kind in "iu" and t.shape == (x.shape[0], *x.shape[2:])
    check(fits, name, "t must be integers of the shape of x without axis 1", x=x, t=t)
    check_labels(name, t, x.shape[1], ignore_label)
    if class_weight is not None:
        class_weight = as_array(class_weight)
        fits = class_weight.shape == (x.shape[1],)
        check(
            fits,
            name,
            "class_weight must have one element per class",
            x=x,
            class_weight=class_weight,
        )
    constants = t, normalize, class_weight, ignore_label, reduce
    if label_smoothing:
        return _smoothed_cross_entropy(x, *constants, label_smoothing)
    return _softmax_cross_entropy(x, *constants)


def _smoothed_cross_entropy(x, t, normalize, class_weight, ignore_label, reduce, smoothing):
    xp = get_array_module(t)
    labels = xp.expand_dims(t, 1)
    per_class = (1, -1) + (1,) * (x.ndim - 2)
    onehot = labels == xp.arange(x.shape[1], dtype=t.dtype).reshape(per_class)
    target = (onehot * (1 - smoothing) + smoothing / x.shape[1]).astype(x.dtype)
    if class_weight is not None:
        target *= class_weight.reshape(per_class)
    counts = xp.broadcast_to(labels != ignore_label, x.shape)
    # An ignored sample counts nothing, also where its log-probabilities are infinite.
    loss = -sum(where(counts, log_softmax(x) * target, xp.zeros((), x.dtype)), axis=1)
    if reduce == "no":
        return loss
    count = (t != ignore_label).sum() if normalize else len(t)
    return sum(loss / xp.maximum(count, 1).astype(x.dtype))


def _soft_cross_entropy(name, x, t, normalize, reduce, soft_target_loss):
    check_option(name, "soft_target_loss", soft_target_loss, ("cross-entropy", "kl-divergence"))
    rule = "t must be integer labels, or distributions of the shape of x"
    check(t.shape == x.shape, name, rule, x=x, t=t)
    loss = sum(log_softmax(x) * -t, axis=1)
    if soft_target_loss == "kl-divergence":
        xp = get_array_module(t)
        loss += (t * xp.log(xp.where(t > 0, t, 1))).sum(axis=1)
    if reduce == "no":
        return loss
    return sum(loss) / max(loss.size if normalize else len(t), 1)


def _sigmoid_cross_entropy_derivative(g, x, t, aux):
    if g.shape == () and aux.shape:
        g = np.broadcast_to(g, aux.shape)
    return (sigmoid.on(x) - t) * (g * aux)


@differentiable(_sigmoid_cross_entropy_derivative)
def _sigmoid_cross_entropy(x, t, normalize, reduce):
    xp = get_array_module(x)
    valid = t != -1
    weight = valid.astype(x.dtype)
    loss = -(x * (t - (x >= 0)) - xp.log1p(xp.exp(-abs(x)))) * weight
    if reduce == "mean":
        count = xp.maximum(valid.sum() if normalize else len(x), 1).astype(x.dtype)
        weight = weight / count
        loss = loss.sum() / count
    return loss.astype(x.dtype, copy=False), weight


def _binary_labels(name, x, t):
    t = as_array(t)
    fits = x.shape == t.shape and x.dtype.kind == "f" and t.dtype.kind in "iu"
    check(fits, name, "t must be integers of the shape of x, floating point", x=x, t=t)
    check_labels(name, t, 2, -1)
    return t


def sigmoid_cross_entropy(x, t, normalize=True, reduce="mean"):
    """Cross entropy of the sigmoid of ``x`` with binary labels.

    Args:
        x: Variable or array of any shape, floating point: the log-odds of label 1.
        t: array of integers of the shape of ``x``: 0, 1, or -1, which counts nothing.
        normalize (bool): with the mean, divide by the number of labels that are not -1; else by
            the batch size.
        reduce (str): 'mean', or 'no' for one loss per element.

    Returns:
        Variable: a scalar, or of the shape of ``x`` with reduce='no'.

    Raises:
        InvalidType: shapes or dtypes do not fit.
        ValueError: a label out of range, or an unknown option.
    """
    name = "sigmoid_cross_entropy"
    check_option(name, "reduce", reduce, ("mean", "no"))
    t = _binary_labels(name, x, t)
    return _sigmoid_cross_entropy(x, t.astype(x.dtype), normalize, reduce)


def focal_loss(x, t, alpha=0.25, gamma=2.0, normalize=True, reduce="mean"):
    """Cross entropy of the sigmoid with binary labels, less for what is already told well.

    With the probability p of the label, it is -a (1 - p) ** gamma log(p), where a is ``alpha`` for
    label 1 and 1 - alpha for label 0.

    Args:
        x: Variable or array of any shape, floating point: the log-odds of label 1.
        t: array of integers of the shape of ``x``: 0, 1, or -1, which counts nothing.
        alpha (float): the weight of label 1, from 0 to 1; None weighs both labels by 1.
        gamma (float): how fast the loss falls as the probability rises; 0 is the cross entropy.
        normalize (bool): with the mean, divide by the number of labels that are not -1; else by
            the batch size.
        reduce (str): 'mean', or 'no' for one loss per element.

    Returns:
        Variable: a scalar, or of the shape of ``x`` with reduce='no'.

    Raises:
        InvalidType: shapes or dtypes do not fit.
        ValueError: a label out of range, or an unknown option.

    See T.-Y. Lin et al., Focal loss for dense object detection, ICCV 2017.
    """
    check_option("focal_loss", "reduce", reduce, ("mean", "no"))
    t = _binary_labels("focal_loss", x, t)
    xp = get_array_module(t)
    sign = (t * 2 - 1).astype(x.dtype)
    weight = (t != -1).astype(x.dtype)
    if alpha is not None:
        weight *= xp.where(t == 1, alpha, 1 - alpha).astype(x.dtype)
    z = x * sign
    # (1 - p) ** gamma = exp(-gamma softplus(z)), which has all its derivatives at the ends too.
    loss = exp(softplus(z) * -gamma) * softplus(-z) * weight
    if reduce == "no":
        return loss
    count = (t != -1).sum() if normalize else len(x)
    return sum(loss / xp.maximum(count, 1).astype(x.dtype))


def hinge(x, t, norm="L1", reduce="mean"):
    """One-against-all classification with a margin: max(0, 1 - s x), s = 1 at the label, else -1.

    Args:
        x: Variable or array (N, C), floating point: scores.
        t: array of integers (N,): labels.
        norm (str): 'L1', or 'L2' for the square.
        reduce (str): 'mean' over the samples of the sum over the classes, or 'no' for one loss per
            element.

    Returns:
        Variable: a scalar, or (N, C) with reduce='no'.

    Raises:
        InvalidType: shapes or dtypes do not fit.
        ValueError: a label out of range, or an unknown option.
    """
    check_option("hinge", "norm", norm, ("L1", "L2"))
    check_option("hinge", "reduce", reduce, ("mean", "no"))
    t = as_array(t)
    check(x.ndim == 2 and x.dtype.kind == "f", "hinge", "x must be floating point (N, C)", x=x)
    fits = t.dtype.kind in "iu" and t.shape == x.shape[:1]
    check(fits, "hinge", "t must hold an integer per sample", t=t, x=x)
    check_labels("hinge", t, x.shape[1], None)
    xp = get_array_module(t)
    is_label = t[:, None] == xp.arange(x.shape[1])
    sign = (is_label.astype(x.dtype) * 2) - 1
    loss = relu(1 - x * sign)
    loss = square(loss) if norm == "L2" else loss
    return loss if reduce == "no" else reduced("hinge", loss, reduce) * x.shape[1]
