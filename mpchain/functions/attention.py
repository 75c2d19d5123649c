"""Scaled dot-product and multi-head attention."""

import math
from collections.abc import Sequence

import numpy as np

from mpchain import kernels
from mpchain.backends.cuda import get_array_module, is_gpu_array
from mpchain.backends.dtypes import is_floating, smallest
from mpchain.configuration import config
from mpchain.functions.activation import softmax
from mpchain.functions.array import reshape, swapaxes, transpose
from mpchain.functions.connection import linear
from mpchain.functions.contraction import matmul
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.fused_attention import (
    draw_dropout,
    fused_attention,
    is_fused,
    undrawn_dropout,
)
from mpchain.functions.joining import concat, split_axis
from mpchain.functions.mathematics import where
from mpchain.functions.noise import dropout
from mpchain.functions.reduction import sum as sum_over
from mpchain.observers import one_call
from mpchain.typing import Input
from mpchain.utils.arrays import broadcasts_to, converted
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_array, as_variable


def _allowed(xp, shape, mask, is_causal):
    """Returns an array of bool that is True where a query may attend to a key; None if all queries
    may attend to all keys."""
    allowed = None
    if is_causal:
        allowed = xp.arange(shape[-1]) <= xp.arange(shape[-2])[:, None]
    if mask is not None:
        allowed = mask if allowed is None else allowed & mask
    return allowed


def _check_mask(name, mask, shape):
    fits = mask.dtype.kind == "b" and broadcasts_to(mask.shape, shape)
    check(fits, name, "mask must be bool and broadcast to {shape}", mask=mask, shape=shape)
    return mask.shape


def _check_bias(name, bias, shape):
    fits = is_floating(bias.dtype) and broadcasts_to(bias.shape, shape)
    rule = "bias must be floating point and broadcast to {shape}"
    check(fits, name, rule, bias=bias, shape=shape)
    return bias.shape


def _fused(name, query, key, value, mask, bias, is_causal, scale, ratio):
    """Returns attention from a library's kernel, with the mask as part of the bias; None if no such
    kernel takes the arguments."""
    dropout, options = undrawn_dropout(ratio), (scale, is_causal)
    if mask is None and bias is None:
        if not is_fused(query, key, value, *options, None, dropout):
            return None
        drawn = draw_dropout(dropout, query, key)
        return fused_attention(query, key, value, *options, None, drawn)
    xp, shape = query.xp, (*query.shape[:-1], key.shape[-2])
    has_gradient = isinstance(bias, Variable) and bias.requires_grad and config.enable_backprop
    if has_gradient or query.ndim != 4 or query.shape[:2] != key.shape[:2]:
        return None
    shapes = []
    if mask is not None:
        shapes.append(_check_mask(name, mask, shape))
    if bias is not None:
        shapes.append(_check_bias(name, bias, shape))
        if bias.dtype != query.dtype:
            return None
    shape = np.broadcast_shapes(*shapes, (1, 1, *shape[-2:]))
    like_bias = xp.broadcast_to(query.array.ravel()[:1], shape)
    if not query.size or not is_fused(query, key, value, *options, like_bias, dropout):
        return None
    added = np.zeros((), query.dtype)[()] if bias is None else as_array(bias)
    if mask is not None:
        added = xp.where(mask, added, np.asarray(smallest(query.dtype) / 2, query.dtype)[()])
    drawn = draw_dropout(dropout, query, key)
    y = fused_attention(query, key, value, *options, xp.broadcast_to(added, shape), drawn)
    allowed = None if mask is None else _allowed(xp, shape, mask, is_causal)
    if allowed is None:
        return y
    return y * allowed.any(axis=-1, keepdims=True)


def _scaled_softmax_derivative(g, y, axis, scale):
    if not isinstance(g, Variable):
        return kernels.softmax_gradient(g, y, axis, scale)
    return (g - sum_over.on(g * y, axis, True)) * y * scale


@differentiable(_scaled_softmax_derivative)
def _scaled_softmax(x, axis, scale):
    """Returns the softmax of scale * x. On GPUs, the multiplication needs no extra kernel."""
    return kernels.softmax(x, axis, scale)


@differentiable(None, lambda g: g, None)
def _without_later(allowed, scores, low):
    """Masks the scores of later keys. The derivative needs no mask: each query has a key, so the
    weights of later keys are zero, and the derivative of the softmax is zero for their scores."""
    return get_array_module(scores).where(allowed, scores, low)


def scaled_dot_product_attention(
    query: Input,
    key: Input,
    value: Input,
    mask: Input | None = None,
    *,
    bias: Input | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_ratio: float = 0.0,
) -> Variable:
    """Scaled dot-product attention: softmax(scale * query key^T + bias) value.

    The softmax is over the keys to which a query may attend; for a query that may attend to no key,
    the result is zero.

    Args:
        query: Variable or array (..., L, E), floating point.
        key: Variable or array (..., S, E).
        value: Variable or array (..., S, V); the leading axes of ``query``, ``key`` and ``value``
            broadcast.
        mask: array of bool that broadcasts to (..., L, S): True where a query may attend to a key.
        bias: Variable or array that broadcasts to (..., L, S), added to the scaled products.
        is_causal: whether query i attends to keys 0 to i only.
        scale: factor on the products; None means 1 / sqrt(E).
        dropout_ratio: ratio of the weights dropped in training; see :func:`dropout`.

    Returns:
        Variable (..., L, V).

    Raises:
        InvalidType: the shape or dtype of an argument does not match.

    Example:
        >>> query, key, value = np.zeros((2, 4, 8)), np.zeros((2, 5, 8)), np.ones((2, 5, 3))
        >>> F.scaled_dot_product_attention(query, key, value, is_causal=True).shape
        (2, 4, 3)

    See A. Vaswani et al., Attention is all you need, NIPS 2017.
    """
    name = "scaled_dot_product_attention"
    query, key, value = as_variable(query), as_variable(key), as_variable(value)
    alike = is_floating(query.dtype) and query.dtype == key.dtype == value.dtype
    rule = "query, key and value must have the same floating-point dtype"
    check(alike, name, rule, query=query, key=key, value=value)
    ranks = min(query.ndim, key.ndim, value.ndim) > 1
    fits = ranks and query.shape[-1] == key.shape[-1] and key.shape[-2] == value.shape[-2]
    rule = "query, key and value must have the shapes (..., L, E), (..., S, E) and (..., S, V)"
    check(fits, name, rule, query=query, key=key, value=value)
    if scale is None:
        scale = 1 / math.sqrt(max(query.shape[-1], 1))
    mask = None if mask is None else converted(query.xp, as_array(mask))
    if is_gpu_array(query.array):
        y = _fused(name, query, key, value, mask, bias, is_causal, scale, dropout_ratio)
        if y is not None:
            return y
    # On GPUs, the softmax applies the scale, unless a bias is added, the product could overflow in
    # half precision, or masked scores could overflow with a large scale.
    is_late = is_gpu_array(query.array) and query.dtype != np.float16 and bias is None
    is_late = is_late and isinstance(scale, float) and 0 < scale <= 1
    scores = matmul(query if is_late else query * scale, swapaxes(key, -1, -2))
    if bias is not None:
        _check_bias(name, bias, scores.shape)
        scores = scores + bias
    if mask is not None:
        _check_mask(name, mask, scores.shape)
    allowed = _allowed(query.xp, scores.shape, mask, is_causal)
    if allowed is not None:
        # The value is finite, so that rows without keys are not NaN and differences do not
        # overflow.
        low = query.xp.asarray(smallest(scores.dtype) / 2, scores.dtype)
        is_plain = mask is None and (bias is None or is_gpu_array(query.array))
        scores = (_without_later if is_plain else where)(allowed, scores, low)
    axis = scores.ndim - 1
    weights = _scaled_softmax(scores, axis, scale) if is_late else softmax(scores, axis)
    if mask is not None:
        weights = weights * allowed
    if dropout_ratio:
        weights = dropout(weights, dropout_ratio)
    y = matmul(weights, value)
    return _with_contiguous_gradient(y) if is_gpu_array(y.array) else y


def project_heads(
    x: Input, Ws: Sequence[Input], bs: Sequence[Input | None], n_heads: int
) -> list[Variable]:
    """Projects x (B, L, I) to (B, n_heads, L, D) with each of several weights, and returns the list
    of results.

    On GPUs, one matrix product computes all projections if all weights, like all biases, have the
    same shape and dtype, and the weights are no larger than ``x``.

    Args:
        x: Variable or array (B, L, I).
        Ws: Variables or arrays (n_heads * D, I).
        bs: Variables or arrays (n_heads * D,), or None.
        n_heads: the number of heads.

    Example:
        >>> x, W = np.zeros((2, 4, 6)), np.zeros((6, 6))
        >>> [heads.shape for heads in project_heads(x, [W, W], [None, None], n_heads=3)]
        [(2, 3, 4, 2), (2, 3, 4, 2)]
    """
    W, b, n = Ws[0], bs[0], len(Ws)
    # For small x, joining the weights takes too long compared to the products.
    pays = n > 1 and is_gpu_array(as_array(x)) and x.shape[0] * x.shape[1] >= W.shape[0]
    if not pays or any(_kind(V, c) != _kind(W, b) for V, c in zip(Ws, bs)):
        ys = [linear(x, W, b, n_batch_axes=2) for W, b in zip(Ws, bs)]
        ys = [reshape(y, (*y.shape[:2], n_heads, y.shape[2] // n_heads)) for y in ys]
        return [transpose(y, (0, 2, 1, 3)) for y in ys]
    y = linear(x, concat(Ws, 0), n_batch_axes=2)
    shape = n, n_heads, W.shape[0] // n_heads
    y = reshape(y, (*y.shape[:2], *shape))
    if b is not None:
        y = _add_and_order(y, concat(bs, 0))
    ys = [transpose(y, (0, 3, 2, 1, 4)) for y in split_axis(y, n, 2)]
    return [reshape(y, (*y.shape[:2], *y.shape[3:])) for y in ys]


@differentiable(lambda g: g, lambda g, b_shape: sum_over.on(np.reshape(g, (-1, *b_shape)), 0))
def _add_and_order(y, b):
    """Returns y (B, L, n, n_heads, D) + b in a memory layout where each of the n parts has the axis
    order that products need.

    Products would copy arrays of another axis order; the addition of the bias changes the order
    without an extra copy.
    """
    return one_call(_ordered_sum, y, b)


def _ordered_sum(y, b):
    xp, (B, L, n, n_heads, D) = get_array_module(y), y.shape
    ordered = xp.empty((n, B, n_heads, L, D), y.dtype)
    return xp.add(y, b.reshape(n, n_heads, D), out=ordered.transpose(1, 3, 0, 2, 4))


@differentiable(
    lambda g: g if isinstance(g, Variable) else get_array_module(g).ascontiguousarray(g)
)
def _with_contiguous_gradient(y):
    """Returns y, and copies its gradient to contiguous memory once, where each of two products
    would copy it."""
    return y


def _kind(W, b):
    """Returns the shapes and dtypes that must be equal for weights to be joined."""
    return W.shape, W.dtype, b if b is None else (b.shape, b.dtype)


def multi_head_attention(
    query: Input,
    key: Input,
    value: Input,
    Wq: Input,
    Wk: Input,
    Wv: Input,
    Wo: Input,
    bq: Input | None = None,
    bk: Input | None = None,
    bv: Input | None = None,
    bo: Input | None = None,
    *,
    n_heads: int,
    mask: Input | None = None,
    is_causal: bool = False,
    dropout_ratio: float = 0.0,
) -> Variable:
    """Multi-head attention.

    Each head projects with its rows of ``Wq``, ``Wk`` and ``Wv`` and attends to the projections;
    ``Wo`` projects the concatenated results of the heads.

    Args:
        query: Variable or array (B, L, I), floating point.
        key: Variable or array (B, S, J).
        value: Variable or array (B, S, K).
        Wq, Wk: Variables or arrays (n_heads * D, I) and (n_heads * D, J).
        Wv: Variable or array (n_heads * V, K).
        Wo: Variable or array (O, n_heads * V).
        bq, bk, bv, bo: Variables or arrays with an element for each row of the weights, or None.
        n_heads: the number of heads.
        mask: array of bool that broadcasts to (B, n_heads, L, S): True where a query may attend to
            a key; (B, 1, 1, S) masks padding.
        is_causal: whether query i attends to keys 0 to i only.
        dropout_ratio: ratio of the attention weights dropped in training.

    Returns:
        Variable (B, L, O).

    Raises:
        InvalidType: the shape or dtype of an argument does not match.

    Example:
        >>> x, W = np.zeros((2, 4, 6)), np.zeros((6, 6))
        >>> F.multi_head_attention(x, x, x, W, W, W, W, n_heads=3).shape
        (2, 4, 6)

    See A. Vaswani et al., Attention is all you need, NIPS 2017.
    """
    name = "multi_head_attention"
    ranks = query.ndim == key.ndim == value.ndim == 3
    fits = ranks and key.shape[:2] == value.shape[:2] and query.shape[0] == key.shape[0]
    rule = "query, key and value must have the shapes (B, L, I), (B, S, J) and (B, S, K)"
    check(fits, name, rule, query=query, key=key, value=value)
    rows = (Wq.shape[0], Wk.shape[0], Wv.shape[0])
    fits = n_heads > 0 and rows[0] == rows[1] and rows[0] % n_heads == rows[2] % n_heads == 0
    rule = (
        "Wq and Wk must have equally many rows, and n_heads must divide the rows of Wq, Wk and Wv"
    )
    check(fits, name, rule, Wq=Wq, Wk=Wk, Wv=Wv, n_heads=n_heads)
    fits = Wo.ndim == 2 and Wo.shape[1] == rows[2]
    check(fits, name, "Wo must have as many columns as Wv has rows", Wo=Wo, Wv=Wv)
    if query is key is value:
        heads = project_heads(query, (Wq, Wk, Wv), (bq, bk, bv), n_heads)
    else:
        projections = (query, Wq, bq), (key, Wk, bk), (value, Wv, bv)
        heads = [project_heads(x, [W], [b], n_heads)[0] for x, W, b in projections]
    options = {"is_causal": is_causal, "dropout_ratio": dropout_ratio}
    y = scaled_dot_product_attention(heads[0], heads[1], heads[2], mask, **options)
    y = reshape(transpose(y, (0, 2, 1, 3)), (*query.shape[:2], rows[2]))
    return linear(y, Wo, bo, n_batch_axes=2)
