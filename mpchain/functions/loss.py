"""Classification losses."""

from collections.abc import Sequence

import numpy as np

from mpchain import annexes, kernels
from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.functions import counting
from mpchain.functions.activation import log_softmax, relu, sigmoid, softplus
from mpchain.functions.array import summed
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.indexing import check_labels
from mpchain.functions.mathematics import exp, square, where
from mpchain.functions.reduction import mean, sum
from mpchain.kernels.cpu.loops import in_one_pass
from mpchain.observers import one_call
from mpchain.typing import Input
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_array

_on_gpu = annexes.find("gpu_kernels", "kernels.gpu.cuda_losses")


def check_option(function: str, argument: str, value: object, allowed: Sequence[str]) -> None:
    """Raises ValueError if the value of an option is not among the allowed values.

    Example:
        >>> check_option("f", "reduce", "mean", ("mean", "no"))
    """
    if value not in allowed:
        raise ValueError(f"{function}: {argument} must be one of {allowed}, not {value!r}")


def reduced(
    function: str, loss: Variable, reduce: str, allowed: Sequence[str] = ("sum", "mean", "no")
) -> Variable:
    """Returns the sum or mean of losses, or the losses themselves. The mean of an empty array of
    losses is zero.

    Example:
        >>> reduced("f", Variable(np.array([1.0, 3.0])), "mean").item()
        2.0
    """
    check_option(function, "reduce", reduce, allowed)
    if reduce == "no":
        return loss
    return mean(loss) if reduce == "mean" and loss.size else sum(loss)


def _denominator(count, t, normalize, dtype):
    """Returns the divisor for the sum of losses: the number of labels that are not ignored, or the
    number of samples."""
    if normalize:
        return counting.denominator(count, t, dtype)
    return counting.divisor(max(len(t), 1), dtype)


def _is_of_gpu(aux):
    return _on_gpu is not None and isinstance(aux, _on_gpu.CrossEntropy)


def _cross_entropy_derivative(g, x, aux):
    """Returns (softmax(x) - onehot(t)) * weight * g, with the weight of each sample in the loss."""
    if isinstance(g, Variable):
        onehot, weight = _onehot_and_weight(x, aux)
        g = np.reshape(g, weight.shape) if g.shape else g
        return (np.exp(log_softmax.on(x, 1)) - onehot) * (g * weight)
    if _on_gpu is not None and _is_of_gpu(aux):
        return _on_gpu.cross_entropy_gradient(g, x, aux)
    exp_x, total, labels, weight = aux
    weight = (g.reshape(weight.shape) if g.shape else g) * weight
    gx = exp_x * (weight / total)
    gx[labels] -= weight.reshape(labels[1].shape)
    return gx


def _onehot_and_weight(x, aux):
    if _is_of_gpu(aux):
        classes = get_array_module(aux.t).arange(x.shape[1]).reshape(-1, *[1] * (x.ndim - 2))
        onehot, weight = aux.t == classes, aux.weight * aux.scale
        return onehot.astype(x.dtype), weight.astype(x.dtype, copy=False)
    exp_x, _, labels, weight = aux
    onehot = np.zeros_like(exp_x)
    onehot[labels] = 1
    return onehot, weight


@differentiable(_cross_entropy_derivative)
def _softmax_cross_entropy(x, t, normalize, class_weight, ignore_label, reduce):
    xp = get_array_module(x)
    if _on_gpu is not None and _on_gpu.is_fused_cross_entropy(x, t, class_weight):
        if reduce == "no" or not normalize or not counting.is_asked():
            n = 0 if normalize else len(x)
            return _on_gpu.cross_entropy(x, t, n, class_weight, ignore_label, reduce)
        n = max(t.size, 1)
        loss, kept = _on_gpu.cross_entropy(x, t, n, class_weight, ignore_label, reduce)
        factor = n / counting.denominator((t != ignore_label).sum(), t, kept.scale.dtype)
        loss = (loss * factor).astype(x.dtype, copy=False)
        return loss, kept._replace(scale=kept.scale * factor)
    is_ignored = t == ignore_label
    # Recorded arrays are not checked, because a later replay may have ignored labels. GPU arrays
    # are not checked, because reading them would wait for the GPU.
    has_ignored = type(t) is not np.ndarray or is_ignored.any()
    if has_ignored:
        t = xp.where(is_ignored, 0, t)
    grid = [np.arange(len(t))] if t.ndim == 1 else np.indices(t.shape, sparse=True)
    first, *others = map(xp.asarray, grid)
    labels = (first, t, *others)
    # The exponentials are kept for backward, because they take most of the time.
    exp_x, total, most = kernels.exponentials(x)
    if has_ignored:
        weight = (~is_ignored).astype(x.dtype)
        count = (~is_ignored).sum()
    else:
        weight = np.ones(t.shape, x.dtype)
        count = t.size
    if class_weight is not None:
        weight = weight * one_call(xp.take, class_weight, t).astype(x.dtype)
    if reduce == "mean":
        weight /= _denominator(count, t, normalize, x.dtype)
    loss = xp.log(total[:, 0]) - (x[labels] - most[:, 0])
    # The loss of ignored samples is zero even if their log-probabilities are infinite.
    if has_ignored:
        loss = xp.where(is_ignored, 0, loss)
    loss *= weight
    y = loss.sum() if reduce == "mean" else loss
    return y.astype(x.dtype, copy=False), (exp_x, total, labels, weight[:, None])


@counting.noted
def softmax_cross_entropy(
    x: Input,
    t: Input,
    normalize: bool = True,
    cache_score: bool = True,
    class_weight: Input | None = None,
    ignore_label: Input = -1,
    reduce: str = "mean",
    enable_double_backprop: bool = False,
    soft_target_loss: str = "cross-entropy",
    label_smoothing: float = 0.0,
) -> Variable:
    """Cross entropy of the softmax of ``x`` with labels, or with distributions.

    Args:
        x: Variable or array (N, C, d1, ...), floating point: unnormalized log-probabilities.
        t: array of integers (N, d1, ...): labels; or an array of the shape of ``x``: distributions
            over axis 1.
        normalize: with reduce='mean', whether to divide the sum of the losses by the number of
            distributions, or of labels that are not ignored; if False, the divisor is N.
        cache_score: ignored; accepted for compatibility with Chainer.
        class_weight: array (C,): factors on the loss by class; with distributions, on the terms
            of the loss by class.
        ignore_label: samples with this label have no loss; unused with distributions.
        reduce: 'mean', or 'no' for one loss per sample.
        enable_double_backprop: ignored; accepted for compatibility with Chainer.
        soft_target_loss: with distributions, 'cross-entropy' or 'kl-divergence'.
        label_smoothing: fraction of each target, from 0 to 1, spread evenly over all classes.

    Returns:
        Variable: a scalar, or (N, d1, ...) with reduce='no'.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: a label (on a GPU, only in debug mode) or ``label_smoothing`` is out of range,
            or an option is unknown.

    Example:
        >>> x, t = np.log([[0.5, 0.5], [0.1, 0.9]]), np.array([0, 1])
        >>> F.softmax_cross_entropy(x, t, reduce="no").array.round(2)
        array([0.69, 0.11])

    Label smoothing: C. Szegedy et al., Rethinking the Inception architecture for computer vision,
    CVPR 2016.
    """
    name = "softmax_cross_entropy"
    check_option(name, "reduce", reduce, ("mean", "no"))
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{name}: label_smoothing must be from 0 to 1, but is {label_smoothing}")
    t = as_array(t)
    check(x.ndim >= 2 and is_floating(x.dtype), name, "x must be floating point (N, C, ...)", x=x)
    if class_weight is not None:
        class_weight = as_array(class_weight)
        fits = class_weight.shape == (x.shape[1],)
        rule = "class_weight must have one element per class"
        check(fits, name, rule, x=x, class_weight=class_weight)
    if is_floating(t.dtype):
        if label_smoothing:
            t = t * (1 - label_smoothing) + label_smoothing / max(x.shape[1], 1)
        return _soft_cross_entropy(name, x, t, normalize, class_weight, reduce, soft_target_loss)
    fits = t.dtype.kind in "iu" and t.shape == (x.shape[0], *x.shape[2:])
    check(fits, name, "t must be integers of the shape of x without axis 1", x=x, t=t)
    check_labels(name, t, x.shape[1], ignore_label)
    constants = t, normalize, class_weight, ignore_label, reduce
    if label_smoothing:
        return _smoothed_cross_entropy(x, *constants, label_smoothing)
    return _softmax_cross_entropy(x, *constants)


def _smoothed_cross_entropy(x, t, normalize, class_weight, ignore_label, reduce, smoothing):
    xp = get_array_module(t)
    labels = xp.expand_dims(t, 1)
    onehot = labels == _per_class(xp.arange(x.shape[1], dtype=t.dtype), x)
    target = (onehot * (1 - smoothing) + smoothing / max(x.shape[1], 1)).astype(x.dtype)
    if class_weight is not None:
        target = target * _per_class(class_weight, x)
    counts = xp.broadcast_to(labels != ignore_label, x.shape)
    # The loss of an ignored sample is zero even if its log-probabilities are infinite.
    loss = -sum(where(counts, log_softmax(x) * target, xp.zeros((), x.dtype)), axis=1)
    if reduce == "no":
        return loss
    return sum(loss / _denominator((t != ignore_label).sum(), t, normalize, x.dtype))


def _per_class(values, x):
    """Returns values of classes with the axes of ``x``."""
    return values.reshape((1, -1) + (1,) * (x.ndim - 2))


def _soft_cross_entropy(name, x, t, normalize, class_weight, reduce, soft_target_loss):
    check_option(name, "soft_target_loss", soft_target_loss, ("cross-entropy", "kl-divergence"))
    rule = "t must be integer labels, or distributions of the shape of x"
    check(t.shape == x.shape, name, rule, x=x, t=t)
    weighted = t
    if class_weight is not None:
        weighted = t * _per_class(class_weight.astype(x.dtype, copy=False), x)
    loss = sum(log_softmax(x) * -weighted, axis=1)
    if soft_target_loss == "kl-divergence":
        xp = get_array_module(t)
        loss += (weighted * xp.log(xp.where(t > 0, t, 1))).sum(axis=1)
    if reduce == "no":
        return loss
    # No sample is ignored, so without further axes the count is the number of samples.
    if normalize and loss.ndim > 1:
        return sum(loss) / counting.denominator(loss.size, loss, x.dtype)
    return sum(loss) / max(len(t), 1)


def _labeled_loss(x, t):
    logarithm = np.log1p(np.exp(-np.absolute(x)))
    return -(x * (t - np.greater_equal(x, 0)) - logarithm) * np.greater_equal(t, 0)


def _labeled_slope(g, x, t):
    return (sigmoid.on(x) - t) * (g * np.greater_equal(t, 0))


def _sigmoid_cross_entropy_derivative(g, x, t, aux):
    g = g if aux is None else g * aux
    if g.shape != x.shape:
        g = np.broadcast_to(g, x.shape)
    if isinstance(g, Variable):
        return (sigmoid.on(x) - t) * (g * (t != -1).astype(t.dtype))
    return in_one_pass(_labeled_slope, g, x, t)


@differentiable(_sigmoid_cross_entropy_derivative)
def _sigmoid_cross_entropy(x, t, normalize, reduce):
    loss = in_one_pass(_labeled_loss, x, t)
    if reduce == "no":
        return loss.astype(x.dtype, copy=False), None
    valid = t != -1
    count = np.count_nonzero(valid) if type(t) is np.ndarray else valid.sum()
    count = _denominator(count, t, normalize, x.dtype)
    return (summed(loss, None, False) / count).astype(x.dtype, copy=False), 1 / count


def _binary_labels(name, x, t):
    t = as_array(t)
    fits = x.shape == t.shape and is_floating(x.dtype) and t.dtype.kind in "iu"
    check(fits, name, "t must be integers of the shape of x, floating point", x=x, t=t)
    check_labels(name, t, 2, -1)
    return t


@counting.noted
def sigmoid_cross_entropy(
    x: Input, t: Input, normalize: bool = True, reduce: str = "mean"
) -> Variable:
    """Cross entropy of the sigmoid of ``x`` with binary labels.

    Args:
        x: Variable or array of any shape, floating point: the log-odds of label 1.
        t: array of integers of the shape of ``x``: 0, 1, or -1; elements of label -1 have no loss.
        normalize: with reduce='mean', divide by the number of labels that are not -1; else by the
            batch size.
        reduce: 'mean', or 'no' for one loss per element.

    Returns:
        Variable: a scalar, or of the shape of ``x`` with reduce='no'.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: a label is out of range (on a GPU, only in debug mode), or an option is unknown.

    Example:
        >>> x, t = np.array([0.0, 2.0]), np.array([0, 1])
        >>> F.sigmoid_cross_entropy(x, t, reduce="no").array.round(2)
        array([0.69, 0.13])
    """
    name = "sigmoid_cross_entropy"
    check_option(name, "reduce", reduce, ("mean", "no"))
    t = _binary_labels(name, x, t)
    return _sigmoid_cross_entropy(x, t.astype(x.dtype), normalize, reduce)


@counting.noted
def focal_loss(
    x: Input,
    t: Input,
    alpha: float | None = 0.25,
    gamma: float = 2.0,
    normalize: bool = True,
    reduce: str = "mean",
) -> Variable:
    """Sigmoid cross entropy that down-weights well-classified samples.

    With the probability p of the label, the loss is -a (1 - p) ** gamma log(p), where a is
    ``alpha`` for label 1 and 1 - alpha for label 0.

    Args:
        x: Variable or array of any shape, floating point: the log-odds of label 1.
        t: array of integers of the shape of ``x``: 0, 1, or -1; elements of label -1 have no loss.
        alpha: weight of label 1, from 0 to 1; None gives both labels the weight 1.
        gamma: the exponent, which sets how fast the loss falls as p rises; 0 gives the cross
            entropy.
        normalize: with reduce='mean', divide by the number of labels that are not -1; else by the
            batch size.
        reduce: 'mean', or 'no' for one loss per element.

    Returns:
        Variable: a scalar, or of the shape of ``x`` with reduce='no'.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: a label is out of range (on a GPU, only in debug mode), or an option is unknown.

    Example:
        >>> F.focal_loss(np.array([0.0, 2.0]), np.array([0, 1]), reduce="no").array.round(2)
        array([0.13, 0.  ])

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
    # The form exp(-gamma softplus(z)) of (1 - p) ** gamma is differentiable even at p = 1.
    loss = exp(softplus(z) * -gamma) * softplus(-z) * weight
    if reduce == "no":
        return loss
    return sum(loss / _denominator((t != -1).sum(), t, normalize, x.dtype))


def hinge(x: Input, t: Input, norm: str = "L1", reduce: str = "mean") -> Variable:
    """One-versus-all hinge loss: max(0, 1 - s x), where s is 1 for the label's score, and -1 for
    all other scores.

    Args:
        x: Variable or array (N, C), floating point: scores.
        t: array of integers (N,): labels.
        norm: 'L1', or 'L2' for the square of the loss.
        reduce: 'mean' over the samples of the sum over the classes, or 'no' for one loss per
            element.

    Returns:
        Variable: a scalar, or (N, C) with reduce='no'.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: a label is out of range (on a GPU, only in debug mode), or an option is unknown.

    Example:
        >>> F.hinge(np.array([[0.5, -2.0]]), np.array([0]), reduce="no").array
        array([[0.5, 0. ]])
    """
    check_option("hinge", "norm", norm, ("L1", "L2"))
    check_option("hinge", "reduce", reduce, ("mean", "no"))
    t = as_array(t)
    check(x.ndim == 2 and is_floating(x.dtype), "hinge", "x must be floating point (N, C)", x=x)
    fits = t.dtype.kind in "iu" and t.shape == x.shape[:1]
    check(fits, "hinge", "t must hold an integer per sample", t=t, x=x)
    check_labels("hinge", t, x.shape[1])
    xp = get_array_module(t)
    is_label = t[:, None] == xp.arange(x.shape[1])
    loss = relu(1 - x * (is_label.astype(x.dtype) * 2 - 1))
    loss = square(loss) if norm == "L2" else loss
    return loss if reduce == "no" else reduced("hinge", loss, reduce) * x.shape[1]
