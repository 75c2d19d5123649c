"""Inverses, determinants and Cholesky factors of matrices."""

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.functions.array import reshape
from mpchain.functions.declaring.declaration import differentiable
from mpchain.typing import Input
from mpchain.utils.type_check import check, describe
from mpchain.variable import Variable


def _computed(function, a, rule):
    """Applies a function of ``numpy.linalg``, which does not support half precision."""
    wide = a.astype(np.float32) if a.dtype == np.float16 else a
    try:
        y = function(wide)
    except np.linalg.LinAlgError as error:
        raise np.linalg.LinAlgError(f"{rule}: {error}: a: {describe(a)}") from None
    return y.astype(a.dtype, copy=False)


def _transposed(a):
    return np.swapaxes(a, -1, -2)


def _inverse_derivative(g, y):
    z = _transposed(y)
    return -np.matmul(np.matmul(z, g), z)


@differentiable(_inverse_derivative)
def _inverse(a):
    return _computed(np.linalg.inv, a, "inv: no matrix may be singular")


@differentiable(lambda g, a, y: np.reshape(g * y, (*y.shape, 1, 1)) * _transposed(_inverse.on(a)))
def _determinant(a):
    return _computed(np.linalg.det, a, "det: a must hold numbers")


def _check_matrices(name, a, ndim):
    rule = "a must be floating point and have {ndim} axes, the last two of the same size"
    fits = a.ndim == ndim and is_floating(a.dtype) and a.shape[-1] == a.shape[-2]
    check(fits, name, rule, a=a, ndim=ndim)


def inv(a: Input) -> Variable:
    """Inverse of a matrix.

    Args:
        a: Variable or array (n, n), floating point.

    Returns:
        Variable (n, n).

    Raises:
        InvalidType: ``a`` is not a square matrix of floating-point numbers.
        ValueError: the matrix is singular; on a GPU, CuPy does not check this by default. The error
            is a ``numpy.linalg.LinAlgError``.

    Example:
        >>> F.inv(np.array([[2.0, 0.0], [0.0, 4.0]])).array
        array([[0.5 , 0.  ],
               [0.  , 0.25]])
    """
    _check_matrices("inv", a, 2)
    return _inverse(a)


def batch_inv(a: Input) -> Variable:
    """Inverses of a batch of matrices.

    Args:
        a: Variable or array (B, n, n), floating point.

    Returns:
        Variable (B, n, n).

    Raises:
        InvalidType: ``a`` does not hold square matrices of floating-point numbers.
        ValueError: a matrix is singular; on a GPU, CuPy does not check this by default. The error
            is a ``numpy.linalg.LinAlgError``.

    Example:
        >>> F.batch_inv(np.full((2, 1, 1), 4.0)).array.ravel()
        array([0.25, 0.25])
    """
    _check_matrices("batch_inv", a, 3)
    return _inverse(a)


def det(a: Input) -> Variable:
    """Determinant of a matrix.

    Args:
        a: Variable or array (n, n), floating point, or (n, n, 1, 1), the shape of the weight of a
            1x1 convolution. The derivative needs the inverse, which a singular matrix lacks.

    Returns:
        Variable, a scalar.

    Raises:
        InvalidType: ``a`` is not a square matrix of floating-point numbers.

    Example:
        >>> F.det(np.array([[2.0, 1.0], [0.0, 4.0]])).array.round(2).item()
        8.0
    """
    if a.ndim > 2 and a.size == a.shape[0] * a.shape[1]:
        a = reshape(a, a.shape[:2])
    _check_matrices("det", a, 2)
    return _determinant(a)


def batch_det(a: Input) -> Variable:
    """Determinants of a batch of matrices.

    Args:
        a: Variable or array (B, n, n), floating point. The derivative needs the inverses, which
            singular matrices lack.

    Returns:
        Variable (B,).

    Raises:
        InvalidType: ``a`` does not hold square matrices of floating-point numbers.

    Example:
        >>> F.batch_det(np.full((2, 1, 1), 4.0)).array
        array([4., 4.])
    """
    _check_matrices("batch_det", a, 3)
    return _determinant(a)


def _cholesky_derivative(g, y):
    xp = get_array_module(y)
    n = y.shape[-1]
    inverse = _inverse.on(y)
    lower_half = (xp.tri(n) - xp.eye(n) / 2).astype(y.dtype)
    inner = np.matmul(_transposed(y), g) * lower_half
    s = np.matmul(_transposed(inverse), np.matmul(inner, inverse))
    return (s + _transposed(s)) / 2


@differentiable(_cholesky_derivative)
def _cholesky(a):
    return _computed(np.linalg.cholesky, a, "cholesky: a must be positive definite")


def cholesky(a: Input) -> Variable:
    """Cholesky factor: the lower triangular matrix L for which L L^T = a.

    Args:
        a: Variable or array (n, n), floating point, symmetric and positive definite; only its lower
            triangle is read. The gradient of ``a`` is symmetric.

    Returns:
        Variable (n, n).

    Raises:
        InvalidType: ``a`` is not a square matrix of floating-point numbers.
        ValueError: the matrix is not positive definite; on a GPU, CuPy does not check this by
            default. The error is a ``numpy.linalg.LinAlgError``.

    Example:
        >>> F.cholesky(np.array([[4.0, 2.0], [2.0, 5.0]])).array
        array([[2., 0.],
               [1., 2.]])

    See I. Murray, Differentiation of the Cholesky decomposition, 2016.
    """
    _check_matrices("cholesky", a, 2)
    return _cholesky(a)
