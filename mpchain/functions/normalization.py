"""Normalization over batches, samples, groups and channels."""

import functools
import math
from collections.abc import Sequence

import numpy as np

from mpchain import annexes, kernels
from mpchain.backends.cuda import is_gpu_array
from mpchain.backends.dtypes import is_floating
from mpchain.functions.array import cast, reshape, sum_to, summed, widened
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.declaring.precision import check_widths
from mpchain.kernels.cpu.loops import in_one_pass
from mpchain.kernels.reference import inverse_rms, mean_and_inverse_std
from mpchain.observers import one_call
from mpchain.typing import Array, Axes, Input, Output
from mpchain.utils.type_check import check, fail
from mpchain.variable import Variable, as_array

_on_gpu = annexes.find("gpu_kernels", "kernels.gpu.cuda_reductions")


def _batch_normalization_derivative(g, x, gamma, aux, axis, eps):
    shape, gamma = gamma.shape, np.reshape(gamma, _spread_over(x.shape, axis))
    if not isinstance(g, Variable):
        mean, inverse_std = aux
        gx, *gs = kernels.batch_normalization_gradient(g, x, gamma, mean, inverse_std, axis)
        return gx, *[g.reshape(shape) for g in gs]
    g, x, gamma = widened(g), widened(x), widened(gamma)
    mean, inverse_std = mean_and_inverse_std(x, axis, eps) if isinstance(x, Variable) else aux
    normalized = (x - mean) * inverse_std
    g_beta = np.sum(g, axis=axis, keepdims=True)
    g_gamma = np.sum(g * normalized, axis=axis, keepdims=True)
    count = g.size // g_beta.size
    gx = (g - (normalized * g_gamma + g_beta) / count) * (gamma * inverse_std)
    return gx, np.reshape(g_gamma, shape), np.reshape(g_beta, shape)


def _spread_over(shape, axis):
    """Returns the shape in which parameters broadcast: ``shape`` with size one for the axes
    ``axis``."""
    return tuple([1 if i in axis else n for i, n in enumerate(shape)])


@differentiable(joint=_batch_normalization_derivative, n_arrays=3)
def _batch_normalization(x, gamma, beta, axis, eps, follow=None) -> tuple[Output, object]:
    """Normalizes ``x``; calls ``follow(mean, var)`` if ``follow`` is given."""
    shape = _spread_over(x.shape, axis)
    gamma, beta = gamma.reshape(shape), beta.reshape(shape)
    y, mean, inverse_std, var = kernels.batch_normalization(x, gamma, beta, axis, eps)
    if follow is not None:
        follow(mean, var)
    return y, (mean, inverse_std)


_accepted = {}  # what _shape_of_parameters returned, by everything that it looks at
_MOST_ACCEPTED = 1024


def _shape_of_parameters(name, x, axis, gamma, **parameters):
    """Returns the reduced axes, and the shape in which gamma and other parameters broadcast to
    x."""
    try:
        key = name, axis, x.shape, x.dtype, gamma.shape, gamma.dtype
        key += tuple([None if v is None else (v.shape, v.dtype) for v in parameters.values()])
        return _accepted[key]
    except (AttributeError, KeyError, TypeError):  # the checks explain what is wrong, if anything
        found = _check_parameters(name, x, axis, gamma, **parameters)
    if len(_accepted) >= _MOST_ACCEPTED:
        _accepted.clear()
    if axis is None or isinstance(axis, (int, tuple)):
        _accepted[key] = found
    return found


def _check_parameters(name, x, axis, gamma, **parameters):
    """Returns what :func:`_shape_of_parameters` returns, without the cache."""
    check(x.ndim > 0 and is_floating(x.dtype), name, "x must be floating point, with axes", x=x)
    if axis is None:
        axis = (0, *range(gamma.ndim + 1, x.ndim))
    axis = (axis,) if isinstance(axis, int) else axis
    check(all(-x.ndim <= a < x.ndim for a in axis), name, "x must have every axis", x=x, axis=axis)
    axis = tuple(a % x.ndim for a in axis)
    check_widths(name, {"x": x}, {"gamma": gamma, "beta": parameters["beta"]})
    kept = tuple(n for i, n in enumerate(x.shape) if i not in axis)
    for argument, value in {"gamma": gamma, **parameters}.items():
        if value is not None and value.shape != kept:
            fail(name, f"{argument} must have shape {kept}", x=x, **{argument: value})
    return axis, tuple(1 if i in axis else n for i, n in enumerate(x.shape))


def batch_normalization(
    x: Input,
    gamma: Input,
    beta: Input,
    *,
    eps: float = 2e-5,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    decay: float = 0.9,
    axis: Axes = None,
) -> Variable:
    """Normalizes each channel by the mean and variance of the batch.

    The result is gamma (x - mean) / sqrt(var + eps) + beta.

    Args:
        x: Variable or array (N, C, ...), floating point.
        gamma, beta: Variables or arrays of the shape of the axes that are not reduced: (C,).
        eps: number that is added to the variance.
        running_mean, running_var: arrays (C,) that are updated in place, or None; the running
            variance is unbiased.
        decay: the fraction of the running statistics that is kept.
        axis: the axes to reduce; None means all axes except the axes of ``gamma``, which follow the
            first axis.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: ``gamma``, ``beta`` or a running statistic has the wrong shape, or ``gamma`` or
            ``beta`` has a narrower dtype than ``x``.

    Example:
        >>> x = np.array([[1.0, 10.0], [3.0, 30.0]])
        >>> F.batch_normalization(x, np.ones(2), np.zeros(2)).array.round(2)
        array([[-1., -1.],
               [ 1.,  1.]])

    See S. Ioffe and C. Szegedy, Batch normalization, ICML 2015.
    """
    statistics = {"running_mean": running_mean, "running_var": running_var}
    name = "batch_normalization"
    axis, _ = _shape_of_parameters(name, x, axis, gamma, beta=beta, **statistics)
    follow = _following(x, axis, running_mean, running_var, decay)
    return cast(_batch_normalization(x, gamma, beta, axis, eps, follow), x.dtype)


def _following(x, axis, running_mean, running_var, decay):
    """Returns a function that updates the running statistics; None if there are no running
    statistics, or for an empty batch."""
    count = math.prod(x.shape[a] for a in axis)
    if not count or (running_mean is None and running_var is None):
        return None
    return functools.partial(_follow, running_mean, running_var, decay, count)


def _follow(running_mean, running_var, decay, count, mean, var):
    """Updates the running statistics with the statistics of a batch."""
    unbiased = count / max(count - 1, 1)
    if _on_gpu is not None and is_gpu_array(running_mean) and is_gpu_array(running_var):
        _on_gpu.follow_statistics((running_mean, running_var), (mean, var), decay, unbiased)
        return
    for running, value, factor in ((running_mean, mean, 1), (running_var, var, unbiased)):
        if running is not None:
            running *= decay
            running += (1 - decay) * factor * value.reshape(running.shape)


def fixed_batch_normalization(
    x: Input,
    gamma: Input,
    beta: Input,
    mean: Input,
    var: Input,
    eps: float = 2e-5,
    axis: Axes = None,
) -> Variable:
    """Batch normalization with given statistics, for inference.

    Args:
        x: Variable or array (N, C, ...), floating point.
        gamma, beta, mean, var: Variables or arrays (C,).
        eps: number that is added to the variance.
        axis: the reduced axes, as in :func:`batch_normalization`.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: a shape does not match ``x``, or ``gamma`` or ``beta`` has a narrower dtype
            than ``x``.

    Example:
        >>> x, ones, zeros = np.array([[1.0, 10.0]]), np.ones(2), np.zeros(2)
        >>> F.fixed_batch_normalization(x, ones, zeros, mean=ones, var=ones).array.round(2)
        array([[0., 9.]])
    """
    return _fixed("fixed_batch_normalization", x, gamma, beta, mean, var, eps, axis)


def _fixed(name, x, gamma, beta, mean, var, eps, axis):
    axis, shape = _shape_of_parameters(name, x, axis, gamma, beta=beta, mean=mean, var=var)
    scale = widened(gamma) * (widened(var) + eps) ** -0.5
    mean, scale, beta = (reshape(widened(p), shape) for p in (mean, scale, beta))
    return cast(_shifted_and_scaled(x, mean, scale, beta), x.dtype)


@differentiable(
    lambda g, scale: g * scale,
    lambda g, scale, mean_shape: -sum_to.on(g * scale, mean_shape),
    lambda g, x, mean, scale_shape: sum_to.on(g * (x - mean), scale_shape),
    lambda g, beta_shape: sum_to.on(g, beta_shape),
)
def _shifted_and_scaled(x, mean, scale, beta):
    return kernels.shift_and_scale(x, mean, scale, beta)


def fixed_batch_renormalization(
    x: Input, gamma: Input, beta: Input, mean: Input, var: Input, eps: float = 2e-5
) -> Variable:
    """Batch renormalization at inference: equal to :func:`fixed_batch_normalization`.

    Example:
        >>> x, ones, zeros = np.array([[1.0, 10.0]]), np.ones(2), np.zeros(2)
        >>> F.fixed_batch_renormalization(x, ones, zeros, mean=ones, var=ones).array.round(2)
        array([[0., 9.]])
    """
    return _fixed("fixed_batch_renormalization", x, gamma, beta, mean, var, eps, None)


def batch_renormalization(
    x: Input,
    gamma: Input,
    beta: Input,
    rmax: float,
    dmax: float,
    eps: float = 2e-5,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    decay: float = 0.9,
    update_statistics: bool = False,
) -> Variable:
    """Batch renormalization: batch normalization, corrected towards the running statistics.

    With normalized = (x - mean) / std of the batch, the result is
    gamma (normalized r + d) + beta, where r = std / running_std and
    d = (mean - running_mean) / running_std are limited to [1 / rmax, rmax] and [-dmax, dmax], and
    have no gradient.

    Args:
        x: Variable or array (N, C, ...), floating point.
        gamma, beta: Variables or arrays (C,).
        rmax: the limit of r, at least 1.
        dmax: the limit of d, at least 0.
        eps: number that is added to the variances.
        running_mean, running_var: arrays (C,): the running statistics.
        decay: the fraction of the running statistics that is kept.
        update_statistics: whether to update the running statistics in place, after the correction;
            the running variance is unbiased.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        TypeError: the running statistics are missing.

    Example:
        >>> x, ones, zeros = np.array([[1.0, 10.0], [3.0, 30.0]]), np.ones(2), np.zeros(2)
        >>> y = F.batch_renormalization(x, ones, zeros, 3, 5, running_mean=zeros, running_var=ones)
        >>> y.array.round(2)
        array([[1., 2.],
               [3., 8.]])

    See S. Ioffe, Batch renormalization: towards reducing minibatch dependence in batch-normalized
    models, NIPS 2017.
    """
    name = "batch_renormalization"
    if running_mean is None or running_var is None:
        raise TypeError(f"{name}: running_mean and running_var are required")
    statistics = {"running_mean": running_mean, "running_var": running_var}
    axis, shape = _shape_of_parameters(name, x, None, gamma, beta=beta, **statistics)
    mean, inverse_std = mean_and_inverse_std(as_array(widened(x)), axis, eps)
    running_inverse_std = (running_var.reshape(shape) + eps) ** -0.5
    r = (running_inverse_std / inverse_std).clip(1 / rmax, rmax).astype(x.dtype, copy=False)
    d = ((mean - running_mean.reshape(shape)) * running_inverse_std).clip(-dmax, dmax)
    gamma, beta = reshape(gamma, shape), reshape(beta, shape)
    shift = gamma * d.astype(x.dtype, copy=False) + beta
    statistics = (running_mean, running_var) if update_statistics else (None, None)
    follow = _following(x, axis, *statistics, decay)
    return _batch_normalization(x, gamma * r, shift, axis, eps, follow)


# Layer, group, instance and RMS normalization treat each sample separately.


def _gradients(g, gamma, normalized, inverse, axis, is_centered):
    """Returns the gradients of the input and of gamma; ``inverse`` is the factor by which
    normalization multiplies the input."""
    n = g.size // max(inverse.size, 1)
    h = g * gamma
    gx = h - normalized * (np.sum(h * normalized, axis=axis, keepdims=True) / n)
    if is_centered:
        gx = gx - np.sum(h, axis=axis, keepdims=True) / n
    return gx * inverse, sum_to.on(g * normalized, gamma.shape)


def _sample_normalization_derivative(g, x, gamma, aux, axis, eps):
    if not isinstance(g, Variable):
        mean, inverse_std = aux
        return kernels.sample_normalization_gradient(g, x, gamma, mean, inverse_std, axis)
    kinds = x.dtype, gamma.dtype
    g, x, gamma = widened(g), widened(x), widened(gamma)
    mean, inverse_std = mean_and_inverse_std(x, axis, eps) if isinstance(x, Variable) else aux
    normalized = (x - mean) * inverse_std
    gx, g_gamma = _gradients(g, gamma, normalized, inverse_std, axis, True)
    g_beta = sum_to.on(g, gamma.shape)
    return cast(gx, kinds[0]), cast(g_gamma, kinds[1]), cast(g_beta, kinds[1])


@differentiable(joint=_sample_normalization_derivative, n_arrays=3)
def _sample_normalization(x, gamma, beta, axis, eps) -> tuple[Output, object]:
    y, mean, inverse_std = kernels.sample_normalization(x, gamma, beta, axis, eps)
    return y, (mean, inverse_std)


def layer_normalization(x: Input, gamma: Input, beta: Input, eps: float = 1e-5) -> Variable:
    """Normalizes each sample by the mean and variance of its elements.

    The result is gamma (x - mean) / sqrt(var + eps) + beta.

    Args:
        x: Variable or array (N, D), floating point; or (..., D1, D2, ...), which is normalized over
            the trailing axes that have the shape of ``gamma``.
        gamma, beta: Variables or arrays (D,), or (D1, D2, ...).
        eps: number that is added to the variance.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: ``gamma`` or ``beta`` does not fit.

    Example:
        >>> F.layer_normalization(np.array([[1.0, 3.0]]), np.ones(2), np.zeros(2)).array.round(2)
        array([[-1.,  1.]])

    See J. L. Ba et al., Layer normalization, arXiv:1607.06450.
    """
    if _is_plain_layer(x, gamma, beta):
        return _sample_normalization(x, gamma, beta, (-1,), eps)
    axis = _trailing_axes("layer_normalization", x, gamma=gamma, beta=beta)
    of_gpu = _on_gpu is not None and x.dtype.char == "e" and is_gpu_array(as_array(x)) and x.size
    # the kernel for GPUs also accepts half precision
    if of_gpu or (x.dtype is gamma.dtype and x.dtype.char in "fd"):
        return _sample_normalization(x, gamma, beta, axis, eps)
    y = _sample_normalization(widened(x), widened(gamma), widened(beta), axis, eps)
    return cast(y, x.dtype)


def _is_plain_layer(x, gamma, beta):
    """Returns whether no more checks are needed: the arguments are NumPy arrays, or Variables of
    them, all float32 or all float64, with x (..., D), gamma and beta (D,)."""
    x, gamma = getattr(x, "_array", x), getattr(gamma, "_array", gamma)
    beta = getattr(beta, "_array", beta)
    if x.__class__ is not np.ndarray or gamma.__class__ is not np.ndarray:
        return False
    if beta.__class__ is not np.ndarray or x.dtype.char not in "fd" or not x.ndim:
        return False
    if gamma.dtype is not x.dtype or beta.dtype is not x.dtype:
        return False
    return gamma.shape == beta.shape == x.shape[-1:]


def _trailing_axes(name, x, **parameters):
    """Returns the trailing axes of ``x`` that have the shape of the parameters, as negative
    numbers."""
    shape = parameters["gamma"].shape
    check(x.ndim > 0 and is_floating(x.dtype), name, "x must be floating point, with axes", x=x)
    for argument, value in parameters.items():
        fits = shape and value.shape == shape == x.shape[-len(shape) :]
        if not fits or not is_floating(value.dtype):
            rule = f"{argument} must have the shape of the last axes of x and be floating point"
            fail(name, rule, x=x, **{argument: value})
    check_widths(name, {"x": x}, parameters)
    return tuple(range(-len(shape), 0))


def group_normalization(
    x: Input, groups: int, gamma: Input, beta: Input, eps: float = 1e-5
) -> Variable:
    """Normalizes each group of channels of each sample by its mean and variance.

    Args:
        x: Variable or array (N, C, ...), floating point.
        groups: the number of groups, which must divide C.
        gamma, beta: Variables or arrays (C,): scale and shift of the channels.
        eps: number that is added to the variance.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: ``groups`` does not divide the channels.

    Example:
        >>> F.group_normalization(np.zeros((2, 6, 8)), 3, np.ones(6), np.zeros(6)).shape
        (2, 6, 8)

    See Y. Wu and K. He, Group normalization, ECCV 2018.
    """
    return _group_normalization("group_normalization", x, groups, gamma, beta, eps)


def _group_normalization(name, x, groups, gamma, beta, eps):
    check(x.ndim >= 2 and is_floating(x.dtype), name, "x must be floating point (N, C, ...)", x=x)
    n, channels = x.shape[:2]
    if groups < 1 or channels % groups:
        raise ValueError(f"{name}: groups must divide the {channels} channels, but is {groups}")
    for argument, value in {"gamma": gamma, "beta": beta}.items():
        if value.shape != (channels,) or not is_floating(value.dtype):
            rule = f"{argument} must have one element per channel and be floating point"
            fail(name, rule, x=x, **{argument: value})
    check_widths(name, {"x": x}, {"gamma": gamma, "beta": beta})
    shape = (1, groups, channels // groups, 1)
    gamma, beta = (reshape(widened(p), shape) for p in (gamma, beta))
    grouped = reshape(widened(x), (n, *shape[1:3], math.prod(x.shape[2:])))
    y = _sample_normalization(grouped, gamma, beta, (2, 3), eps)
    return cast(reshape(y, x.shape), x.dtype)


def instance_normalization(x: Input, gamma: Input, beta: Input, eps: float = 1e-5) -> Variable:
    """Normalizes each channel of each sample by its mean and variance.

    Args:
        x: Variable or array (N, C, d1, ...), floating point.
        gamma, beta: Variables or arrays (C,).
        eps: number that is added to the variance.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.

    Example:
        >>> F.instance_normalization(np.zeros((2, 6, 8)), np.ones(6), np.zeros(6)).shape
        (2, 6, 8)

    See D. Ulyanov et al., Instance normalization: the missing ingredient for fast stylization,
    arXiv:1607.08022.
    """
    name = "instance_normalization"
    check(x.ndim >= 3, name, "x must have 3 axes or more", x=x)
    return _group_normalization(name, x, max(x.shape[1], 1), gamma, beta, eps)


def _rms_normalization_derivative(g, x, gamma, aux, axis, eps):
    if not isinstance(g, Variable):
        return kernels.rms_normalization_gradient(g, x, gamma, aux, axis)
    inverse = inverse_rms(x, axis, eps) if isinstance(x, Variable) else aux
    return _gradients(g, gamma, x * inverse, inverse, axis, False)


@differentiable(joint=_rms_normalization_derivative, n_arrays=2)
def _rms_normalization(x, gamma, axis, eps) -> tuple[Output, object]:
    return kernels.rms_normalization(x, gamma, axis, eps)


def rms_normalization(x: Input, gamma: Input, eps: float = 1e-5) -> Variable:
    """Divides each sample by the root of the mean square of its elements.

    The result is gamma x / sqrt(mean(x ** 2) + eps).

    Args:
        x: Variable or array (..., D), floating point; the norm is over the trailing axes that have
            the shape of ``gamma``.
        gamma: Variable or array (D,), or with the shape of several trailing axes of ``x``.
        eps: number that is added to the mean square.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: the shape or dtype of ``gamma`` does not match ``x``.

    Example:
        >>> F.rms_normalization(np.array([[1.0, 3.0]]), np.ones(2)).array.round(2)
        array([[0.45, 1.34]])

    See B. Zhang and R. Sennrich, Root mean square layer normalization, NeurIPS 2019.
    """
    axis = _trailing_axes("rms_normalization", x, gamma=gamma)
    return cast(_rms_normalization(widened(x), widened(gamma), axis, eps), x.dtype)


def _norm(x, axis):
    """Returns the Euclidean norm, whose derivative at zero is zero, and an array that is one where
    the norm is zero, else zero."""
    if isinstance(x, np.ndarray):
        squares = summed(x * x, axis[0] if len(axis) == 1 else axis, True)
    else:
        squares = np.sum(x * x, axis=axis, keepdims=True)
    zero = np.equal(squares, 0).astype(x.dtype)
    return np.sqrt(squares + zero) - zero, zero


def _normalize_derivative(g, x, aux, eps, axis, limit):
    norm, zero = _norm(x, axis) if isinstance(x, Variable) else aux
    projected = np.sum(g * x, axis=axis, keepdims=True) / ((norm + zero) * (norm + eps))
    gx = (g - x * projected) / (norm + eps)
    return gx if limit is None else np.minimum(np.maximum(gx, -limit), limit)


@differentiable(_normalize_derivative)
def _normalize(x, eps, axis, limit):
    norm, zero = _norm(x, axis)
    return in_one_pass(_quotient, x, norm + eps), (norm, zero)


def _quotient(x, y):
    return x / y


def normalize(x: Input, eps: float = 1e-5, axis: int | Sequence[int] = 1) -> Variable:
    """Divides by the Euclidean norm: x / (norm(x) + eps).

    Args:
        x: Variable or array, floating point.
        eps: number that is added to the norm.
        axis: the axes over which the norm is computed.

    Returns:
        Variable of the shape of ``x``. Where the norm is zero, the result is 0 with the derivative
        1 / eps. Gradients of float16 arrays are limited to the range of float16.

    Raises:
        InvalidType: ``x`` is not floating point or lacks an axis.

    Example:
        >>> F.normalize(np.array([[3.0, 4.0]])).array.round(2)
        array([[0.6, 0.8]])
    """
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    check(is_floating(x.dtype), "normalize", "x must be floating point", x=x)
    known = all(-x.ndim <= a < x.ndim for a in axes)
    check(known, "normalize", "x must have every axis", x=x, axis=axis)
    # The limit avoids infinite gradients in float16, which would stop training whenever a row is
    # zero.
    limit = 65504.0 if x.dtype == np.float16 else None
    return cast(_normalize(widened(x), eps, axes, limit), x.dtype)


# The sum over neighboring channels is its own adjoint, so its derivative is the same sum.
@differentiable(lambda g, reach: _neighbors.on(g, reach))
def _neighbors(x, reach):
    """Returns the sum over the channels from i - reach to i + reach, for each channel i."""
    return one_call(_summed_neighbors, x, reach)


def _summed_neighbors(x, reach):
    y = x.copy("K")
    for k in range(1, min(reach + 1, x.shape[1])):
        y[:, k:] += x[:, :-k]
        y[:, :-k] += x[:, k:]
    return y


def _local_response_derivative(g, x, aux, n, k, alpha, beta):
    scale = _neighbors.on(x * x, n // 2) * alpha + k if isinstance(x, Variable) else aux
    factor = scale**-beta
    return g * factor - x * _neighbors.on(g * x * (factor / scale), n // 2) * (2 * alpha * beta)


@differentiable(_local_response_derivative)
def _local_response_normalization(x, n, k, alpha, beta):
    scale = _neighbors.on(x * x, n // 2) * alpha + k
    return x * scale**-beta, scale


def local_response_normalization(
    x: Input, n: int = 5, k: float = 2, alpha: float = 1e-4, beta: float = 0.75
) -> Variable:
    """Local response normalization: divides by a power of the sum of squares of nearby channels.

    y[i] = x[i] / (k + alpha sum over j of x[j] ** 2) ** beta, where j runs over the channels from
    i - n // 2 to i + n // 2.

    Args:
        x: Variable or array (N, C, ...), floating point.
        n: the width of the neighborhood; an even n counts as n + 1.
        k, alpha, beta: constants of the formula.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: ``x`` has fewer than two axes or is not floating point.

    Example:
        >>> F.local_response_normalization(np.ones((2, 6, 8, 8))).shape
        (2, 6, 8, 8)

    See A. Krizhevsky et al., ImageNet classification with deep convolutional neural networks,
    NIPS 2012.
    """
    name = "local_response_normalization"
    check(x.ndim >= 2 and is_floating(x.dtype), name, "x must be floating point (N, C, ...)", x=x)
    return cast(_local_response_normalization(widened(x), n, k, alpha, beta), x.dtype)
