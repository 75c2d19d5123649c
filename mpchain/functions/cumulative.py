"""Cumulative sums and products along an axis."""

import numpy as np

from mpchain import kernels
from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.functions.array import reshape, swapaxes
from mpchain.functions.declaring.declaration import differentiable
from mpchain.typing import Input
from mpchain.utils.type_check import check
from mpchain.variable import Variable


def _filled(x, n, value):
    """Returns ``n`` elements of ``value``, to be joined to the last axis of ``x``."""
    return get_array_module(x).full((*x.shape[:-1], n), value, x.dtype)


def _before(y):
    """Shifts the last axis by one: each element is replaced by the previous element, and the first
    element by 1."""
    return np.concatenate([_filled(y, 1, 1), y[..., :-1]], axis=-1)


def _ahead(x, step, value=0):
    """Returns, for each element, the element ``step`` positions later on the last axis, or
    ``value`` past the end."""
    return np.concatenate([x[..., step:], _filled(x, step, value)], axis=-1)


def products_of_others(x: Input) -> Input:
    """Returns, for each element, the product of all other elements along the last axis, computed
    without division.

    Args:
        x: Variable or array.

    Returns:
        Variable or array of the shape of ``x``.

    Example:
        >>> products_of_others(np.array([2.0, 3.0, 0.0]))
        array([0., 0., 6.])
    """
    if not isinstance(x, Variable):
        return kernels.products_of_others(x)
    if x.shape[-1] == 0:
        return x
    return _before(_cumprod.on(x)) * _before(_cumprod.on(x[..., ::-1]))[..., ::-1]


def _weighted_rest(g, x):
    """Returns s with s[i] = g[i] + x[i + 1] s[i + 1], in a logarithmic number of steps."""
    factor, step = _ahead(x, 1), 1
    while step < x.shape[-1]:
        g = g + factor * _ahead(g, step)
        factor = factor * _ahead(factor, step)
        step *= 2
    return g


def _cumprod_derivative(g, x, y):
    return _before(y) * _weighted_rest(g, x) if x.shape[-1] else g


@differentiable(_cumprod_derivative)
def _cumprod(x):
    # Half precision is multiplied in single precision, because a product that underflows or
    # overflows would spoil all later products.
    y = get_array_module(x).cumprod(x, axis=-1, dtype=np.promote_types(x.dtype, np.float32))
    return y.astype(x.dtype, copy=False)


@differentiable(lambda g, is_backward: _cumsum.on(g, not is_backward))
def _cumsum(x, is_backward=False):
    return kernels.running_sums(x, is_backward)


def _along(name, function, x, axis):
    check(is_floating(x.dtype), name, "x must be floating point", x=x)
    if axis is None:
        return function(reshape(x, (x.size,)))
    check(-x.ndim <= axis < x.ndim, name, "axis must be an axis of x", x=x, axis=axis)
    if axis % x.ndim == x.ndim - 1:
        return function(x)
    return swapaxes(function(swapaxes(x, axis, -1)), axis, -1)


def cumsum(x: Input, axis: int | None = None) -> Variable:
    """Cumulative sum along an axis.

    Args:
        x: Variable or array, floating point.
        axis: the axis to sum along; None flattens ``x`` first.

    Returns:
        Variable of the shape of ``x``; (x.size,) if ``axis`` is None.

    Raises:
        InvalidType: ``x`` is not floating point or has no such axis.

    Example:
        >>> F.cumsum(np.arange(6.0).reshape(2, 3), axis=1).array
        array([[ 0.,  1.,  3.],
               [ 3.,  7., 12.]])
    """
    return _along("cumsum", _cumsum, x, axis)


def cumprod(x: Input, axis: int | None = None) -> Variable:
    """Cumulative product along an axis; derivatives are exact where elements are zero.

    Args:
        x: Variable or array, floating point.
        axis: the axis to multiply along; None flattens ``x`` first.

    Returns:
        Variable of the shape of ``x``; (x.size,) if ``axis`` is None.

    Raises:
        InvalidType: ``x`` is not floating point or has no such axis.

    Example:
        >>> F.cumprod(np.array([1.0, 2.0, 3.0])).array
        array([1., 2., 6.])
    """
    return _along("cumprod", _cumprod, x, axis)
