"""Batch normalization by the statistics of all ranks' samples."""

import numpy as np

from mpchain import functions
from mpchain.backend import get_array_module
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.functions.communication import allreduce
from mpchain.functions.array import cast, reshape, widened
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.normalization import _shape_of_parameters
from mpchain.typing import Array, Axes
from mpchain.variable import Variable


def _sum_over_ranks(comm, x):
    return allreduce(comm, x) if isinstance(x, Variable) else comm.allreduce(x)


def _scaled_deviations(x, comm, axis, eps, count):
    """Returns normalized x and 1 / sqrt(var + eps) as differentiable functions of x."""
    mean = _sum_over_ranks(comm, np.sum(x, axis=axis, keepdims=True)) / count
    deviation = x - mean
    squares = np.sum(deviation * deviation, axis=axis, keepdims=True)
    inverse_std = (_sum_over_ranks(comm, squares) / count + eps) ** -0.5
    return deviation * inverse_std, inverse_std


def _derivative(g, x, gamma, aux, comm, axis, eps):
    mean, inverse_std, count = aux
    if isinstance(x, Variable):
        normalized, inverse_std = _scaled_deviations(x, comm, axis, eps, count)
    else:
        normalized = x - mean
        normalized *= inverse_std
    work = g * normalized
    g_beta = np.sum(g, axis=axis, keepdims=True)
    g_gamma = np.sum(work, axis=axis, keepdims=True)
    # Every rank's y depends on the statistics, through the rank's own copy of gamma.
    sums = np.stack([gamma * g_gamma, gamma * g_beta])
    through_std, through_mean = _sum_over_ranks(comm, sums) / count
    if isinstance(x, Variable):
        gx = (g * gamma - (normalized * through_std + through_mean)) * inverse_std
        return gx, g_gamma, g_beta
    # This code computes the formula above with two arrays, because allocating memory costs more
    # than the arithmetic.
    normalized *= through_std
    normalized += through_mean
    gx = np.multiply(g, gamma, out=work)
    gx -= normalized
    gx *= inverse_std
    return gx, g_gamma, g_beta


@differentiable(joint=_derivative, n_arrays=3)
def _multi_node_batch_normalization(x, gamma, beta, comm, axis, eps, follow):
    xp = get_array_module(x)
    total = x.sum(axis=axis, keepdims=True)
    n_local = xp.full(1, x.size // max(total.size, 1), x.dtype)
    sums = comm.allreduce(xp.concatenate([total.reshape(-1), n_local]))
    count = xp.maximum(sums[-1], 1)  # if no rank has samples, all sums are zero
    mean = sums[:-1].reshape(total.shape) / count
    y = x - mean
    var = comm.allreduce((y * y).sum(axis=axis, keepdims=True)) / count
    follow(mean, var, count, sums[-1] > 0)
    inverse_std = (var + eps) ** -0.5
    y *= inverse_std * gamma
    y += beta
    return y, (mean, inverse_std, count)


def batch_normalization(
    comm: Communicator,
    x: Variable | Array,
    gamma: Variable | Array,
    beta: Variable | Array,
    *,
    eps: float = 2e-5,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    decay: float = 0.9,
    axis: Axes = None,
) -> Variable:
    """Normalizes each channel by the mean and variance of the samples of all ranks together.

    The result is equal to the result of :func:`mpchain.functions.batch_normalization` for all
    samples in one process. Any number of samples on each rank is possible, including zero. Ranks
    sum two small arrays in forward (the variance is computed from the deviations from the mean),
    and one small array in backward.

    Args:
        comm: the communicator of the ranks.
        x: Variable or array (N, C, ...), floating point; N may differ between ranks.
        gamma, beta: Variables or arrays (C,), the same on all ranks.
        eps: number that is added to the variance.
        running_mean, running_var: arrays (C,), updated in place with ``decay`` by the mean and the
            unbiased variance. They stay the same on all ranks.
        decay: weight of the running statistics' old values.
        axis: the axes to reduce; None means the first axis and all axes after those of gamma.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: gamma or beta do not have the shape of the channels of ``x``.

    Example:
        >>> x = np.array([[1.0], [3.0]])
        >>> normalize = mpchain.distributed.functions.batch_normalization
        >>> normalize(comm, x, np.ones(1), np.zeros(1), eps=0.0)
        variable([[-1.], [ 1.]])

    See S. Ioffe and C. Szegedy, Batch normalization, ICML 2015.
    """
    statistics = {"running_mean": running_mean, "running_var": running_var}
    if comm.size == 1:  # without other ranks, one kernel computes everything
        options = {"eps": eps, "decay": decay, "axis": axis, **statistics}
        return functions.batch_normalization(x, gamma, beta, **options)
    axis, shape = _shape_of_parameters(
        "batch_normalization", x, axis, gamma, beta=beta, **statistics
    )

    def follow(mean, var, count, follows):
        xp = get_array_module(count)
        step = (1 - decay) * follows
        unbiased = var * (count / xp.maximum(count - 1, 1))
        for running, value in ((running_mean, mean), (running_var, unbiased)):
            if running is not None:
                running += step * (value.reshape(running.shape) - running)

    gamma, beta = (widened(reshape(p, shape)) for p in (gamma, beta))
    y = _multi_node_batch_normalization(widened(x), gamma, beta, comm, axis, eps, follow)
    return cast(y, x.dtype)
