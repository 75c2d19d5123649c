"""Attention: means of values, weighted by how well keys fit queries."""

import math

import numpy as np

from mpchain.functions.activation import softmax
from mpchain.functions.array import reshape, swapaxes, transpose
from mpchain.functions.connection import linear
from mpchain.functions.contraction import matmul
from mpchain.functions.mathematics import where
from mpchain.functions.noise import dropout
from mpchain.utils.arrays import broadcasts_to
from mpchain.utils.type_check import check
from mpchain.variable import as_array, as_variable


def _allowed(name, xp, shape, mask, is_causal):
    """Which keys each query may see, as an array of bool, or None for all."""
    allowed = None
    if is_causal:
        allowed = xp.arange(shape[-1]) <= xp.arange(shape[-2])[:, None]
    if mask is not None:
        mask = xp.asarray(as_array(mask))
        fits = mask.dtype.kind == "b" and broadcasts_to(mask.shape, shape)
        check(fits, name, f"mask must be bool and broadcast to {shape}", mask=mask)
        allowed = mask if allowed is None else allowed & mask
    return allowed


def scaled_dot_product_attention(
    query, key, value, mask=None, *, bias=None, is_causal=False, scale=None, dropout_ratio=0.0
):
    """Means of values, weighted by products of queries and keys.

    softmax(scale * query key^T + bias) value, where the softmax runs over the keys that the mask
    allows. A query that may see no key gets zeros.

    Args:
        query: Variable or array (..., L, E), floating point.
        key: Variable or array (..., S, E).
        value: Variable or array (..., S, V); the leading axes of all three broadcast.
        mask: array of bool that broadcasts to (..., L, S): True where a query may see a key.
        bias: Variable or array that broadcasts to (..., L, S), added to the products.
        is_causal (bool): query i sees the keys 0 to i only.
        scale (float): factor on the products; None means 1 / sqrt(E).
        dropout_ratio (float): the ratio of weights to zero in training; see :func:`dropout`.

    Returns:
        Variable (..., L, V).

    Raises:
        InvalidType: a shape or dtype does not fit.

    See A. Vaswani et al., Attention is all you need, NIPS 2017.
    """
    name = "scaled_dot_product_attention"
    query, key, value = as_variable(query), as_variable(key), as_variable(value)
    alike = query.dtype.kind == "f" and query.dtype == key.dtype == value.dtype
    rule = "query, key and value must have one floating dtype"
    check(alike, name, rule, query=query, key=key, value=value)
    ranks = min(query.ndim, key.ndim, value.ndim) > 1
    fits = ranks and query.shape[-1] == key.shape[-1] and key.shape[-2] == value.shape[-2]
    rule = "they must be (..., L, E), (..., S, E) and (..., S, V)"
    check(fits, name, rule, query=query, key=key, value=value)
    if scale is None:
        scale = 1 / math.sqrt(max(query.shape[-1], 1))
    scores = matmul(query * scale, swapaxes(key, -1, -2))
    if bias is not None:
        fits = bias.dtype.kind == "f" and broadcasts_to(bias.shape, scores.shape)
        check(fits, name, f"bias must be floating and broadcast to {scores.shape}", bias=bias)
        scores = scores + bias
    allowed = _allowed(name, query.xp, scores.shape, mask, is_causal)
    if allowed is not None:
        # Finite, so that rows without any key stay numbers; far enough from the limit to subtract.
        low = query.xp.asarray(np.finfo(scores.dtype).min / 2, scores.dtype)
        scores = where(allowed, scores, low)
    weights = softmax(scores, scores.ndim - 1)
    if mask is not None:
        weights = weights * allowed
    if dropout_ratio:
        weights = dropout(weights, dropout_ratio)
    return matmul(weights, value)


def _heads(x, W, b, n_heads):
    """Projects (B, L, I) to (B, n_heads, L, D)."""
    y = linear(x, W, b, n_batch_axes=2)
    y = reshape(y, (*y.shape[:2], n_heads, y.shape[2] // n_heads))
    return transpose(y, (0, 2, 1, 3))


def multi_head_attention(
    query,
    key,
    value,
    Wq,
    Wk,
    Wv,
    Wo,
    bq=None,
    bk=None,
    bv=None,
    bo=None,
    *,
    n_heads,
    mask=None,
    is_causal=False,
    dropout_ratio=0.0,
):
    """Attention by several heads, each with projections of its own.

    Head h attends with its D rows of ``Wq`` and ``Wk`` to the projection by its rows of ``Wv``; the
    heads' results, side by side, are projected by ``Wo``.

    Args:
        query: Variable or array (B, L, I), floating point.
        key: Variable or array (B, S, J).
        value: Variable or array (B, S, K).
        Wq, Wk: Variables or arrays (n_heads * D, I) and (n_heads * D, J).
        Wv: Variable or array (n_heads * V, K).
        Wo: Variable or array (O, n_heads * V).
        bq, bk, bv, bo: Variables or arrays, one element for each row of these; or None.
        n_heads (int): the number of heads.
        mask: array of bool that broadcasts to (B, n_heads, L, S): True where a query may see a key;
            (B, 1, 1, S) leaves out what pads the keys' sequences.
        is_causal (bool): query i sees the keys 0 to i only.
        dropout_ratio (float): the ratio of attention weights to zero in training.

    Returns:
        Variable (B, L, O).

    Raises:
        InvalidType: a shape or dtype does not fit.

    See A. Vaswani et al., Attention is all you need, NIPS 2017.
    """
    name = "multi_head_attention"
    ranks = query.ndim == key.ndim == value.ndim == 3
    fits = ranks and key.shape[:2] == value.shape[:2] and query.shape[0] == key.shape[0]
    rule = "they must be (B, L, I), (B, S, J) and (B, S, K)"
    check(fits, name, rule, query=query, key=key, value=value)
    rows = (Wq.shape[0], Wk.shape[0], Wv.shape[0])
    fits = n_heads > 0 and rows[0] == rows[1] and rows[0] % n_heads == rows[2] % n_heads == 0
    rule = "Wq and Wk must have as many rows, and n_heads must divide them and those of Wv"
    check(fits, name, rule, Wq=Wq, Wk=Wk, Wv=Wv, n_heads=n_heads)
    fits = Wo.ndim == 2 and Wo.shape[1] == rows[2]
    check(fits, name, "Wo must have as many columns as Wv has rows", Wo=Wo, Wv=Wv)
    y = scaled_dot_product_attention(
        _heads(query, Wq, bq, n_heads),
        _heads(key, Wk, bk, n_heads),
        _heads(value, Wv, bv, n_heads),
        mask,
        is_causal=is_causal,
        dropout_ratio=dropout_ratio,
    )
    y = reshape(transpose(y, (0, 2, 1, 3)), (*query.shape[:2], rows[2]))
    return linear(y, Wo, bo, n_batch_axes=2)
