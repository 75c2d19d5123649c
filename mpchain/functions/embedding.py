"""Embeddings of integers, and rotary position embeddings."""

import math

import numpy as np

from mpchain import kernels
from mpchain.backends.cuda import get_array_module, is_gpu_array
from mpchain.backends.dtypes import is_floating
from mpchain.functions.declaring.declaration import differentiable, sums_over_rows
from mpchain.functions.indexing import check_labels
from mpchain.observers import one_call
from mpchain.row_gradients import RECORDED, RowGradient
from mpchain.typing import Input
from mpchain.utils.arrays import broadcasts_to, converted
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_array, as_variable

# The functions below look up rows, or compute the adjoint, which adds rows at indices. The index -1
# stands for no row: a lookup of this index gives zeros, and an addition at this index has no
# effect.


def _row_gradient(g, W_shape, ids):
    """Returns the gradient of a large table as a RowGradient of the looked-up rows; None if the
    dense gradient is computed; RECORDED in a recorded step if the table is very large."""
    size = math.prod(W_shape)
    if W_shape[0] < _FEW * ids.size or size < _LARGE:
        return None
    if type(g) is not np.ndarray:
        return RECORDED if size >= _COSTLY and isinstance(g, np.ndarray) else None
    rows, ids = g.reshape(-1, W_shape[1]), ids.reshape(-1)
    sums, present = kernels.sum_distinct_rows(rows, ids, W_shape[0])
    return RowGradient(present, sums, W_shape[0])


def _has_negative(ids):
    """Returns whether indices may be negative, so that rows must be left out. The result is True
    for arrays of observers, because their values in a replay may be negative."""
    return type(ids) is not np.ndarray or (ids.size > 0 and np.minimum.reduce(ids, axis=None) < 0)


# A table that is small, or not much larger than the number of rows looked up, gets a dense
# gradient, which takes less time. Replays always compute the dense gradient; for large tables, the
# dense gradient takes more time than replays save.
_FEW, _LARGE, _COSTLY = 4, 1 << 16, 1 << 19


@differentiable(
    sums_over_rows(lambda g, W_shape, ids: _add_rows.on(g, ids, W_shape[0]), _row_gradient)
)
def _take_rows(W, ids):
    return one_call(_taken_rows, W, ids)


def _taken_rows(W, ids):
    # indexing by a mask would wait until the host knows the number of selected elements
    if is_gpu_array(ids):
        return _zero_unless(ids >= 0, W[ids])
    y = W.take(ids, 0)  # W[ids] would take twice the time
    if _has_negative(ids):
        y[ids < 0] = 0
    return y


def _zero_unless(known, rows):
    return get_array_module(rows).where(known[..., None], rows, rows.dtype.type(0))


@differentiable(lambda g, ids: _take_rows.on(g, ids))
def _add_rows(rows, ids, n):
    return one_call(_added_rows, rows, ids, n)


def _added_rows(rows, ids, n):
    if is_gpu_array(ids):
        rows = _zero_unless(ids >= 0, rows)
    elif _has_negative(ids):
        known = ids >= 0
        ids, rows = ids[known], rows[known]
    return kernels.sum_rows(rows, ids, n)


def embed_id(x: Input, W: Input, ignore_label: int | None = None) -> Variable:
    """Looks up rows of a table: y[...] = W[x[...]].

    Args:
        x: Variable or array of integers, of any shape: indices of rows.
        W: Variable or array (V, D), floating point.
        ignore_label: rows of the result are zero for elements of ``x`` with this value; None means
            that no value is ignored.

    Returns:
        Variable (*x.shape, D).

    Raises:
        InvalidType: ``x`` does not hold integers, or ``W`` is not floating point (V, D).
        ValueError: an element of ``x`` is neither ``ignore_label`` nor the index of a row. On a
            GPU, this is checked only in debug mode, because the check waits for the device.

    Example:
        >>> F.embed_id(np.array([2, 0]), np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])).array
        array([[4., 5.],
               [0., 1.]])
    """
    x, W = as_array(x), as_variable(W)
    check(x.dtype.kind in "iu", "embed_id", "x must hold integers", x=x)
    table = W.ndim == 2 and is_floating(W.dtype)
    check(table, "embed_id", "W must be floating point with 2 axes", W=W)
    check_labels("embed_id", x, W.shape[0], ignore_label, "x")
    if ignore_label is None and type(x) is np.ndarray:
        # the indices are copied, because x may change before backward
        return _take_rows(W, x.astype(np.intp))
    ids = x.astype(np.intp, copy=False)
    xp = get_array_module(x)
    ignored = xp.zeros(x.shape, bool) if ignore_label is None else x == ignore_label
    return _take_rows(W, xp.where(ignored, -1, ids))


@differentiable(lambda g, cos, sin, is_interleaved: _rotate.on(g, cos, -sin, is_interleaved))
def _rotate(x, cos, sin, is_interleaved):
    """Rotates pairs of elements of the last axis by angles with the given cosines and sines."""
    return one_call(_rotated, x, cos, sin, is_interleaved)


def _rotated(x, cos, sin, is_interleaved):
    half = x.shape[-1] // 2
    first, second = slice(half), slice(half, None)
    if is_interleaved:
        first, second = slice(0, None, 2), slice(1, None, 2)
    a, b = x[..., first], x[..., second]
    y = get_array_module(x).empty_like(x)
    y[..., first] = a * cos - b * sin
    y[..., second] = a * sin + b * cos
    return y


def rotary_embedding(
    x: Input, positions: Input | None = None, base: float = 10000.0, interleaved: bool = False
) -> Variable:
    """Rotates pairs of features by angles proportional to the position in the sequence.

    Pair i of D / 2 rotates by the angle position * base ** (-2 i / D); the inner product of two
    rotated vectors depends on their positions only by the difference of the positions.

    Args:
        x: Variable or array (..., L, D), floating point, D even: queries or keys, for instance
            (B, n_heads, L, D).
        positions: array (..., L) that broadcasts to all axes of ``x`` but the last; None means 0 to
            L - 1.
        base: a positive number; the larger it is, the more slowly the later pairs rotate.
        interleaved: whether pair i is the features 2 i and 2 i + 1, as in the paper, or the
            features i and i + D / 2.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: the shape or dtype of an argument does not match.
        ValueError: ``base`` is not positive.

    Example:
        >>> F.rotary_embedding(np.ones((2, 2))).array.round(2)
        array([[ 1.  ,  1.  ],
               [-0.3 ,  1.38]])

    See J. Su et al., RoFormer: enhanced transformer with rotary position embedding, 2021.
    """
    name = "rotary_embedding"
    if base <= 0:
        raise ValueError(f"{name}: base must be positive, but is {base}")
    x = as_variable(x)
    fits = x.ndim > 1 and x.shape[-1] % 2 == 0 and is_floating(x.dtype)
    check(fits, name, "x must be floating point, (..., L, D) with D even", x=x)
    xp = x.xp
    places = xp.arange(x.shape[-2]) if positions is None else converted(xp, as_array(positions))
    fits = broadcasts_to(places.shape, x.shape[:-1])
    check(fits, name, "positions must broadcast to (..., L)", positions=places, x=x)
    size = x.shape[-1]
    # Angles of large positions need more precision than the features have.
    speeds = float(base) ** (-xp.arange(0, size, 2) / max(size, 1))
    angles = places[..., None] * speeds
    return _rotate(x, xp.cos(angles).astype(x.dtype), xp.sin(angles).astype(x.dtype), interleaved)
