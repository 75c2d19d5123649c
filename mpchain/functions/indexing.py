"""Indexing, and the adjoint of indexing, which adds values at indices."""

import math
from collections.abc import Sequence
from operator import getitem
from typing import Any

import numpy as np

from mpchain import kernels
from mpchain.backends.cuda import get_array_module, is_gpu_array
from mpchain.backends.cuda import scatter_add as scatter_add_on_gpu
from mpchain.backends.dtypes import is_floating
from mpchain.configuration import config, get_dtype
from mpchain.functions.array import reshape, transpose
from mpchain.functions.declaring.declaration import adds_parts, differentiable
from mpchain.functions.positions import shown
from mpchain.kernels.cpu import numba_cpu
from mpchain.observers import current, one_call
from mpchain.typing import Array, DTypeLike, Input
from mpchain.utils.arrays import converted
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_array, as_variable

_MANY = 8
"""The limit of the quotient of an array's number of elements and the number of added values. Below
the limit, values are added at flat indices, although finding these indices may take numbering all
elements of the array."""
_BASIC = (int, np.integer, slice, type(None), type(Ellipsis))


def _is_basic(slices):
    items = slices if isinstance(slices, tuple) else (slices,)
    return all(isinstance(item, _BASIC) for item in items)


def _are_rows(slices, values):
    is_vector = isinstance(slices, np.ndarray) and slices.dtype.kind in "iu"
    return is_vector and is_floating(values.dtype) and values.ndim > slices.ndim


def _are_distinct(slices):
    is_mask = isinstance(slices, np.ndarray) and slices.dtype == bool
    return is_mask or _is_basic(slices)


def _are_many(values, shape):
    return values.ndim > 0 and math.prod(shape) < _MANY * values.size


def _places(shape, slices):
    """Returns the flat indices of the selected elements, as a vector."""
    axis = _axis_of_vector(slices)
    if axis is None or axis >= len(shape):
        return np.arange(math.prod(shape)).reshape(shape)[slices].reshape(-1)
    n, width = shape[axis], math.prod(shape[axis + 1 :])
    chosen = np.arange(n)[slices[axis]]
    places = np.arange(0, math.prod(shape[: axis + 1]), n)[:, None] + chosen
    return (places[..., None] * width + np.arange(width)).reshape(-1)


def _axis_of_vector(slices):
    """Returns the axis that an integer vector indexes, if all other indices are full slices; else
    None."""
    if not isinstance(slices, tuple) or not slices or not isinstance(slices[-1], np.ndarray):
        return None
    is_vector = slices[-1].ndim == 1 and slices[-1].dtype.kind in "iu"
    are_whole = all(isinstance(s, slice) and s == slice(None) for s in slices[:-1])
    return len(slices) - 1 if is_vector and are_whole else None


def add_at(x: Array, slices: Any, values: Array) -> None:
    """Adds ``values`` to ``x[slices]`` in place; repeated indices accumulate.

    Example:
        >>> x = np.zeros(3)
        >>> add_at(x, [0, 0, 2], np.array([1.0, 2.0, 3.0]))
        >>> x
        array([3., 0., 3.])
    """
    if _are_distinct(slices):
        x[slices] += values
    elif is_gpu_array(x):
        scatter_add_on_gpu(x, slices, values)
    elif _are_rows(slices, values):
        if not numba_cpu.add_rows(x, values, slices):
            x += kernels.sum_rows(values, slices, len(x))
    elif x.flags.c_contiguous and _are_many(values, x.shape):
        # NumPy adds at flat indices of a vector several times faster, and in the same order.
        np.add.at(x.reshape(-1), _places(x.shape, slices), values.reshape(-1))
    else:
        np.add.at(x, slices, values)


@differentiable(lambda g, slices: _get_item.on(g, slices))
def _scatter_item(y, slices, shape):
    return one_call(_scattered, y, slices, shape)


def _scattered(y, slices, shape):
    if isinstance(y, np.ndarray) and _are_rows(slices, y):
        return kernels.sum_rows(y, slices, shape[0])
    # Values are added in single precision, because half precision would lose small values where
    # indices repeat.
    wide = np.float32 if y.dtype == np.float16 and not _are_distinct(slices) else y.dtype
    x = get_array_module(y).zeros(shape, wide)
    if _are_distinct(slices):
        x[slices] = y
    else:
        add_at(x, slices, y)
    return x.astype(y.dtype, copy=False)


def _add_slices(x, g, slices):
    """Adds a gradient to slices of an array, in place; returns whether it may be added."""
    is_plain = g.__class__ is np.ndarray and current.recorder is None and _is_basic(slices)
    may_add = is_plain and (x is None or x.dtype == g.dtype)
    if may_add and x is not None:
        x[slices] += g
    return may_add


@differentiable(
    adds_parts(lambda g, x_shape, slices: _scatter_item.on(g, slices, x_shape), _add_slices)
)
def _get_item(x, slices):
    if current.recorder is not None:
        return one_call(getitem, x, slices)
    axis = _axis_of_vector(slices) if x.__class__ is np.ndarray else None
    if axis is not None and axis < x.ndim:
        # np.take takes less time than indexing, because it reads memory row by row
        return x.take(slices[axis], axis)
    return x[slices]


def get_item(x: Input, slices: object) -> Variable:
    """Indexes an array as NumPy does: ``x[slices]``.

    Args:
        x: Variable or array.
        slices: an integer, slice, Ellipsis, None, array or list of integers or bool, or a tuple of
            these.

    Returns:
        Variable; a view if NumPy makes one.

    Example:
        >>> F.get_item(np.arange(5.0), slice(1, 4)).array
        array([1., 2., 3.])
        >>> Variable(np.arange(5.0))[[0, 0, 3]].array
        array([0., 0., 3.])
    """
    return _get_item(x, _index_of(slices))


def _index_of(slices):
    """Returns an index for arrays; a list is a tuple if it holds slices, and else an array."""
    if not isinstance(slices, list):
        return slices
    return tuple(slices) if any(isinstance(s, slice) for s in slices) else np.asarray(slices)


vars(get_item)["on"] = _get_item.on


# The first function below selects elements at distinct indices. The second is its adjoint, which
# puts elements at distinct indices of an array of zeros.


@differentiable(lambda g, x_shape, where: _place.on(g, where, x_shape))
def _take(x, where):
    return one_call(getitem, x, where)


@differentiable(lambda g, where: _take.on(g, where))
def _place(y, where, shape):
    return one_call(_placed, y, where, shape)


def _placed(y, where, shape):
    x = get_array_module(y).zeros(shape, y.dtype)
    x[where] = y
    return x


def permutate(x: Input, indices: Input, axis: int = 0, inv: bool = False) -> Variable:
    """Permutes the elements along an axis.

    Args:
        x: Variable or array.
        indices: array of integers (x.shape[axis],): element ``i`` of the result is element
            ``indices[i]`` of ``x``; each index occurs once.
        axis: the axis.
        inv: whether to apply the inverse permutation, which moves element ``i`` to ``indices[i]``.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: ``x`` has no such axis, or ``indices`` has the wrong shape or dtype.
        ValueError: ``indices`` is not a permutation.

    Example:
        >>> F.permutate(np.array([1.0, 2.0, 3.0]), np.array([2, 0, 1])).array
        array([3., 1., 2.])
    """
    indices = as_array(indices)
    check(-x.ndim <= axis < x.ndim, "permutate", "axis must be an axis of x", x=x, axis=axis)
    axis %= x.ndim
    fits = indices.dtype.kind in "iu" and indices.shape == x.shape[axis : axis + 1]
    rule = "indices must be integers, one per element of the axis"
    check(fits, "permutate", rule, indices=indices, x=x, axis=axis)
    xp = get_array_module(x)
    indices = converted(xp, indices)
    order = indices.argsort()
    if not bool((indices[order] == xp.arange(indices.size)).all()):
        rule = f"indices must hold each integer from 0 to {indices.size - 1} once"
        raise ValueError(f"permutate: {rule}, not {indices}")
    return _take(x, (slice(None),) * axis + (order if inv else indices,))


def check_labels(
    name: str, t: Array, n: int, ignored: int | None = None, argument: str = "t", low: int = 0
) -> None:
    """Raises ValueError if an element of ``t`` is neither in range(low, n) nor ``ignored``.

    Arrays on a GPU are checked only in debug mode, because reading them waits for the device.

    Example:
        >>> check_labels("f", np.array([0, 2, -1]), 3, ignored=-1)
    """
    if type(t) is np.ndarray and t.size:  # this branch takes half the time in the usual case
        if low <= np.minimum.reduce(t, axis=None) and np.maximum.reduce(t, axis=None) < n:
            return
    if is_gpu_array(t) and not config.debug:
        return
    wrong = (t < low) | (t >= n)
    if ignored is not None:
        wrong &= t != ignored
    if wrong.any():
        others = "" if ignored is None else f", or {ignored} (ignored)"
        raise ValueError(
            f"{name}: every element of {argument} must be at least {low} and below {n}{others}, "
            f"but one is {int(t[wrong][0])}"
        )


def select_item(x: Input, t: Input) -> Variable:
    """Selects an element from each row: y[i] = x[i, t[i]].

    Args:
        x: Variable or array (N, C).
        t: Variable or array of integers (N,); negative indices count from the end.

    Returns:
        Variable (N,).

    Raises:
        InvalidType: ``x`` is not (N, C), or ``t`` does not hold integers (N,).
        ValueError: an index is out of range. On a GPU, this is checked only in debug mode.

    Example:
        >>> F.select_item(np.arange(6.0).reshape(2, 3), np.array([0, 2])).array
        array([0., 5.])
    """
    t = as_array(t)
    check(x.ndim == 2, "select_item", "x must have 2 axes", x=x)
    fits = t.dtype.kind in "iu" and t.shape == x.shape[:1]
    check(fits, "select_item", "t must hold an integer per row of x", t=t, x=x)
    check_labels("select_item", t, x.shape[1], low=-x.shape[1])
    xp = get_array_module(x)
    return _take(x, (xp.arange(len(t)), converted(xp, t)))


@differentiable(lambda g: g, lambda g, slices: _get_item.on(g, slices))
def _scatter_add(a, b, slices):
    return one_call(_added, a, b, slices)


def _added(a, b, slices):
    y = a.copy()
    add_at(y, slices, b)
    return y


def scatter_add(a: Input, slices: Any, b: Input) -> Variable:
    """Adds values at indices like ``a[slices] += b``, where values at repeated indices accumulate.

    Args:
        a: Variable or array.
        slices: the index, with the types that :func:`get_item` accepts.
        b: Variable or array of the shape of ``a[slices]``.

    Returns:
        Variable of the shape of ``a``.

    Raises:
        InvalidType: the shape of ``b`` differs from the shape of ``a[slices]``.

    Example:
        >>> F.scatter_add(np.zeros(3), [0, 0, 2], np.array([1.0, 2.0, 3.0])).array
        array([3., 0., 3.])
    """
    slices = _index_of(slices)
    if _are_rows(slices, b) and b.shape == slices.shape + a.shape[1:]:
        return _scatter_add(a, b, slices)
    chosen = as_array(a)[slices]
    check(
        chosen.shape == b.shape,
        "scatter_add",
        "b must have the shape of a[slices]",
        b=b,
        chosen=chosen,
    )
    return _scatter_add(a, b, slices)


def diagonal(x: Input, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Variable:
    """Diagonals of matrices.

    Args:
        x: Variable or array with two axes or more.
        offset: offset from the main diagonal; diagonals above the main diagonal have positive
            offsets.
        axis1, axis2: the axes of rows and columns.

    Returns:
        Variable: the other axes of ``x``, then the axis of the diagonal.

    Raises:
        InvalidType: the two axes are not different axes of ``x``.

    Example:
        >>> F.diagonal(np.arange(6.0).reshape(2, 3), offset=1).array
        array([1., 5.])
    """
    known = all(-x.ndim <= axis < x.ndim for axis in (axis1, axis2))
    different = known and (axis1 - axis2) % x.ndim != 0
    rule = "axis1 and axis2 must be different axes of x"
    check(different, "diagonal", rule, x=x, axis1=axis1, axis2=axis2)
    last = (axis1 % x.ndim, axis2 % x.ndim)
    x = transpose(x, (*(i for i in range(x.ndim) if i not in last), *last))
    row, column = max(-offset, 0), max(offset, 0)
    size = max(min(x.shape[-2] - row, x.shape[-1] - column), 0)
    steps = x.xp.arange(size)
    return _take(x, (Ellipsis, steps + row, steps + column))


def as_strided(
    x: Input, shape: Sequence[int], strides: Sequence[int], storage_offset: int | None = None
) -> Variable:
    """Selects elements at regular distances. An element may be selected several times.

    Element (i, j, ...) of the result is element storage_offset + i strides[0] + j strides[1] + ...
    of ``x`` in row-major order; the memory layout of ``x`` does not matter.

    Args:
        x: Variable or array.
        shape: shape of the result.
        strides: for each axis, the distance between elements, in elements of ``x``.
        storage_offset: index of the first element; None means 0.

    Returns:
        Variable of this shape.

    Raises:
        InvalidType: ``shape`` and ``strides`` differ in length, or select elements outside of
            ``x``.

    Example:
        >>> as_strided(np.arange(4.0), (3, 2), (1, 1)).array.tolist()
        [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]
    """
    shape, strides = tuple(shape), tuple(strides)
    rule = "shape and strides must have equally many elements"
    check(len(shape) == len(strides), "as_strided", rule, shape=shape, strides=strides)
    places = np.full((), storage_offset or 0, np.intp)
    for size, stride in zip(shape, strides):
        places = places[..., None] + np.arange(size) * stride
    inside = places.size == 0 or (0 <= places.min() and places.max() < x.size)
    reach = {"shape": shape, "strides": strides, "storage_offset": storage_offset}
    check(inside, "as_strided", "all selected elements must be elements of x", x=x, **reach)
    return get_item(reshape(x, (x.size,)), get_array_module(x).asarray(places))


def _along(indices, axis):
    """Returns the tuple of index arrays that selects ``indices`` along ``axis``, as
    ``take_along_axis`` does."""
    lanes = list(map(get_array_module(indices).asarray, np.indices(indices.shape, sparse=True)))
    lanes[axis] = indices
    return tuple(lanes)


@differentiable(lambda g, x_shape, indices, axis: _put_along.on(g, indices, axis, x_shape))
def _take_along(x, indices, axis):
    return one_call(_taken_along, x, indices, axis)


def _taken_along(x, indices, axis):
    return x[_along(indices, axis)]


@differentiable(lambda g, indices, axis: _take_along.on(g, indices, axis))
def _put_along(y, indices, axis, shape):
    """Puts elements at distinct indices along an axis of an array of zeros."""
    return one_call(_put, y, indices, axis, shape)


def _put(y, indices, axis, shape):
    x = get_array_module(y).zeros(shape, y.dtype)
    x[_along(indices, axis)] = y
    return x


def _order(x, axis, descending):
    """Returns the indices that sort ``x``; equal elements keep their order."""
    if not descending:
        return x.argsort(axis, kind="stable")
    xp = get_array_module(x)
    return x.shape[axis] - 1 - xp.flip(xp.flip(x, axis).argsort(axis, kind="stable"), axis)


def sort(x: Input, axis: int = -1, descending: bool = False) -> tuple[Variable, Array]:
    """Sorts along an axis; equal elements keep their order.

    Args:
        x: Variable or array.
        axis: the axis.
        descending: whether to sort from the largest element to the smallest.

    Returns:
        tuple: a differentiable Variable of the shape of ``x``, and the array of the original
            indices along the axis.

    Raises:
        InvalidType: ``x`` has no such axis.

    Example:
        >>> y, indices = F.sort(np.array([3.0, 1.0, 2.0]))
        >>> y.array, indices
        (array([1., 2., 3.]), array([1, 2, 0]))
    """
    x = as_variable(x)
    check(-x.ndim <= axis < x.ndim, "sort", "axis must be an axis of x", x=x, axis=axis)
    axis %= x.ndim
    indices = _order(x.array, axis, descending)
    indices = shown("argsort", x, (axis, descending), indices)
    return _take_along(x, indices, axis), indices


def topk(x: Input, k: int, axis: int = -1, largest: bool = True) -> tuple[Variable, Array]:
    """Returns the ``k`` largest elements along an axis, the largest first.

    Args:
        x: Variable or array.
        k: number of elements.
        axis: the axis.
        largest: whether to return the largest elements; if False, the smallest elements are
            returned, the smallest first.

    Returns:
        tuple: a differentiable Variable of the shape of ``x``, except for ``k`` elements along the
            axis, and the array of the original indices along the axis.

    Raises:
        InvalidType: ``x`` has no such axis, or ``k`` is negative or larger than the axis.

    Example:
        >>> y, indices = F.topk(np.array([3.0, 1.0, 2.0]), 2)
        >>> y.array, indices
        (array([3., 2.]), array([0, 2]))
    """
    x = as_variable(x)
    check(-x.ndim <= axis < x.ndim, "topk", "axis must be an axis of x", x=x, axis=axis)
    check(0 <= k <= x.shape[axis], "topk", "k must be from 0 to the axis size", x=x, k=k, axis=axis)
    axis %= x.ndim
    indices = shown("topk", x, (axis, largest, k), _extremes(x.array, k, axis, largest))
    return _take_along(x, indices, axis), indices


def _extremes(x, k, axis, largest):
    """Returns the indices of the ``k`` largest or smallest elements, in sorted order."""
    if 4 * k >= x.shape[axis]:
        return _order(x, axis, largest)[(slice(None),) * axis + (slice(k),)]
    # A partition finds the k elements, so that only k elements are sorted.
    xp = get_array_module(x)
    few = (slice(None),) * axis + (slice(x.shape[axis] - k, None) if largest else slice(k),)
    indices = xp.argpartition(x, -max(k, 1) if largest else k, axis)[few]
    values = xp.take_along_axis(x, indices, axis)
    return xp.take_along_axis(indices, _order(values, axis, largest), axis)


def one_hot(t: Input, num_classes: int, dtype: DTypeLike = None) -> Variable:
    """One-hot vectors of labels: each vector is one at the index of the label, and zero elsewhere.

    Args:
        t: Variable or array of integers, of any shape.
        num_classes: length of the vectors.
        dtype: dtype of the result; None means ``config.dtype``.

    Returns:
        Variable (*t.shape, num_classes), which requires no gradient.

    Raises:
        InvalidType: ``t`` does not hold integers.
        ValueError: a label is negative, or not below ``num_classes``. On a GPU, this is checked
            only in debug mode.

    Example:
        >>> F.one_hot(np.array([0, 2]), 3).array
        array([[1., 0., 0.],
               [0., 0., 1.]], dtype=float32)
    """
    t = as_array(t)
    check(t.dtype.kind in "iu", "one_hot", "t must be integers", t=t)
    check_labels("one_hot", t, num_classes)
    vectors = t[..., None] == get_array_module(t).arange(num_classes)
    return Variable(vectors.astype(get_dtype(dtype)), requires_grad=False)
