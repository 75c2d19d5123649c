"""Attention as one operation, with dropout of its weights: the specification of its kernels."""

from typing import Any, NamedTuple

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.kernels.operation import Operation, are_alike
from mpchain.kernels.philox import Counters, draw_kept
from mpchain.typing import Array


class Dropout(NamedTuple):
    """The dropout of attention's weights.

    Attributes:
        ratio: the probability of dropping a weight, above 0 and below 1.
        has_seed: whether a library draws the mask by its own generator, from a seed.
        drawn: array of int64 (2, 2), whose rows begin with the seed and an offset, if ``has_seed``.
            Otherwise the counters of the weights' random words, or an array of the shape of the
            weights and the dtype of the query: 1 for weights that are kept and 0 for others. None
            if nothing is drawn yet, to ask which kernel will compute.

    Example:
        >>> from mpchain.kernels import Counters, Dropout
        >>> Dropout(0.1, False, Counters(0, 1, 0, 0, 0, 0)).ratio
        0.1
    """

    ratio: float
    has_seed: bool
    drawn: Any = None


def kept_of(dropout: Dropout, shape: tuple[int, ...], like: Array) -> Array:
    """Returns 1 for the weights that are kept and 0 for the others, in the dtype of an array.

    Raises:
        ValueError: only the library that drew the mask can repeat it.

    Example:
        >>> from mpchain.kernels import Counters, Dropout
        >>> from mpchain.kernels.attend import kept_of
        >>> kept_of(Dropout(0.5, False, Counters(0, 1, 0, 0, 0, 0)), (1, 4), np.ones(1))
        array([[0., 1., 1., 1.]])
    """
    if dropout.has_seed:
        raise ValueError(
            "attention: its dropout was drawn by a library that cannot be used now: leave "
            "config.use_cudnn and config.kernels as they were in forward"
        )
    if isinstance(dropout.drawn, Counters):
        of_shape = get_array_module(like).broadcast_to(like.ravel()[:1], shape)
        return draw_kept(of_shape, dropout.drawn, dropout.ratio)
    return dropout.drawn.astype(like.dtype, copy=False)


def _factors(dropout, weights, like):
    """Returns what dropout multiplies the weights with."""
    kept = kept_of(dropout, weights.shape, like)
    return kept.astype(weights.dtype, copy=False) * weights.dtype.type(1 / (1 - dropout.ratio))


def _wide(*arrays):
    """Converts half-precision arrays to single precision, in which products are summed."""
    return [x.astype(np.float32) if x.dtype.itemsize == 2 else x for x in arrays]


def _weights(query, key, scale, is_causal, bias, log_sums=None):
    """Returns the weights of attention, and the logarithms of the sums of their exponentials."""
    xp = get_array_module(query)
    scores = (query * scale) @ key.swapaxes(-1, -2)
    scores = scores if bias is None else scores + bias
    if is_causal:
        is_later = xp.arange(scores.shape[-1]) > xp.arange(scores.shape[-2])[:, None]
        scores = xp.where(is_later, scores.dtype.type(-np.inf), scores)
    if log_sums is None:
        most = scores.max(axis=-1, keepdims=True)
        log_sums = most + xp.log(xp.exp(scores - most).sum(axis=-1, keepdims=True))
    return xp.exp(scores - log_sums), log_sums


def _attend(query, key, value, scale, is_causal, bias=None, dropout=None):
    return (
        query.shape[-1] == key.shape[-1]
        and key.shape[:-1] == value.shape[:-1]
        and are_alike(query, key, value, *(() if bias is None else (bias,)))
    )


def _attend_with_gradient(g, query, key, value, y, log_sums, *options):
    return (
        _attend(query, key, value, *options)
        and g.shape == y.shape == (*query.shape[:-1], value.shape[-1])
        and log_sums.shape == (*query.shape[:-1], 1)
        and are_alike(query, g, y)
        and log_sums.__class__ is query.__class__
    )


_OF_ATTENTION = "query (..., L, E), key (..., S, E) and value (..., S, V) of one dtype"


@Operation.given(_OF_ATTENTION, _attend)
def attention(
    query: Array,
    key: Array,
    value: Array,
    scale: float,
    is_causal: bool,
    bias: Array | None = None,
    dropout: Dropout | None = None,
) -> tuple[Array, Array]:
    """Returns softmax(scale query key^T + bias) value of (..., L, E), (..., S, E), (..., S, V).

    Also returns the logarithms of the sums of exponentials (..., L, 1). With ``is_causal``, query i
    attends to keys 0 to i only. The bias broadcasts to (..., L, S). Dropout zeroes weights and
    divides the others by 1 - ratio; the sums are those of all weights.

    Example:
        >>> one = np.ones((1, 1, 2, 3))
        >>> y, log_sums = attention(one, one, one, 1 / 3, False)
        >>> y.shape, log_sums.round(3).ravel()
        ((1, 1, 2, 3), array([1.693, 1.693]))
    """
    wide_query, wide_key, wide_value = _wide(query, key, value)
    weights, log_sums = _weights(wide_query, wide_key, scale, is_causal, bias)
    if dropout is not None:
        weights = weights * _factors(dropout, weights, query)
    return (weights @ wide_value).astype(query.dtype, copy=False), log_sums


@Operation.given(f"{_OF_ATTENTION}, with g and y (..., L, V)", _attend_with_gradient)
def attention_gradient(
    g: Array,
    query: Array,
    key: Array,
    value: Array,
    y: Array,
    log_sums: Array,
    scale: float,
    is_causal: bool,
    bias: Array | None = None,
    dropout: Dropout | None = None,
) -> tuple[Array, ...]:
    """Returns the gradients of query, key and value from that of y; see :func:`attention`.

    Example:
        >>> one, log_sums = np.ones((1, 1, 2, 3)), np.full((1, 1, 2, 1), 3 + np.log(2))
        >>> attention_gradient(one, one, one, one, one, log_sums, 1.0, False)[2].round(3)
        array([[[[1., 1., 1.],
                 [1., 1., 1.]]]])
    """
    g_, q, k, v, y_ = _wide(g, query, key, value, y)
    weights, _ = _weights(q, k, scale, is_causal, bias, log_sums)
    g_weights, dropped = g_ @ v.swapaxes(-1, -2), weights
    if dropout is not None:
        factors = _factors(dropout, weights, query)
        g_weights, dropped = g_weights * factors, weights * factors
    g_scores = weights * (g_weights - (g_ * y_).sum(axis=-1, keepdims=True)) * scale
    gradients = g_scores @ k, g_scores.swapaxes(-1, -2) @ q, dropped.swapaxes(-1, -2) @ g_
    return tuple(x.astype(query.dtype, copy=False) for x in gradients)


@Operation.given(_OF_ATTENTION, _attend)
def attention_kept(
    query: Array,
    key: Array,
    value: Array,
    scale: float,
    is_causal: bool,
    bias: Array | None,
    dropout: Dropout,
) -> Array:
    """Returns 1 for the weights that the dropout of :func:`attention` keeps and 0 for the others.

    The result has the shape (..., L, S) and the dtype of the query. Weights that are zero without
    dropout may have either number.

    Example:
        >>> from mpchain.kernels import Counters, Dropout
        >>> one, dropout = np.ones((2, 3)), Dropout(0.5, False, Counters(0, 1, 0, 0, 0, 0))
        >>> attention_kept(one, one, one, 1.0, False, None, dropout)
        array([[0., 1.],
               [1., 1.]])
    """
    return kept_of(dropout, (*query.shape[:-1], key.shape[-2]), query)
