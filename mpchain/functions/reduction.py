"""Reductions over axes: sums, means, extrema and their indices, products, log-sum-exp."""

import functools
import math

import numpy as np

from mpchain import kernels
from mpchain.backends.dtypes import is_floating
from mpchain.functions import counting
from mpchain.functions.array import broadcast_to, reshape, summed, transpose, widened
from mpchain.functions.cumulative import products_of_others
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.mathematics import square
from mpchain.functions.positions import shown
from mpchain.kernels import thresholds
from mpchain.typing import Axes, Input, Output
from mpchain.utils.arrays import broadcasts_to
from mpchain.utils.type_check import check, fail
from mpchain.variable import Variable, as_array, as_variable


def _numbers(axis, ndim):
    """Returns the axes that ``axis`` selects, as indices from 0."""
    axes = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple(a % ndim for a in axes if ndim)


def _kept(shape, axes):
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _kept_and_count(shape, axis):
    """Returns the shape of a reduction that keeps its axes, and the number of elements of each
    sum."""
    try:
        return _remembered(shape, axis)
    except TypeError:  # an axis without a hash, such as np.array(0)
        return _remembered.__wrapped__(shape, axis)


@functools.lru_cache(maxsize=1024)
def _remembered(shape, axis):
    axes = _numbers(axis, len(shape))
    return _kept(shape, axes), math.prod(shape[a] for a in axes)


_NUMBERS_OF_NUMPY = np.ndarray, np.float32, np.float64


def _spread(g, shape, axis):
    """Returns the adjoint of a sum: every element receives the gradient of its sum."""
    if g.__class__ in _NUMBERS_OF_NUMPY and g.shape == () and g.dtype.char in "fd":
        # The result is what np.broadcast_to returns, in a quarter of the time.
        gx = np.ndarray(shape, g.dtype, np.asarray(g), strides=(0,) * len(shape))
        gx.flags.writeable = False
        return gx
    if g.shape != ():
        kept, _ = _kept_and_count(shape, axis)
        g = g if g.shape == kept else np.reshape(g, kept)
    return np.broadcast_to(g, shape)


@differentiable(lambda g, x_shape, axis: _spread(g, x_shape, axis))
def sum(x: Input, axis: Axes = None, keepdims: bool = False) -> Output:
    """Sum over axes.

    Args:
        x: Variable or array.
        axis: the axes to reduce; None means all axes.
        keepdims: whether to keep the summed axes, with size one.

    Returns:
        Variable of the dtype of ``x``, or the wider dtype in which NumPy sums bool and narrow
        integers; float16 and bfloat16 are summed in float32.

    Example:
        >>> F.sum(np.arange(6.0).reshape(2, 3), axis=0).array
        array([3., 5., 7.])
    """
    return summed(x, axis, keepdims)


def _mean_derivative(g, x_shape, axis):
    _, count = _kept_and_count(x_shape, axis)
    return _spread(g / (count or 1), x_shape, axis)


@differentiable(_mean_derivative)
def _mean(x, axis=None, keepdims=False):
    if not isinstance(x, np.ndarray) or x.dtype.char == "e" or not x.size:
        return x.mean(axis=axis, keepdims=keepdims)  # on GPUs, mean takes one kernel launch
    total = summed(x, axis, keepdims)
    return total / (x.size // (total.size or 1))


def mean(
    x: Input, axis: Axes = None, weights: Input | None = None, keepdims: bool = False
) -> Variable:
    """Mean over axes, optionally weighted.

    Args:
        x: Variable or array, floating point.
        axis: the axes to reduce; None means all axes.
        weights: Variable or array that broadcasts to ``x``, or a vector along one ``axis``.
        keepdims: whether to keep the averaged axes, with size one.

    Returns:
        Variable; without ``weights``, of the dtype of ``x``.

    Raises:
        InvalidType: ``x`` is not floating point, or ``weights`` do not broadcast to ``x``.

    Example:
        >>> F.mean(np.arange(6.0).reshape(2, 3), axis=1).array
        array([1., 4.])
        >>> F.mean(np.arange(6.0).reshape(2, 3), axis=1, weights=np.array([1.0, 0.0, 3.0])).array
        array([1.5, 4.5])
    """
    if not is_floating(x.dtype):
        fail("mean", "x must be floating point", x=x)
    if weights is None:
        return counting.note_plain(_mean(x, axis, keepdims), x)
    return _weighted_mean(x, axis, weights, keepdims)


@counting.noted
def _weighted_mean(x, axis, weights, keepdims):
    given = weights
    if weights.ndim == 1 and isinstance(axis, (int, np.integer)) and -x.ndim <= axis < x.ndim:
        shape = [1] * x.ndim
        shape[axis] = weights.size
        weights = reshape(weights, tuple(shape))
    check(
        broadcasts_to(weights.shape, x.shape),
        "mean",
        "weights must broadcast to x",
        x=x,
        weights=given,
    )
    weights = broadcast_to(weights, x.shape)
    total = sum(weights, axis, keepdims)
    if 0 < x.ndim == len(_numbers(axis, x.ndim)):
        total = counting.weight_sum(total, x)
    return sum(x * weights, axis, keepdims) / total


def _reduced_axes(name, x, axis):
    """Returns the axes to reduce, as indices from 0. Raises InvalidType if ``x`` is not floating
    point or lacks an axis, or if an axis is given twice."""
    ndim = x.ndim
    if axis is None and is_floating(x.dtype):
        return tuple(range(ndim))
    if axis.__class__ is int and -ndim <= axis < ndim and is_floating(x.dtype):
        return (axis % ndim,)
    check(is_floating(x.dtype), name, "x must be floating point", x=x)
    axes = axis if isinstance(axis, tuple) else () if axis is None else (axis,)
    known = all(-x.ndim <= a < x.ndim for a in axes)
    check(known, name, "every axis must be an axis of x", x=x, axis=axis)
    reduced = _numbers(axis, x.ndim)
    check(len(set(reduced)) == len(reduced), name, "the axes must differ", x=x, axis=axis)
    return reduced


def _extremum_derivative(g, x, y, axes):
    """Returns the gradient of ``x``: every element that equals the extremum receives the gradient
    of the extremum."""
    g, y = (np.reshape(v, _kept(x.shape, axes)) for v in (g, y))
    return g * np.equal(x, y)


@differentiable(_extremum_derivative)
def _max(x, axes, keepdims):
    if x.size >= thresholds.compiled and (len(axes) < x.ndim or x.__class__ is not np.ndarray):
        return _extremum(x, axes, keepdims, False)
    return x.max(axis=axes if len(axes) < x.ndim else None, keepdims=keepdims)


@differentiable(_extremum_derivative)
def _min(x, axes, keepdims):
    if x.size >= thresholds.compiled and (len(axes) < x.ndim or x.__class__ is not np.ndarray):
        return _extremum(x, axes, keepdims, True)
    return x.min(axis=axes if len(axes) < x.ndim else None, keepdims=keepdims)


def _extremum(x, axes, keepdims, is_least):
    y = kernels.extremum(x, tuple(sorted(axes)), is_least)
    return y.reshape(_kept(x.shape, axes)) if keepdims else y


def _filled_axes(name, x, axis):
    """Returns the axes to reduce. Raises InvalidType if an axis is empty, because an empty axis has
    no extremum."""
    axes, shape = _reduced_axes(name, x, axis), x.shape
    if 0 in shape:
        filled = 0 not in [shape[i] for i in axes]
        check(filled, name, "x must have elements along the axes", x=x, axis=axis)
    return axes


def max(x: Input, axis: Axes = None, keepdims: bool = False) -> Variable:
    """Maximum over axes; every element that equals the maximum receives the gradient.

    Args:
        x: Variable or array, floating point.
        axis: the axes to reduce; None means all axes.
        keepdims: whether to keep the reduced axes, with size one.

    Returns:
        Variable of the dtype of ``x``.

    Raises:
        InvalidType: ``x`` is not floating point, lacks an axis, or has no elements along the axes.

    Example:
        >>> F.max(np.arange(6.0).reshape(2, 3), axis=1).array
        array([2., 5.])
    """
    return _max(x, _filled_axes("max", x, axis), keepdims)


def min(x: Input, axis: Axes = None, keepdims: bool = False) -> Variable:
    """Minimum over axes; every element that equals the minimum receives the gradient.

    Args:
        x: Variable or array, floating point.
        axis: the axes to reduce; None means all axes.
        keepdims: whether to keep the reduced axes, with size one.

    Returns:
        Variable of the dtype of ``x``.

    Raises:
        InvalidType: ``x`` is not floating point, lacks an axis, or has no elements along the axes.

    Example:
        >>> F.min(np.arange(6.0).reshape(2, 3), axis=1).array
        array([0., 3.])
    """
    return _min(x, _filled_axes("min", x, axis), keepdims)


def _place(name, x, axis):
    if isinstance(axis, tuple):
        raise TypeError(f"{name}: axis must be an integer or None, but is {axis}")
    x = as_variable(x)
    _filled_axes(name, x.array, axis)
    positions = as_array(getattr(x.array, name)(axis=axis)).astype(np.int32)
    return as_variable(shown(name, x, (axis,), positions))


def argmax(x: Input, axis: int | None = None) -> Variable:
    """Index of the first maximum along an axis; the result has no gradient.

    Args:
        x: Variable or array, floating point.
        axis: the axis; None counts all elements in row-major order.

    Returns:
        Variable of int32, without the reduced axis.

    Raises:
        InvalidType: ``x`` is not floating point, or has no such axis or no element along it.
        TypeError: ``axis`` is a tuple.

    Example:
        >>> F.argmax(np.arange(6.0).reshape(2, 3), axis=1).array
        array([2, 2], dtype=int32)
    """
    return _place("argmax", x, axis)


def argmin(x: Input, axis: int | None = None) -> Variable:
    """Index of the first minimum along an axis; the result has no gradient.

    Args:
        x: Variable or array, floating point.
        axis: the axis; None counts all elements in row-major order.

    Returns:
        Variable of int32, without the reduced axis.

    Raises:
        InvalidType: ``x`` is not floating point, or has no such axis or no element along it.
        TypeError: ``axis`` is a tuple.

    Example:
        >>> F.argmin(np.arange(6.0).reshape(2, 3), axis=1).array
        array([0, 0], dtype=int32)
    """
    return _place("argmin", x, axis)


@differentiable(lambda g, x: np.reshape(g, (*x.shape[:-1], 1)) * products_of_others(x))
def _prod(x):
    return kernels.products(x)


def prod(x: Input, axis: Axes = None, keepdims: bool = False) -> Variable:
    """Product over axes; derivatives of every order are exact where elements are zero.

    Args:
        x: Variable or array, floating point.
        axis: the axes to reduce; None means all axes.
        keepdims: whether to keep the reduced axes, with size one.

    Returns:
        Variable of the dtype of ``x``.

    Raises:
        InvalidType: ``x`` is not floating point or lacks an axis.

    Example:
        >>> F.prod(np.arange(6.0).reshape(2, 3), axis=1).array
        array([ 0., 60.])
    """
    axes = _reduced_axes("prod", x, axis)
    kept, rest = _kept(x.shape, axes), tuple(i for i in range(x.ndim) if i not in axes)
    shape = tuple(x.shape[i] for i in rest)
    count = math.prod(x.shape[i] for i in axes)
    if rest + axes != tuple(range(x.ndim)):
        x = transpose(x, (*rest, *axes))
    y = _prod(reshape(x, (*shape, count)))
    return reshape(y, kept) if keepdims else y


def _logsumexp_derivative(g, x, aux, axes):
    # exp(x - y) would sum to one only to the precision of y, which is coarse if y is large.
    top, total = aux
    is_array = not isinstance(x, Variable)
    exp_x = np.exp((x if is_array else widened(x)) - top)
    total = total if is_array else sum(exp_x, axes, True)
    # If the sum is zero, the share of each element is zero too.
    total = total + np.equal(total, 0).astype(total.dtype)
    return exp_x * (np.reshape(g, total.shape) / total)


@differentiable(_logsumexp_derivative)
def _logsumexp(x, axes):
    is_large = x.size >= thresholds.compiled and x.dtype.char in "fd" and isinstance(x, np.ndarray)
    if is_large and axes == tuple(range(x.ndim - len(axes), x.ndim)):
        top, total = _sums_of_rows(x, _kept(x.shape, axes))
    else:
        top = x.max(axis=axes, keepdims=True)
        top = np.where(np.isinf(top), 0, top).astype(x.dtype, copy=False)
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        total = np.exp(x - top).sum(axis=axes, dtype=wide, keepdims=True)
    with np.errstate(divide="ignore"):  # log(0) is minus infinity here
        y = np.squeeze(np.log(total) + top, axes)
    return y.astype(x.dtype, copy=False), (top, total)


def _sums_of_rows(x, shape):
    """Returns, for each row, a number m, which is the largest element, or 0 if that is infinite,
    and the sum of exp(x - m)."""
    count = math.prod(shape)
    with np.errstate(invalid="ignore"):  # a difference of infinities
        _, total, most = kernels.exponentials(x.reshape(count, x.size // count))
        is_infinite = np.isinf(most)
        total = np.where(is_infinite, np.exp(np.where(is_infinite, most, 0)), total)
    top = np.where(is_infinite, 0, most).astype(x.dtype, copy=False)
    return top.reshape(shape), total.reshape(shape)


def logsumexp(x: Input, axis: Axes = None) -> Variable:
    """Logarithm of the sum of exponentials, log(sum(exp(x))), without overflow.

    Args:
        x: Variable or array, floating point.
        axis: the axes to reduce; None means all axes.

    Returns:
        Variable of the dtype of ``x``, without the reduced axes.

    Raises:
        InvalidType: ``x`` is not floating point, lacks an axis, or has no elements along the axes.

    Example:
        >>> F.logsumexp(np.log([[1.0, 3.0]]), axis=1).array.round(2)
        array([1.39])
    """
    return _logsumexp(x, _filled_axes("logsumexp", x, axis))


def batch_l2_norm_squared(x: Input) -> Variable:
    """Squared Euclidean norm of each sample of a batch.

    Args:
        x: Variable or array (N, ...), floating point, of two axes or more.

    Returns:
        Variable (N,).

    Raises:
        InvalidType: ``x`` is not floating point or has fewer than two axes.

    Example:
        >>> F.batch_l2_norm_squared(np.arange(6.0).reshape(2, 3)).array
        array([ 5., 50.])
    """
    rule = "x must be floating point, of 2 axes or more"
    check(x.ndim > 1 and is_floating(x.dtype), "batch_l2_norm_squared", rule, x=x)
    return sum(square(x), axis=tuple(range(1, x.ndim)))
