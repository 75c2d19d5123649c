"""Normalisation of activations."""

import math

import numpy as np

from mpchain.functions.array import reshape
from mpchain.functions.declaration import differentiable
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_array


def _statistics(x, axis, eps):
    """Mean and inverse standard deviation over ``axis``, kept as axes of size one."""
    # An empty batch has no mean, but its sum is zero.
    average = np.mean if x.size else np.sum
    mean = average(x, axis=axis, keepdims=True)
    deviation = x - mean
    variance = average(deviation * deviation, axis=axis, keepdims=True)
    return mean, (variance + eps) ** -0.5


def _batch_normalization_derivative(g, x, gamma, aux, axis, eps):
    mean, inverse_std = _statistics(x, axis, eps) if isinstance(x, Variable) else aux[:2]
    normalised = (x - mean) * inverse_std
    g_beta = np.sum(g, axis=axis, keepdims=True)
    g_gamma = np.sum(g * normalised, axis=axis, keepdims=True)
    count = g.size // g_beta.size
    gx = (g - (normalised * g_gamma + g_beta) / count) * (gamma * inverse_std)
    return gx, g_gamma, g_beta


@differentiable(joint=_batch_normalization_derivative, n_arrays=3)
def _batch_normalization(x, gamma, beta, axis, eps):
    mean, inverse_std = _statistics(x, axis, eps)
    y = x - mean
    y *= inverse_std * gamma
    y += beta
    return y.astype(x.dtype, copy=False), (mean, inverse_std)


def _shape_of_parameters(name, x, axis, gamma, **parameters):
    """The reduced axes, and the shape in which gamma and the other parameters broadcast to x."""
    check(x.ndim > 0 and x.dtype.kind == "f", name, "x must be floating point, with axes", x=x)
    if axis is None:
        axis = (0, *range(gamma.ndim + 1, x.ndim))
    axis = (axis,) if isinstance(axis, int) else axis
    check(all(-x.ndim <= a < x.ndim for a in axis), name, "x must have every axis", x=x, axis=axis)
    axis = tuple(a % x.ndim for a in axis)
    kept = tuple(n for i, n in enumerate(x.shape) if i not in axis)
    for argument, value in {"gamma": gamma, **parameters}.items():
        if value is not None and value.shape != kept:
            check(False, name, f"{argument} must have shape {kept}", x=x, **{argument: value})
    return axis, tuple(1 if i in axis else n for i, n in enumerate(x.shape))


def batch_normalization(
    x, gamma, beta, *, eps=2e-5, running_mean=None, running_var=None, decay=0.9, axis=None
):
    """Normalises each channel by the mean and variance of the batch.

    The result is gamma (x - mean) / sqrt(var + eps) + beta.

    Args:
        x: Variable or array (N, C, ...), floating point.
        gamma, beta: Variables or arrays of the shape of the axes that are not reduced: (C,).
        eps (float): added to the variance.
        running_mean, running_var: arrays (C,), updated in place by ``decay``; the variance is
            unbiased there.
        decay (float): how much of the running statistics stays.
        axis (int or tuple of int): the axes to reduce; None means all but those of gamma, which
            follow the first.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: gamma or beta do not fit.

    See S. Ioffe and C. Szegedy, Batch normalization, ICML 2015.
    """
    statistics = {"running_mean": running_mean, "running_var": running_var}
    axis, shape = _shape_of_parameters(
        "batch_normalization", x, axis, gamma, beta=beta, **statistics
    )
    y = _batch_normalization(x, reshape(gamma, shape), reshape(beta, shape), axis, eps)
    if running_mean is not None or running_var is not None:
        _update_running_statistics(as_array(x), running_mean, running_var, decay, axis)
    return y


def _update_running_statistics(x, running_mean, running_var, decay, axis):
    count = math.prod(x.shape[a] for a in axis)
    if count == 0:
        return
    if running_mean is not None:
        running_mean *= decay
        running_mean += (1 - decay) * x.mean(axis=axis, dtype=running_mean.dtype)
    if running_var is not None:
        running_var *= decay
        unbiased = count / max(count - 1, 1)
        running_var += (1 - decay) * unbiased * x.var(axis=axis, dtype=running_var.dtype)


def fixed_batch_normalization(x, gamma, beta, mean, var, eps=2e-5, axis=None):
    """Batch normalisation by given statistics, as at inference.

    Args:
        x: Variable or array (N, C, ...), floating point.
        gamma, beta, mean, var: Variables or arrays (C,).
        eps (float): added to the variance.
        axis (int or tuple of int): the axes that the statistics were taken over; None as in
            :func:`batch_normalization`.

    Returns:
        Variable of the shape of ``x``.
    """
    axis, shape = _shape_of_parameters(
        "fixed_batch_normalization", x, axis, gamma, beta=beta, mean=mean, var=var
    )
    gamma, beta, mean, var = (reshape(p, shape) for p in (gamma, beta, mean, var))
    return (x - mean) * (gamma * (var + eps) ** -0.5) + beta
