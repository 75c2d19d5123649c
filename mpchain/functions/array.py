"""Functions that change the dtype or shape of an array, and broadcasting.

Each function is linear, so its derivative is its adjoint, and no arrays are kept for backward.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain import annexes, kernels
from mpchain.backends import cuda
from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import as_dtype, is_half
from mpchain.functions.declaring.declaration import differentiable, fit_with
from mpchain.kernels import thresholds
from mpchain.kernels.cpu.channels_last import is_only_last
from mpchain.kernels.cpu.numba_reductions import sum_columns
from mpchain.typing import Array, Axes, DTypeLike, Input, Output
from mpchain.utils.arrays import broadcasts_to
from mpchain.utils.type_check import InvalidType, check
from mpchain.variable import Variable, as_variable

_on_gpu = annexes.find("gpu_kernels", "kernels.gpu.cuda_reductions")


@differentiable(lambda g, x_dtype: _cast.on(g, x_dtype), takes_bfloat16=True)
def _cast(x, typ):
    return x.astype(typ)


def cast(x: Input, typ: DTypeLike) -> Variable:
    """Converts the elements to another dtype.

    Args:
        x: Variable or array.
        typ: argument of :class:`numpy.dtype`, or ``"bfloat16"``.

    Returns:
        Variable of the shape of ``x``; ``x`` itself if it is a Variable of this dtype.

    Example:
        >>> F.cast(np.array([1.5, 2.5]), np.int32).array
        array([1, 2], dtype=int32)
    """
    if x.dtype is typ:
        return as_variable(x)
    typ = as_dtype(typ)
    return _cast(x, typ) if x.dtype != typ else as_variable(x)


def widened(x: Input) -> Input:
    """Converts half precision to single precision, because half precision is too coarse for many
    operations; returns ``x`` of another dtype unchanged.

    Example:
        >>> widened(np.ones(2, np.float16)).dtype
        dtype('float32')
    """
    return cast(x, np.float32) if is_half(x.dtype) else x


@differentiable(lambda g, x_shape: np.reshape(g, x_shape), takes_bfloat16=True)
def _reshape(x, shape):
    if isinstance(x, np.ndarray) and is_only_last(x):
        # The code below is slow on views whose neighboring elements are apart in memory.
        x = x.copy()
    return x.reshape(shape)


def reshape(x: Input, shape: Sequence[int]) -> Variable:
    """Reshapes an array; the elements keep their row-major order.

    Args:
        x: Variable or array.
        shape: the new shape; one element may be -1, which is inferred.

    Returns:
        Variable of this shape, in most cases a view of ``x``.

    Raises:
        InvalidType: ``shape`` has another number of elements than ``x``.

    Example:
        >>> F.reshape(np.arange(6.0), (2, -1)).shape
        (2, 3)
    """
    if x.shape == shape:
        return as_variable(x)
    return _reshape(x, shape)


def _inverse(axes):
    return axes if axes is None else tuple(np.argsort([a % len(axes) for a in axes]).tolist())


@differentiable(lambda g, axes: np.transpose(g, _inverse(axes)), takes_bfloat16=True)
def transpose(x: Input, axes: Sequence[int] | None = None) -> Output:
    """Permutes the axes of an array.

    Args:
        x: Variable or array.
        axes: axis ``i`` of the result is axis ``axes[i]`` of ``x``; None reverses the axes.

    Returns:
        Variable, a view.

    Example:
        >>> F.transpose(np.zeros((2, 3, 4)), (2, 0, 1)).shape
        (4, 2, 3)
    """
    return x.transpose(axes)


def swapaxes(x: Input, axis1: int, axis2: int) -> Variable:
    """Exchanges two axes of an array.

    Args:
        x: Variable or array.
        axis1, axis2: the axes to exchange.

    Returns:
        Variable, a view of ``x``.

    Raises:
        InvalidType: ``x`` has no such axis.

    Example:
        >>> F.swapaxes(np.zeros((2, 3, 4)), 0, -1).shape
        (4, 3, 2)
    """
    n = x.ndim
    known = -n <= axis1 < n and -n <= axis2 < n
    check(known, "swapaxes", "both axes must be axes of x", x=x, axis1=axis1, axis2=axis2)
    axes = list(range(n))
    axes[axis1], axes[axis2] = axes[axis2], axes[axis1]
    return transpose(x, tuple(axes))


@differentiable(lambda g, x_shape: sum_to.on(g, x_shape), takes_bfloat16=True)
def broadcast_to(x: Input, shape: Sequence[int]) -> Output:
    """Broadcasts an array to a shape, by NumPy's rules.

    Args:
        x: Variable or array.
        shape: the result's shape.

    Returns:
        Variable, a view, which NumPy makes read-only; with the array of ``x`` itself if ``x`` has
        this shape.

    Raises:
        InvalidType: ``x`` does not broadcast to ``shape``.

    Example:
        >>> F.broadcast_to(np.array([1.0, 2.0]), (2, 2)).array
        array([[1., 2.],
               [1., 2.]])
    """
    if x.shape == shape:
        return x
    try:
        return get_array_module(x).broadcast_to(x, shape)
    except ValueError:
        message = f"broadcast_to: x of shape {x.shape} does not broadcast to {shape}"
        raise InvalidType(message) from None


_add_up: Any = np.add.reduce


def summed(x: Array, axis: Axes, keepdims: bool) -> Array:
    """Sums an array. Elements of float16 are summed in float32, because a sum of ones in float16
    stops at 2048.

    Example:
        >>> summed(np.ones((3000, 1), np.float16), 0, False).tolist()
        [3000.0]
    """
    is_plain, is_half = x.__class__ is np.ndarray, x.dtype.char == "e"
    if is_plain and x.size < thresholds.long_sum and x.ndim < 3 and not is_half:
        return _add_up(x, axis, None, None, keepdims)
    if not is_plain and _on_gpu is not None and cuda.is_gpu_array(x):
        if (y := _on_gpu.sum_columns(x, axis, keepdims)) is not None:
            return y
    if not is_half:
        if axis.__class__ is tuple and len(axis) == 1:
            (axis,) = axis
        is_along = axis is None or axis == -1 or axis == x.ndim - 1
        if is_along and x.size >= thresholds.long_sum and isinstance(x, np.ndarray):
            y = _sum_in_parts(x, x.size if axis is None else x.shape[-1])
            if y is not None:
                if axis is not None and x.ndim == 2 and not keepdims:
                    return y
                kept = () if axis is None else x.shape[:-1]
                return y.reshape(kept + (1,) * (x.ndim - len(kept)) if keepdims else kept)
        if is_plain and axis == 0 and x.ndim == 2 and x.size >= thresholds.compiled:
            y = sum_columns(x)
            if y is not None:
                return y.reshape(1, -1) if keepdims else y
        channels_left = (0, *range(2, x.ndim))
        is_of_channels = x.ndim > 2 and axis == channels_left
        if is_of_channels and isinstance(x, np.ndarray) and is_only_last(x):
            # NumPy adds long rows several times as fast as rows of one pixel.
            y = x.transpose(*channels_left, 1).reshape(len(x), -1).sum(axis=0)
            n_pixels, channels = y.size // x.shape[1], x.shape[1]
            for n in (math.gcd(n_pixels, 64), 1):
                y = y.reshape(-1, n * channels).sum(axis=0)
            return y.reshape(1, -1, *[1] * (x.ndim - 2)) if keepdims else y
        return x.sum(axis=axis, keepdims=keepdims)
    return x.sum(axis=axis, keepdims=keepdims, dtype=np.float32).astype(np.float16)


def _sum_in_parts(x, n):
    """Returns the sums of blocks of ``n`` contiguous elements; None if the elements are not
    contiguous, or if ``n`` is above ``thresholds.sum_row`` and not a multiple of it."""
    part = min(n, thresholds.sum_row)
    if n % part or not x.flags.c_contiguous:
        return None
    y = kernels.row_sums(x.reshape(-1, part))
    if n == x.size:
        return np.add.reduce(y, keepdims=True)
    return y if n == part else np.add.reduce(y.reshape(-1, n // part), axis=1)


@differentiable(lambda g, x_shape: np.broadcast_to(g, x_shape))
def sum_to(x: Input, shape: Sequence[int]) -> Output:
    """Sums over the axes that broadcasting from ``shape`` would repeat: the adjoint of
    :func:`broadcast_to`.

    Args:
        x: Variable or array.
        shape: a shape that broadcasts to the shape of ``x``.

    Returns:
        Variable of shape ``shape``.

    Raises:
        InvalidType: ``shape`` does not broadcast to the shape of ``x``.

    Example:
        >>> F.sum_to(np.ones((2, 3)), (1, 3)).array
        array([[2., 2., 2.]])
    """
    if x.shape == shape:
        return x
    if not broadcasts_to(shape, x.shape):
        raise InvalidType(f"sum_to: {shape} does not broadcast to x of shape {x.shape}")
    lead = x.ndim - len(shape)
    axes = tuple(i for i, n in enumerate(shape, lead) if n == 1 and x.shape[i] != 1)
    return summed(x, tuple(range(lead)) + axes, True).reshape(shape)


fit_with(sum_to.on, _cast.on)
