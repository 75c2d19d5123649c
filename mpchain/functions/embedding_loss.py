"""Losses of embeddings, based on distances, covariances, and sampled scores."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.functions.activation import log_softmax, relu, softplus
from mpchain.functions.arithmetic import absolute
from mpchain.functions.array import reshape
from mpchain.functions.contraction import matmul
from mpchain.functions.declaring.precision import check_widths
from mpchain.functions.indexing import check_labels, get_item
from mpchain.functions.joining import concat
from mpchain.functions.loss import check_option, reduced
from mpchain.functions.mathematics import exp, log1p, sqrt, square, squared_difference, where
from mpchain.functions.reduction import logsumexp, mean, sum
from mpchain.typing import Array, Input
from mpchain.utils.arrays import converted
from mpchain.utils.type_check import check, fail
from mpchain.variable import Variable, as_array, as_variable


def _root(x, power=0.5):
    """Returns ``x ** power`` for x >= 0. The derivative at zero is ``power``, not infinity, so that
    the gradients of distances of zero are zero."""
    zero = (as_array(x) == 0).astype(x.dtype)
    return (sqrt(x + zero) if power == 0.5 else (x + zero) ** power) - zero


def contrastive(
    x0: Input, x1: Input, y: Input, margin: float = 1, reduce: str = "mean"
) -> Variable:
    """Contrastive loss: pulls like pairs together and pushes unlike pairs apart, up to a margin.

    With the distance d = norm(x0 - x1), the loss is
    (y d ** 2 + (1 - y) max(margin - d, 0) ** 2) / 2.

    Args:
        x0, x1: Variables or arrays (N, D), floating point.
        y: array of integers (N,): 1 for a like pair, 0 for an unlike pair.
        margin: the distance from which unlike pairs have no loss.
        reduce: 'mean' over the pairs, or 'no' for one loss per pair.

    Returns:
        Variable: a scalar, or (N,) with reduce='no'.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: ``margin`` is not positive, or ``reduce`` is unknown.

    Example:
        >>> x0, x1 = np.array([[0.0, 0.0], [0.0, 0.0]]), np.array([[3.0, 4.0], [0.0, 0.5]])
        >>> F.contrastive(x0, x1, np.array([1, 0]), reduce="no").array
        array([12.5  ,  0.125])

    See R. Hadsell et al., Dimensionality reduction by learning an invariant mapping, CVPR 2006.
    """
    name = "contrastive"
    x0, x1, y = as_variable(x0), as_variable(x1), as_array(y)
    _check_vectors(name, x0=x0, x1=x1)
    fits = y.dtype.kind in "iu" and y.shape == x0.shape[:1]
    check(fits, name, "y must hold an integer per pair", y=y, x0=x0)
    if margin <= 0:
        raise ValueError(f"{name}: margin must be positive, but is {margin}")
    y = y.astype(x0.dtype)
    square_distance = sum(squared_difference(x0, x1), axis=1)
    apart = square(relu(margin - _root(square_distance)))
    return reduced(name, (square_distance * y + apart * (1 - y)) * 0.5, reduce, ("mean", "no"))


def _check_vectors(name, **arrays):
    first = next(iter(arrays.values()))
    fits = all(x.shape == first.shape and is_floating(x.dtype) for x in arrays.values())
    rule = "the vectors must be floating point (N, D), and have the same shape"
    check(fits and first.ndim == 2, name, rule, **arrays)


def triplet(
    anchor: Input, positive: Input, negative: Input, margin: float = 0.2, reduce: str = "mean"
) -> Variable:
    """Triplet loss: an anchor must be closer to a positive example than to a negative one.

    The loss is max(norm(anchor - positive) ** 2 - norm(anchor - negative) ** 2 + margin, 0).

    Args:
        anchor, positive, negative: Variables or arrays (N, D, ...), of one shape, floating point.
        margin: the required difference of the squared distances.
        reduce: 'mean' over the triplets, or 'no' for one loss per triplet.

    Returns:
        Variable: a scalar; with reduce='no', (N, ...), the shape of ``anchor`` without axis 1.

    Raises:
        InvalidType: the shapes differ or lack axis 1, or an argument is not floating point.
        ValueError: ``margin`` is not positive, or ``reduce`` is unknown.

    Example:
        >>> anchor, positive, negative = np.zeros((1, 2)), np.full((1, 2), 0.5), np.ones((1, 2))
        >>> F.triplet(anchor, positive, negative, margin=2.0).item()
        0.5

    See J. Wang et al., Learning fine-grained image similarity with deep ranking, CVPR 2014.
    """
    arrays = {"anchor": anchor, "positive": positive, "negative": negative}
    fits = all(x.shape == anchor.shape and is_floating(x.dtype) for x in arrays.values())
    rule = (
        "anchor, positive and negative must be floating point (N, D, ...), and have the same shape"
    )
    check(fits and anchor.ndim >= 2, "triplet", rule, **arrays)
    if margin <= 0:
        raise ValueError(f"triplet: margin must be positive, but is {margin}")
    excess = squared_difference(anchor, positive) - squared_difference(anchor, negative)
    return reduced("triplet", relu(sum(excess, axis=1) + margin), reduce, ("mean", "no"))


def _covariance(name, **arrays):
    for argument, x in arrays.items():
        if x.ndim != 2 or not is_floating(x.dtype):
            fail(name, f"{argument} must be floating point (N, D)", **{argument: x})
    x, y = arrays.values()
    check(len(x) == len(y), name, "both arguments must have the same number of samples", **arrays)
    x, y = (v - mean(v, 0, keepdims=True) if len(v) else as_variable(v) for v in (x, y))
    return matmul(x, y, transa=True) / max(len(x), 1)


def _half_squared_sum(name, covariance, reduce):
    check_option(name, "reduce", reduce, ("half_squared_sum", "no"))
    return covariance if reduce == "no" else sum(square(covariance)) * 0.5


def cross_covariance(y: Input, z: Input, reduce: str = "half_squared_sum") -> Variable:
    """Penalty on the covariances between two sets of variables.

    The loss is half the sum of the squares of (y - mean(y))^T (z - mean(z)) / N.

    Args:
        y: Variable or array (N, D), floating point.
        z: Variable or array (N, E).
        reduce: 'half_squared_sum', or 'no' for the covariances.

    Returns:
        Variable: a scalar, or (D, E) with reduce='no'.

    Raises:
        InvalidType: ``y`` or ``z`` is not a floating-point matrix, or their numbers of samples
            differ.
        ValueError: ``reduce`` is unknown.

    Example:
        >>> y, z = np.array([[1.0], [3.0]]), np.array([[2.0], [6.0]])
        >>> F.cross_covariance(y, z, reduce="no").array
        array([[2.]])

    See B. Cheung et al., Discovering hidden factors of variation in deep networks, ICLR 2015.
    """
    name = "cross_covariance"
    return _half_squared_sum(name, _covariance(name, y=y, z=z), reduce)


def decov(h: Input, reduce: str = "half_squared_sum") -> Variable:
    """DeCov: penalty on the covariances between the units of a layer.

    The loss is half the sum of the squares of the off-diagonal covariances.

    Args:
        h: Variable or array (N, D), floating point.
        reduce: 'half_squared_sum', or 'no' for the covariances, with zeros on the diagonal.

    Returns:
        Variable: a scalar, or (D, D) with reduce='no'.

    Raises:
        InvalidType: ``h`` is not floating point (N, D).
        ValueError: ``reduce`` is unknown.

    Example:
        >>> F.decov(np.array([[1.0, 2.0], [3.0, 6.0]])).item()
        4.0

    See M. Cogswell et al., Reducing overfitting in deep networks by decorrelating representations,
    ICLR 2016.
    """
    covariance = _covariance("decov", h=h, _=h)
    off_diagonal = 1 - covariance.xp.eye(h.shape[1], dtype=h.dtype)
    return _half_squared_sum("decov", covariance * off_diagonal, reduce)


def discriminative_margin_based_clustering_loss(
    embeddings: Input,
    labels: Input,
    delta_v: float,
    delta_d: float,
    max_embedding_dim: int,
    norm: int = 1,
    alpha: float = 1.0,
    beta: float = 1.0,
    gamma: float = 0.001,
) -> tuple[Variable, Variable, Variable]:
    """Loss that draws the pixels of each instance together and the centers of instances apart.

    The three terms of an image are the mean over its instances of the mean of max(norm(center -
    pixel) - delta_v, 0) ** 2 over the pixels of the instance; the mean over pairs of instances of
    max(2 delta_d - norm(center - other center), 0) ** 2; and the mean of norm(center). Each term is
    averaged over the images.

    Args:
        embeddings: Variable or array (N, D, height, width), floating point.
        labels: array of integers (N, height, width): instances from 1 to D; 0 is background. An
            instance without pixels counts in the means too, with a center of zero.
        delta_v: the distance from the center of its instance within which a pixel has no loss.
        delta_d: half the distance beyond which two centers have no loss.
        max_embedding_dim: D, which is also the largest number of instances.
        norm: the order of the norm.
        alpha, beta, gamma: factors on the three terms.

    Returns:
        tuple of three scalar Variables: the variance, distance and regularization terms, times
        their factors.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: a label is out of range; on a GPU, only in debug mode.

    Example:
        >>> embeddings, labels = np.zeros((1, 2, 4, 4)), np.ones((1, 4, 4), int)
        >>> losses = F.discriminative_margin_based_clustering_loss(embeddings, labels, 0.5, 1.5, 2)
        >>> [loss.item() for loss in losses]
        [0.0, 9.0, 0.0]

    See B. De Brabandere et al., Semantic instance segmentation with a discriminative loss function,
    CVPR workshops 2017.
    """
    name = "discriminative_margin_based_clustering_loss"
    labels = as_array(labels)
    rule = "embeddings must be floating point (N, max_embedding_dim, height, width)"
    fits = embeddings.ndim == 4 and embeddings.shape[1] == max_embedding_dim
    sizes = {"embeddings": embeddings, "max_embedding_dim": max_embedding_dim}
    check(fits and is_floating(embeddings.dtype), name, rule, **sizes)
    n, k, height, width = embeddings.shape
    fits = labels.dtype.kind in "iu" and labels.shape == (n, height, width)
    check(fits, name, "labels must be integers (N, height, width)", labels=labels, **sizes)
    check_labels(name, labels, k + 1, argument="labels")

    xp = get_array_module(labels)
    pixels = reshape(embeddings, (n, k, height * width))
    instances = xp.arange(1, k + 1).reshape(1, k, 1)
    members = (labels.reshape(n, 1, height * width) == instances).astype(embeddings.dtype)
    shares = members / xp.maximum(members.sum(axis=2, keepdims=True), 1)
    centers = matmul(pixels, shares, transb=True)  # the shape is (N, D, instances)

    def length(x):
        return _root(sum(absolute(x) ** norm, axis=1), 1 / norm)

    away = square(relu(length(pixels - matmul(centers, members)) - delta_v))
    variance = sum(reshape(away, (n, 1, height * width)) * shares)
    between = reshape(centers, (n, k, k, 1)) - reshape(centers, (n, k, 1, k))
    near = square(relu(2 * delta_d - length(between)))
    distance = sum(near * (1 - xp.eye(k, dtype=near.dtype)))
    centered = sum(length(centers))
    n, pairs = max(n, 1), max(k * (k - 1), 1)
    factors = alpha / (n * k), beta / (n * pairs), gamma / (n * k)
    return variance * factors[0], distance * factors[1], centered * factors[2]


def _check_scored(name, x, t, W):
    """Raises InvalidType unless ``x`` is (N, D), ``t`` holds integers (N,), and ``W`` is (V, D)."""
    fits = x.ndim == W.ndim == 2 and is_floating(x.dtype, W.dtype)
    check(
        fits and x.shape[1] == W.shape[1],
        name,
        "x must be (N, D), and W must be (V, D) with the same D",
        x=x,
        W=W,
    )
    check_widths(name, {"x": x}, {"W": W})
    fits = t.dtype.kind in "iu" and t.shape == x.shape[:1]
    check(fits, name, "t must hold an integer per sample", t=t, x=x)


def _scores(x, W, labels):
    """Returns the products of each sample and the weight vectors of its labels: (N, n_labels)."""
    return reshape(matmul(get_item(W, labels), reshape(x, (*x.shape, 1))), labels.shape)


def negative_sampling(
    x: Input,
    t: Input,
    W: Input,
    sampler: Callable[[tuple[int, int]], Array],
    sample_size: int,
    reduce: str = "sum",
    *,
    return_samples: bool = False,
) -> Variable | Any:
    """Negative sampling loss: discriminates the label of each sample from random labels.

    The loss is -log(sigmoid(x . W[t])) - sum over the drawn labels k of log(sigmoid(-x . W[k])).

    Args:
        x: Variable or array (N, D), floating point.
        t: array of integers (N,): labels; samples of label -1 have no loss.
        W: Variable or array (V, D): a vector for each label.
        sampler: function that takes a shape and returns an array of labels (integers) of that
            shape; for example the method ``sample`` of :class:`mpchain.utils.WalkerAlias`.
        sample_size: number of random labels for each sample.
        reduce: 'sum', or 'no' for one loss per sample.
        return_samples: whether to return the labels too, as an array (N, 1 + sample_size) whose
            first column is ``t``.

    Returns:
        Variable: a scalar, or (N,) with reduce='no'; with ``return_samples``, a pair of this
            Variable and the labels.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: a label is out of range (on a GPU, only in debug mode), or ``reduce`` is
            unknown.

    Example:
        >>> sampler = mpchain.utils.WalkerAlias(np.ones(5)).sample
        >>> x, t, W = np.zeros((2, 3)), np.array([0, 4]), np.zeros((5, 3))
        >>> F.negative_sampling(x, t, W, sampler, 2, reduce="no").array.round(2)
        array([2.08, 2.08])

    See T. Mikolov et al., Distributed representations of words and phrases and their
    compositionality, NIPS 2013.
    """
    name = "negative_sampling"
    check_option(name, "reduce", reduce, ("sum", "no"))
    t = as_array(t)
    _check_scored(name, x, t, W)
    check_labels(name, t, len(W), -1)
    xp = get_array_module(t)
    labels = converted(xp, sampler((len(t), sample_size + 1)))
    labels = xp.concatenate([t[:, None].astype(labels.dtype), labels[:, 1:]], axis=1)
    is_drawn = (xp.arange(sample_size + 1) > 0).astype(x.dtype)
    losses = softplus(_scores(x, W, labels) * (is_drawn * 2 - 1))
    counts = xp.broadcast_to((t != -1)[:, None], labels.shape)
    loss = sum(where(counts, losses, xp.zeros((), losses.dtype)), axis=1)
    loss = loss if reduce == "no" else sum(loss)
    return (loss, labels) if return_samples else loss


def black_out(x: Input, t: Input, W: Input, samples: Input, reduce: str = "mean") -> Variable:
    """BlackOut loss: discriminates the label of each sample from given other labels.

    The loss is -log(p[t]) - sum over the samples k of log(1 - p[k]), where p is the softmax of
    x . W over the label and its samples.

    Args:
        x: Variable or array (N, D), floating point.
        t: array of integers (N,): labels.
        W: Variable or array (V, D): a vector for each label.
        samples: array of integers (N, S): other labels, where S is at least 1.
        reduce: 'mean' over the samples of the batch, or 'no' for one loss per sample.

    Returns:
        Variable: a scalar, or (N,) with reduce='no'.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: a label is out of range (on a GPU, only in debug mode), or ``reduce`` is
            unknown.

    Example:
        >>> x, t, W = np.zeros((2, 3)), np.array([0, 4]), np.zeros((5, 3))
        >>> F.black_out(x, t, W, np.array([[1, 2], [2, 3]]), reduce="no").array.round(2)
        array([1.91, 1.91])

    See S. Ji et al., BlackOut: speeding up recurrent neural network language models with very large
    vocabularies, ICLR 2016.
    """
    name = "black_out"
    t, samples = as_array(t), as_array(samples)
    _check_scored(name, x, t, W)
    fits = samples.dtype.kind in "iu" and samples.ndim == 2 and len(samples) == len(t)
    rule = "samples must be integers (N, S), S at least 1"
    check(fits and samples.shape[1] > 0, name, rule, samples=samples, t=t)
    check_labels(name, t, len(W))
    check_labels(name, samples, len(W), argument="samples")
    xp = get_array_module(t)
    log_p = log_softmax(_scores(x, W, xp.concatenate([t[:, None], samples], axis=1)))
    # 1 - p is accurate where p is small; for the largest p, the sum of the other probabilities is
    # used instead.
    largest = log_p.array.argmax(axis=1)[:, None] == xp.arange(log_p.shape[1])
    lowest, one = (xp.asarray(v, log_p.dtype) for v in (-np.inf, -1))
    of_others = logsumexp(where(largest, lowest, log_p), axis=1)
    of_small = log1p(-exp(where(largest, one, log_p)))
    log_not_p = where(largest, reshape(of_others, (-1, 1)), of_small)
    loss = -sum(concat([log_p[:, :1], log_not_p[:, 1:]], axis=1), axis=1)
    return reduced(name, loss, reduce, ("mean", "no"))
