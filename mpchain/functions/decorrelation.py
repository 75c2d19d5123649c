"""Decorrelated batch normalization, which whitens the channels over the batch."""

import math

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.functions.array import cast, reshape, swapaxes, widened
from mpchain.functions.contraction import matmul
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.declaring.precision import check_widths
from mpchain.functions.reduction import mean as average
from mpchain.typing import Array, Input
from mpchain.utils.type_check import check, fail
from mpchain.variable import Variable, as_array, as_variable

# For P = A ** -0.5, which means that P A P is the identity, the differential satisfies P dP + dP P
# = -P^2 dA P^2, a Lyapunov equation. The derivatives of its solution solve Lyapunov equations too.


def _lyapunov_derivative(g, S, y):
    h = _lyapunov.on(S, g)
    return -(np.matmul(h, y) + np.matmul(y, h))


@differentiable(_lyapunov_derivative, lambda g, S: _lyapunov.on(S, g))
def _lyapunov(S, Q):
    """Returns X such that S X + X S = Q, for symmetric positive definite S; all matrices are (...,
    n, n)."""
    eigenvalues, U = get_array_module(S).linalg.eigh(S)
    sums = eigenvalues[..., :, None] + eigenvalues[..., None, :]
    transposed = U.swapaxes(-1, -2)
    return U @ ((transposed @ Q @ U) / sums) @ transposed


def _inverse_root_derivative(g, y):
    square = np.matmul(y, y)
    return _lyapunov.on(y, -np.matmul(np.matmul(square, g), square))


@differentiable(_inverse_root_derivative)
def _inverse_root(A):
    """Returns A ** -0.5 for symmetric positive definite matrices (..., n, n)."""
    eigenvalues, U = get_array_module(A).linalg.eigh(A)
    return (U * eigenvalues[..., None, :] ** -0.5) @ U.swapaxes(-1, -2)


def _grouped(name, x, groups):
    """Returns channels in groups: (groups, C / groups, N * d1 * ...), in single precision or
    wider."""
    check(x.ndim >= 2 and is_floating(x.dtype), name, "x must be floating point (N, C, ...)", x=x)
    fits = groups >= 1 and x.shape[1] % groups == 0
    check(fits, name, "groups={groups} must divide the number of channels of x", x=x, groups=groups)
    channels_first = swapaxes(widened(x), 0, 1)
    count = x.shape[0] * math.prod(x.shape[2:])
    return reshape(channels_first, (groups, x.shape[1] // groups, count))


def _ungrouped(y, x):
    """Applies the adjoint of :func:`_grouped`, which restores the shape and dtype of ``x``."""
    channels_first = reshape(y, (x.shape[1], x.shape[0], *x.shape[2:]))
    return cast(swapaxes(channels_first, 0, 1), x.dtype)


def decorrelated_batch_normalization(
    x: Input,
    *,
    groups: int = 16,
    eps: float = 2e-5,
    running_mean: Array | None = None,
    running_projection: Array | None = None,
    decay: float = 0.9,
) -> Variable:
    """Whitens the channels of each group over the batch: their covariance becomes the identity, but
    for ``eps``.

    The result is projection (x - mean), where the projection is the inverse square root of the
    (population) covariance plus eps times the identity (ZCA whitening).

    Args:
        x: Variable or array (N, C, ...), floating point.
        groups: the number of groups of channels, which must divide C.
        eps: number that is added to the variances.
        running_mean: array (groups, C / groups), updated in place by ``decay``; or None.
        running_projection: array (groups, C / groups, C / groups), updated in place by ``decay``
            with the projection times M / (M - 1) for M elements per channel; or None.
        decay: the fraction of the running statistics that is kept.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: ``x`` is not floating point (N, C, ...), ``groups`` does not divide the
            channels, or running statistics have the wrong shape.

    Example:
        >>> x = np.random.randn(100, 2).astype("float32")
        >>> y = F.decorrelated_batch_normalization(x, groups=1).array
        >>> np.allclose(y.T @ y / 100, np.eye(2), atol=1e-3)
        True

    See L. Huang et al., Decorrelated batch normalization, CVPR 2018.
    """
    name = "decorrelated_batch_normalization"
    grouped = _grouped(name, x, groups)
    _check_statistics(name, grouped, running_mean, running_projection)
    count = grouped.shape[2]
    if count == 0:
        return as_variable(x)
    mean = average(grouped, 2, keepdims=True)
    centered = grouped - mean
    identity = get_array_module(as_array(x)).eye(grouped.shape[1], dtype=grouped.dtype)
    covariance = matmul(centered, centered, transb=True) / count + eps * identity
    projection = _inverse_root(covariance)
    if running_mean is not None:
        running_mean *= decay
        running_mean += (1 - decay) * mean.array[:, :, 0]
    if running_projection is not None:
        running_projection *= decay
        running_projection += (1 - decay) * count / max(count - 1, 1) * projection.array
    return _ungrouped(matmul(projection, centered), x)


def _check_statistics(name, grouped, mean, projection):
    groups, size = grouped.shape[:2]
    shapes = {"mean": (mean, (groups, size)), "projection": (projection, (groups, size, size))}
    for statistic, (value, shape) in shapes.items():
        if value is not None and value.shape != shape:
            rule = f"the {statistic} must have the shape {shape} (groups, channels of a group)"
            fail(name, rule, **{statistic: value})


def fixed_decorrelated_batch_normalization(
    x: Input, mean: Input, projection: Input, groups: int = 16
) -> Variable:
    """Decorrelated batch normalization with given statistics, for inference: projection (x - mean).

    Args:
        x: Variable or array (N, C, ...), floating point.
        mean: Variable or array (groups, C / groups).
        projection: Variable or array (groups, C / groups, C / groups).
        groups: the number of groups of channels, which must divide C.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: shapes or dtypes do not match.

    Example:
        >>> x, mean, projection = np.ones((4, 2)), np.zeros((1, 2)), np.eye(2)[None]
        >>> F.fixed_decorrelated_batch_normalization(x, mean, projection, groups=1).shape
        (4, 2)
    """
    name = "fixed_decorrelated_batch_normalization"
    grouped = _grouped(name, x, groups)
    _check_statistics(name, grouped, mean, projection)
    check_widths(name, {"x": x}, {"mean": mean, "projection": projection})
    mean = reshape(mean, (*mean.shape, 1))
    return _ungrouped(matmul(projection, grouped - mean), x)
