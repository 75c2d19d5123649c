"""Normalizations by cuDNN, where ``config.kernels`` names it.

Our own kernels take as few launches and are there at once. cuDNN compiles its own for each shape,
for seconds, and copies arrays whose channels are not the last axis in memory.
"""

import functools
import math

import numpy as np

from mpchain.backends import cuda
from mpchain.kernels import reference
from mpchain.kernels.cudnn import Request, Tensor, fit, packed, plan_of, refusal, unasked
from mpchain.typing import Array

_NAME = "cudnn"


def _floats(*arrays):
    """The arrays in single precision."""
    return [fit(x.astype(np.float32, copy=False)) for x in arrays]


def _reason(plan):
    return plan if isinstance(plan, str) else None


# Batch normalization: all arrays are (N, C, elements, 1).


def _add_batch_norm(library, graph, x, gamma, beta, mean, var, eps, momentum):
    """Adds a batch normalization, and running statistics, without which 1.32 takes none."""
    running = {"in_running_mean": mean, "in_running_var": var, "momentum": momentum}
    return graph.batchnorm(input=x, scale=gamma, bias=beta, epsilon=eps, **running)


def _add_batch_norm_gradient(library, graph, g, x, gamma, mean, inverse_std):
    return graph.batchnorm_backward(
        grad=g, input=x, scale=gamma, mean=mean, inv_variance=inverse_std
    )


@functools.lru_cache(maxsize=1024)
def batch_request(of_gradient: bool, shape: tuple, dtype: str) -> Request:
    """Returns the request for a batch normalization, or its gradient.

    Args:
        shape: of x, (N, C, ...).
        dtype: that of x; all but x, y and their gradients are in single precision.

    Example:
        >>> batch_request(True, (8, 3), "float16").reads[0].shape
        (8, 3, 1, 1)
    """
    shape = *shape[:2], math.prod(shape[2:]), 1
    x, one = Tensor(shape, packed(shape), dtype), (1, shape[1], 1, 1)
    of_channels = Tensor(one, packed(one), "float32")
    n_extra = 3 * x.n_bytes
    if of_gradient:
        reads = x, x, *[of_channels] * 3
        return Request(
            _add_batch_norm_gradient, reads, (x, of_channels, of_channels), n_extra=n_extra
        )
    reads, writes = (x, *[of_channels] * 4), (x, *[of_channels] * 4)
    return Request(_add_batch_norm, reads, writes, n_scalars=2, n_extra=n_extra)


def _refuse_batch(of_gradient, xs, axis, others):
    if (reason := unasked(*xs, *others) or refusal(*xs)) is not None:
        return reason
    x = xs[-1]
    if x.ndim < 2 or tuple(axis) != (0, *range(2, x.ndim)):
        return "not over all axes but the second"
    kept = tuple(1 if i in axis else n for i, n in enumerate(x.shape))
    if any(y.shape != kept for y in others):
        return "parameters of other shapes than the channels"
    return _reason(plan_of(batch_request(of_gradient, x.shape, x.dtype.name), x.device))


def _refuse_batch_norm(x, gamma, beta, axis, eps):
    return _refuse_batch(False, [x], axis, [gamma, beta])


def _refuse_batch_norm_gradient(g, x, gamma, mean, inverse_std, axis):
    return _refuse_batch(True, [g, x], axis, [gamma, mean, inverse_std])


@reference.batch_normalization.kernel(_NAME, _refuse_batch_norm)
def batch_normalization(
    x: Array, gamma: Array, beta: Array, axis: tuple[int, ...], eps: float
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.batch_normalization`."""
    xp, kept = cuda.get_array_module(x), gamma.shape
    y = xp.empty(x.shape, x.dtype)
    mean, inverse_std, *running = (xp.empty(kept, "f") for _ in range(4))
    gamma, beta = _floats(gamma, beta)
    plan = plan_of(batch_request(False, x.shape, x.dtype.name), x.device)
    results = y, mean, inverse_std, *running
    plan(fit(x), gamma, beta, gamma, beta, *results, scalars=(eps, 0))
    text = "float s = inverse_std; var = fmaxf(1 / (s * s) - eps, 0);"
    kernel = cuda.elementwise(
        "float32 inverse_std, float32 eps", "float32 var", text, "mpchain_var"
    )
    return y, mean, inverse_std, kernel(inverse_std, np.float32(eps))


@reference.batch_normalization_gradient.kernel(_NAME, _refuse_batch_norm_gradient)
def batch_normalization_gradient(
    g: Array, x: Array, gamma: Array, mean: Array, inverse_std: Array, axis: tuple[int, ...]
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.batch_normalization_gradient`."""
    xp, kept = cuda.get_array_module(x), gamma.shape
    gx, g_gamma, g_beta = xp.empty(x.shape, x.dtype), xp.empty(kept, "f"), xp.empty(kept, "f")
    plan = plan_of(batch_request(True, x.shape, x.dtype.name), x.device)
    plan(fit(g), fit(x), *_floats(gamma, mean, inverse_std), gx, g_gamma, g_beta)
    return gx, g_gamma, g_beta


# Layer normalization: all arrays are (rows, elements, 1, 1).


def _add_layer_norm(library, graph, x, gamma, beta, eps):
    training = library.norm_forward_phase.TRAINING
    return graph.layernorm(
        norm_forward_phase=training, input=x, scale=gamma, bias=beta, epsilon=eps
    )


def _add_layer_norm_gradient(library, graph, g, x, gamma, mean, inverse_std):
    return graph.layernorm_backward(
        grad=g, input=x, scale=gamma, mean=mean, inv_variance=inverse_std
    )


@functools.lru_cache(maxsize=1024)
def layer_request(of_gradient: bool, n_rows: int, n: int, dtype: str) -> Request:
    """Returns the request for a layer normalization of rows, or its gradient.

    Example:
        >>> [x.shape for x in layer_request(False, 8, 3, "float32").writes]
        [(8, 3, 1, 1), (8, 1, 1, 1), (8, 1, 1, 1)]
    """
    shapes = (n_rows, n, 1, 1), (1, n, 1, 1), (n_rows, 1, 1, 1)
    x, of_elements, of_rows = (
        Tensor(shape, packed(shape), kind)
        for shape, kind in zip(shapes, (dtype, "float32", "float32"))
    )
    if of_gradient:
        reads = x, x, of_elements, of_rows, of_rows
        return Request(_add_layer_norm_gradient, reads, (x, of_elements, of_elements))
    reads = x, of_elements, of_elements
    return Request(_add_layer_norm, reads, (x, of_rows, of_rows), n_scalars=1)


def _layer_plan(of_gradient, x, n):
    return plan_of(layer_request(of_gradient, x.size // n, n, x.dtype.name), x.device)


def _refuse_layer(of_gradient, x, gamma, axis, others):
    if (reason := unasked(x, gamma, *others) or refusal(x, gamma, *others)) is not None:
        return reason
    if sorted(a % x.ndim for a in axis) != [*range(x.ndim - len(axis), x.ndim)]:
        return "not over trailing axes"
    if x.dtype != np.float32 or gamma.shape != x.shape[x.ndim - len(axis) :]:
        return "not of single precision, with a factor for each element of a row"
    return _reason(_layer_plan(of_gradient, x, gamma.size))


def _refuse_layer_norm(x, gamma, beta, axis, eps):
    if getattr(gamma, "shape", None) != getattr(beta, "shape", None):
        return "gamma and beta of two shapes"
    return _refuse_layer(False, x, gamma, axis, [beta])


def _refuse_layer_norm_gradient(g, x, gamma, mean, inverse_std, axis):
    return _refuse_layer(True, x, gamma, axis, [g, mean, inverse_std])


@reference.sample_normalization.kernel(_NAME, _refuse_layer_norm)
def sample_normalization(
    x: Array, gamma: Array, beta: Array, axis: tuple[int, ...], eps: float
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.sample_normalization`."""
    xp, lead = cuda.get_array_module(x), x.shape[: x.ndim - len(axis)]
    y, *statistics = (xp.empty(s, "f") for s in (x.shape, *[(*lead, *[1] * len(axis))] * 2))
    plan = _layer_plan(False, x, gamma.size)
    plan(fit(x), fit(gamma), fit(beta), y, *statistics, scalars=(eps,))
    return y, *statistics


@reference.sample_normalization_gradient.kernel(_NAME, _refuse_layer_norm_gradient)
def sample_normalization_gradient(
    g: Array, x: Array, gamma: Array, mean: Array, inverse_std: Array, axis: tuple[int, ...]
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.sample_normalization_gradient`."""
    xp = cuda.get_array_module(x)
    gx, *of_parameters = (xp.empty(y.shape, "f") for y in (x, gamma, gamma))
    plan = _layer_plan(True, x, gamma.size)
    plan(*map(fit, (g, x, gamma, mean, inverse_std)), gx, *of_parameters)
    return gx, *of_parameters
