"""Dtypes, shapes and broadcasting.

Each is linear, so its derivative is its adjoint, and nothing is kept but shapes.
"""

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.functions.declaration import differentiable, fit_with
from mpchain.utils.arrays import broadcasts_to
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


def summed(x, axis, keepdims):
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
    if not broadcasts_to(shape, x.shape):
        raise InvalidType(f"sum_to: {shape} does not broadcast to x of shape {x.shape}")
    lead = x.ndim - len(shape)
    axes = tuple(i for i, n in enumerate(shape, lead) if n == 1 and x.shape[i] != 1)
    return summed(x, tuple(range(lead)) + axes, True).reshape(shape)


fit_with(sum_to.on, _cast.on)
