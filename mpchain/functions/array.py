"""Shapes and places: functions that move elements, add them up or repeat them.

Each is linear, so its derivative is its adjoint, and nothing is kept but shapes.
"""

# ruff: noqa: PLW0108 (a derivative's parameter names say what it is given)

import math

import numpy as np

from mpchain.backends.cuda import get_array_module, is_gpu_array, scatter_add
from mpchain.functions.declaration import differentiable, fit_with
from mpchain.utils.type_check import InvalidType, check
from mpchain.variable import as_variable


@differentiable(lambda g, x_dtype: _cast.on(g, x_dtype))
def _cast(x, typ):
    return x.astype(typ)


def cast(x, typ):
    """Converts the elements to another dtype.

    Args:
        x: Variable or array.
        typ: what :class:`numpy.dtype` accepts.

    Returns:
        Variable of the shape of ``x``; ``x`` itself if it has that dtype.
    """
    return _cast(x, np.dtype(typ)) if x.dtype != typ else x


@differentiable(lambda g, x_shape: np.reshape(g, x_shape))
def _reshape(x, shape):
    return x.reshape(shape)


def reshape(x, shape):
    """Gives the elements, in row-major order, another shape.

    Args:
        x: Variable or array.
        shape (tuple of int): one element may be -1, and is then what remains.

    Returns:
        Variable of that shape; a view where NumPy can make one.

    Raises:
        InvalidType: the sizes differ.
    """
    if x.shape == shape:
        return as_variable(x)
    return _reshape(x, shape)


def _inverse(axes):
    return axes if axes is None else tuple(np.argsort([a % len(axes) for a in axes]).tolist())


@differentiable(lambda g, axes: np.transpose(g, _inverse(axes)))
def transpose(x, axes=None):
    """Permutes the axes.

    Args:
        x: Variable or array.
        axes (tuple of int): axis ``i`` of the result is axis ``axes[i]`` of ``x``; None reverses.

    Returns:
        Variable, a view.
    """
    return x.transpose(axes)


def swapaxes(x, axis1, axis2):
    """Exchanges two axes.

    Args:
        x: Variable or array.
        axis1, axis2 (int): the axes.

    Returns:
        Variable, a view.
    """
    n = x.ndim
    known = -n <= axis1 < n and -n <= axis2 < n
    check(known, "swapaxes", "both axes must be axes of x", x=x, axis1=axis1, axis2=axis2)
    axes = list(range(n))
    axes[axis1], axes[axis2] = axes[axis2], axes[axis1]
    return transpose(x, tuple(axes))


@differentiable(lambda g, x_shape: sum_to.on(g, x_shape))
def broadcast_to(x, shape):
    """Repeats the elements along new axes and axes of size one, as NumPy does.

    Args:
        x: Variable or array.
        shape (tuple of int): the result's shape.

    Returns:
        Variable, a read-only view.

    Raises:
        InvalidType: ``x`` does not broadcast to ``shape``.
    """
    if x.shape == shape:
        return x
    try:
        return get_array_module(x).broadcast_to(x, shape)
    except ValueError:
        raise InvalidType(
            f"broadcast_to: x of shape {x.shape} does not broadcast to {shape}"
        ) from None


def _broadcasts_to(shape, target):
    lead = len(target) - len(shape)
    return lead >= 0 and all(n in (1, m) for n, m in zip(shape, target[lead:]))


def _summed(x, axis, keepdims):
    """Sums of an array; of half precision in single, as a sum of ones else ends at 2048."""
    if x.dtype != np.float16:
        return x.sum(axis=axis, keepdims=keepdims)
    return x.sum(axis=axis, keepdims=keepdims, dtype=np.float32).astype(np.float16)


@differentiable(lambda g, x_shape: np.broadcast_to(g, x_shape))
def sum_to(x, shape):
    """Sums over axes until ``shape`` is left: the adjoint of :func:`broadcast_to`.

    Args:
        x: Variable or array.
        shape (tuple of int): a shape that broadcasts to that of ``x``.

    Returns:
        Variable of that shape.

    Raises:
        InvalidType: ``shape`` does not broadcast to the shape of ``x``.
    """
    if x.shape == shape:
        return x
    if not _broadcasts_to(shape, x.shape):
        raise InvalidType(f"sum_to: {shape} does not broadcast to x of shape {x.shape}")
    lead = x.ndim - len(shape)
    axes = tuple(i for i, n in enumerate(shape, lead) if n == 1 and x.shape[i] != 1)
    return _summed(x, tuple(range(lead)) + axes, True).reshape(shape)


fit_with(sum_to.on, _cast.on)


def _reduced_shape(shape, axis):
    """``shape`` with the summed axes kept as ones."""
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = {a % len(shape) for a in axes} if shape else set()
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _spread(g, shape, axis):
    """The adjoint of a sum: every summed element gets the gradient of its sum."""
    kept = _reduced_shape(shape, axis)
    return np.broadcast_to(g if g.shape == kept else np.reshape(g, kept), shape)


@differentiable(lambda g, x_shape, axis: _spread(g, x_shape, axis))
def sum(x, axis=None, keepdims=False):
    """Sum over axes.

    Args:
        x: Variable or array.
        axis (int or tuple of int): the axes; None means all.
        keepdims (bool): keep the summed axes, of size one.

    Returns:
        Variable of the dtype of ``x``; float16 is summed in float32.
    """
    return _summed(x, axis, keepdims)


def _mean_derivative(g, x_shape, axis):
    count = math.prod(x_shape) // max(math.prod(_reduced_shape(x_shape, axis)), 1)
    return _spread(g / max(count, 1), x_shape, axis)


@differentiable(_mean_derivative)
def _mean(x, axis=None, keepdims=False):
    return x.mean(axis=axis, keepdims=keepdims)


def mean(x, axis=None, weights=None, keepdims=False):
    """Mean over axes, weighted if asked.

    Args:
        x: Variable or array, floating point.
        axis (int or tuple of int): the axes; None means all.
        weights: Variable or array that broadcasts to ``x``, or a vector along one ``axis``.
        keepdims (bool): keep the averaged axes, of size one.

    Returns:
        Variable of the dtype of ``x``.
    """
    check(x.dtype.kind == "f", "mean", "x must be floating point", x=x)
    if weights is None:
        return _mean(x, axis, keepdims)
    given = weights
    if weights.ndim == 1 and isinstance(axis, (int, np.integer)) and -x.ndim <= axis < x.ndim:
        shape = [1] * x.ndim
        shape[axis] = weights.size
        weights = reshape(weights, tuple(shape))
    check(_broadcasts_to(weights.shape, x.shape), "mean", "weights must fit x", x=x, weights=given)
    weights = broadcast_to(weights, x.shape)
    total = sum(x * weights, axis, keepdims)
    return total / sum(weights, axis, keepdims)


def _is_basic(slices):
    items = slices if isinstance(slices, tuple) else (slices,)
    return all(
        item is None or item is Ellipsis or isinstance(item, (int, slice, np.integer))
        for item in items
    )


def _item_scatter(g, slices, shape):
    zeros = get_array_module(g).zeros
    if _is_basic(slices):
        x = zeros(shape, g.dtype)
        x[slices] = g
        return x
    x = zeros(shape, np.float32 if g.dtype == np.float16 else g.dtype)
    add_at(x, slices, g)
    return x.astype(g.dtype, copy=False)


def add_at(x, slices, values):
    """Adds ``values`` to ``x[slices]`` in place, as often as an element is named."""
    if _is_basic(slices):
        x[slices] += values
    elif is_gpu_array(x):
        scatter_add(x, slices, values)
    elif isinstance(slices, np.ndarray) and slices.dtype.kind in "iu" and values.ndim > 1:
        # NumPy adds at places of a vector several times faster than rows of a matrix.
        width = math.prod(x.shape[1:])
        places = slices.reshape(-1, 1) * np.intp(width) + np.arange(width)
        np.add.at(x.reshape(-1), places.reshape(-1), values.reshape(-1))
    else:
        np.add.at(x, slices, values)


@differentiable(lambda g, slices: get_item.on(g, slices))
def _scatter_item(x, slices, shape):
    return _item_scatter(x, slices, shape)


@differentiable(lambda g, x_shape, slices: _scatter_item.on(g, slices, x_shape))
def _get_item(x, slices):
    return x[slices]


def get_item(x, slices):
    """Elements of an array, as NumPy's indexing ``x[slices]``.

    Args:
        x: Variable or array.
        slices: an integer, slice, Ellipsis, None, array of integers or bool, or a tuple of these.

    Returns:
        Variable; a view where NumPy makes one.
    """
    if isinstance(slices, list):
        slices = tuple(slices) if any(isinstance(s, slice) for s in slices) else np.asarray(slices)
    return _get_item(x, slices)


get_item.on = _get_item.on


def with_zeros(gys, shapes):
    """Gradients of several outputs, with zeros for those outputs that have none."""
    reference = next(g for g in gys if g is not None)
    xp = get_array_module(reference)
    return [xp.zeros(s, reference.dtype) if g is None else g for g, s in zip(gys, shapes)]


def _split_derivative(gys, x_shape, indexes, axis):
    bounds = (0, *indexes, x_shape[axis])
    shapes = [list(x_shape) for _ in gys]
    for shape, begin, end in zip(shapes, bounds, bounds[1:]):
        shape[axis] = end - begin
    return (concat.on(with_zeros(gys, shapes), axis),)


@differentiable(joint=_split_derivative, n_arrays=1)
def _split(x, indexes, axis):
    parts, begin = [], 0
    for end in (*indexes, x.shape[axis]):
        parts.append(x[(slice(None),) * (axis % x.ndim) + (slice(begin, end),)])
        begin = end
    return tuple(parts)


def _concat_derivative(g, xs_shape, axis):
    indexes = np.cumsum([shape[axis] for shape in xs_shape])[:-1]
    return _split.on(g, tuple(indexes.tolist()), axis)


@differentiable(joint=_concat_derivative)
def concat(xs, axis=1):
    """Joins arrays along an axis.

    Args:
        xs: list of Variables or arrays, equal in shape but for that axis.
        axis (int): the axis.

    Returns:
        Variable.

    Raises:
        InvalidType: shapes differ elsewhere, or there is no such axis.
    """
    check_joinable("concat", xs, axis)
    return get_array_module(*xs).concatenate(xs, axis)


def check_joinable(name, xs, axis):
    """Raises InvalidType unless arrays can be joined along ``axis`` by the function ``name``."""
    check(len(xs) > 0, name, "xs must hold at least one array", xs=xs)
    for x in xs:
        check(-x.ndim <= axis < x.ndim, name, "axis must be one of every array", x=x, axis=axis)
        alike = x.ndim == xs[0].ndim and all(
            m == n or i == axis % x.ndim for i, (m, n) in enumerate(zip(x.shape, xs[0].shape))
        )
        check(alike, name, "shapes must agree but for the axis", x=x, first=xs[0], axis=axis)


def split_axis(x, indices_or_sections, axis, force_tuple=True):
    """Cuts an array along an axis.

    Args:
        x: Variable or array.
        indices_or_sections: the number of equal parts, or the indexes at which all parts but the
            first begin.
        axis (int): the axis.
        force_tuple (bool): return a tuple even of a single part.

    Returns:
        tuple of Variables.

    Raises:
        InvalidType: there is no such axis, or it cannot be cut into equal parts.
    """
    check(-x.ndim <= axis < x.ndim, "split_axis", "axis must be one of x", x=x, axis=axis)
    if isinstance(indices_or_sections, (int, np.integer)):
        n, size = int(indices_or_sections), x.shape[axis]
        check(
            n > 0 and size % n == 0, "split_axis", "the axis must divide into equal parts", x=x, n=n
        )
        indices_or_sections = range(size // n, size, size // n)
    parts = _split(x, tuple(int(i) for i in indices_or_sections), axis)
    return parts if force_tuple or len(parts) > 1 else parts[0]
