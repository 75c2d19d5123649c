"""Elementary functions and matrix products."""

import numpy as np

from mpchain.functions.array import reshape, sum_to, swapaxes
from mpchain.functions.declaration import differentiable, elementwise
from mpchain.utils.type_check import check
from mpchain.variable import as_variable


@elementwise(lambda g, y: g * y)
def exp(x):
    """Elementwise exponential.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.exp(x)


@elementwise(lambda g, x: g / x)
def log(x):
    """Elementwise natural logarithm.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.log(x)


@elementwise(lambda g, y: g / (y * 2))
def sqrt(x):
    """Elementwise square root.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.sqrt(x)


@elementwise(lambda g, x: g * (x * 2), any_dtype=True)
def square(x):
    """Elementwise square.

    Args:
        x: Variable or array of any shape.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.square(x)


@elementwise(
    lambda g, x1, x2: g * np.greater_equal(x1, x2),
    lambda g, x1, x2: g * np.less(x1, x2),
    any_dtype=True,
)
def maximum(x1, x2):
    """Elementwise maximum of two arrays, which broadcast; at a tie, the first gets the gradient.

    Args:
        x1, x2: Variables or arrays.

    Returns:
        Variable of the broadcast shape.
    """
    return np.maximum(x1, x2)


@elementwise(
    lambda g, x1, x2: g * np.less_equal(x1, x2),
    lambda g, x1, x2: g * np.greater(x1, x2),
    any_dtype=True,
)
def minimum(x1, x2):
    """Elementwise minimum of two arrays, which broadcast; at a tie, the first gets the gradient.

    Args:
        x1, x2: Variables or arrays.

    Returns:
        Variable of the broadcast shape.
    """
    return np.minimum(x1, x2)


@elementwise(
    None,
    lambda g, condition: np.where(condition, g, 0),
    lambda g, condition: np.where(condition, 0, g),
    any_dtype=True,
)
def where(condition, x, y):
    """Elementwise choice: ``x`` where the condition holds, else ``y``; all three broadcast.

    Args:
        condition: array of bool.
        x, y: Variables or arrays.

    Returns:
        Variable of the broadcast shape.
    """
    return np.where(condition, x, y)


@differentiable(
    lambda g, b, a_shape: sum_to.on(np.matmul(g, np.swapaxes(b, -1, -2)), a_shape),
    lambda g, a, b_shape: sum_to.on(np.matmul(np.swapaxes(a, -1, -2), g), b_shape),
)
def _matrix_product(a, b):
    if a.dtype == np.float16:
        return np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(np.result_type(a, b))
    return np.matmul(a, b)


def _broadcast(shape0, shape1):
    pairs = zip(reversed(shape0), reversed(shape1))
    return all(m == n or m == 1 or n == 1 for m, n in pairs)


def matmul(a, b, transa=False, transb=False):
    """Matrix product of two arrays, or of two stacks of matrices that broadcast.

    Args:
        a: Variable or array (..., n, k), or (k,).
        b: Variable or array (..., k, m), or (k,).
        transa, transb (bool): swap the last two axes of ``a`` or ``b`` first.

    Returns:
        Variable (..., n, m), without the axis that a vector argument lacks.

    Raises:
        InvalidType: an argument is 0-d, or the inner sizes differ.
    """
    a, b = as_variable(a), as_variable(b)
    check(a.ndim > 0 and b.ndim > 0, "matmul", "a and b need at least one axis", a=a, b=b)
    rows = (-2,) if a.ndim == 1 else ()
    columns = (-1,) if b.ndim == 1 else ()
    a = reshape(a, (1, a.size)) if rows else swapaxes(a, -1, -2) if transa else a
    b = reshape(b, (b.size, 1)) if columns else swapaxes(b, -1, -2) if transb else b
    inner = "the last axis of a (the one before with transa) must equal the last but one of b"
    check(a.shape[-1] == b.shape[-2], "matmul", inner, a=a, b=b, transa=transa, transb=transb)
    if a.ndim > 2 and b.ndim > 2 and a.shape[:-2] != b.shape[:-2]:
        stacks = "the stacks of matrices must broadcast"
        check(_broadcast(a.shape[:-2], b.shape[:-2]), "matmul", stacks, a=a, b=b)
    y = _matrix_product(a, b)
    if not rows and not columns:
        return y
    added = rows + columns
    return reshape(y, tuple(n for i, n in enumerate(y.shape) if i - y.ndim not in added))
