"""Vectors for integers: rows of a table, and rotations that tell positions."""

import numpy as np

from mpchain.backends.cuda import get_array_module, is_gpu_array, scatter_add
from mpchain.configuration import config
from mpchain.functions.declaration import differentiable
from mpchain.utils.type_check import check
from mpchain.variable import as_array, as_variable

# The rows that indexes name, and the adjoint: adding rows up where indexes say. An index of -1
# names no row: it gives zeros, and what is added there is dropped.


@differentiable(lambda g, W_shape, ids: _add_rows.on(g, ids, W_shape[0]))
def _take_rows(W, ids):
    y = W[ids]
    y[ids < 0] = 0
    return y


@differentiable(lambda g, ids: _take_rows.on(g, ids))
def _add_rows(rows, ids, n):
    size = rows.shape[-1]
    known = ids >= 0
    ids, rows = ids[known], rows[known]
    # The widths of half precision would lose small gradients of frequent rows.
    total = get_array_module(rows).zeros((n, size), np.promote_types(rows.dtype, np.float32))
    if is_gpu_array(rows):
        scatter_add(total, ids, rows)
    else:
        # NumPy adds at indexes several times faster along one axis than along two.
        places = ids[:, None] * size + np.arange(size)
        np.add.at(total.reshape(-1), places.reshape(-1), rows.reshape(-1))
    return total.astype(rows.dtype, copy=False)


def embed_id(x, W, ignore_label=None):
    """Looks up rows of a table: y[...] = W[x[...]].

    Args:
        x: Variable or array of integers, of any shape: the rows' numbers.
        W: Variable or array (V, D), floating point.
        ignore_label (int): elements of this value name no row; their result is zero.

    Returns:
        Variable (*x.shape, D).

    Raises:
        InvalidType: a rank or dtype does not fit.
        ValueError: an element of ``x`` is neither ``ignore_label`` nor the number of a row. On a
            GPU, where looking would cost time, that is noticed in debug mode only.
    """
    x, W = as_array(x), as_variable(W)
    check(x.dtype.kind in "iu", "embed_id", "x must hold integers", x=x)
    table = W.ndim == 2 and W.dtype.kind == "f"
    check(table, "embed_id", "W must be floating point with 2 axes", W=W)
    ids = x.astype(np.intp, copy=False)
    xp = get_array_module(x)
    ignored = xp.zeros(x.shape, bool) if ignore_label is None else x == ignore_label
    if config.debug or not is_gpu_array(x):
        _check_ids(ids, ignored, W.shape[0], ignore_label)
    return _take_rows(W, xp.where(ignored, -1, ids))


def _check_ids(ids, ignored, n, ignore_label):
    wrong = ~ignored & ((ids < 0) | (ids >= n))
    if wrong.any():
        raise ValueError(
            f"embed_id: every element of x must be at least 0 and below {n}, the number of rows of "
            f"W (or {ignore_label=}), but one is {int(ids[wrong][0])}"
        )


@differentiable(lambda g, cos, sin, is_interleaved: _rotate.on(g, cos, -sin, is_interleaved))
def _rotate(x, cos, sin, is_interleaved):
    """Turns pairs of elements of the last axis by angles."""
    half = x.shape[-1] // 2
    first, second = slice(0, half), slice(half, None)
    if is_interleaved:
        first, second = slice(0, None, 2), slice(1, None, 2)
    a, b = x[..., first], x[..., second]
    y = get_array_module(x).empty_like(x)
    y[..., first] = a * cos - b * sin
    y[..., second] = a * sin + b * cos
    return y


def rotary_embedding(x, positions=None, base=10000.0, interleaved=False):
    """Turns pairs of features by angles that grow with the position in the sequence.

    Pair i of D / 2 turns by the angle position * base ** (-2 i / D): products of two vectors so
    turned depend on the distance of their positions alone.

    Args:
        x: Variable or array (..., L, D), floating point, D even: queries or keys, for instance
            (B, n_heads, L, D).
        positions: array (..., L) that broadcasts to the axes of ``x`` but the last; None means 0
            to L - 1.
        base (float): the slowest pair needs about 2 pi ``base`` positions for a turn.
        interleaved (bool): pairs are neighbors, 2 i and 2 i + 1, as in the paper; otherwise they
            are the features i and i + D / 2.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: a shape or dtype does not fit.
        ValueError: ``base`` is not positive.

    See J. Su et al., RoFormer: enhanced transformer with rotary position embedding, 2021.
    """
    name = "rotary_embedding"
    if base <= 0:
        raise ValueError(f"{name}: base must be positive, but is {base}")
    x = as_variable(x)
    fits = x.ndim > 1 and x.shape[-1] % 2 == 0 and x.dtype.kind == "f"
    check(fits, name, "x must be floating point, (..., L, D) with D even", x=x)
    xp = x.xp
    positions = xp.arange(x.shape[-2]) if positions is None else xp.asarray(as_array(positions))
    lead, shape = x.ndim - 1 - positions.ndim, x.shape[:-1]
    fits = lead >= 0 and all(m in (1, n) for m, n in zip(positions.shape, shape[lead:]))
    check(fits, name, "positions must broadcast to (..., L)", positions=positions, x=x)
    size = x.shape[-1]
    # Angles of far positions need more digits than the features have.
    speeds = float(base) ** (-xp.arange(0, size, 2) / max(size, 1))
    angles = positions[..., None] * speeds
    return _rotate(x, xp.cos(angles).astype(x.dtype), xp.sin(angles).astype(x.dtype), interleaved)
