"""Normalizations by cuDNN, which are used if ``config.kernels`` names cuDNN.

Our own kernels need as few launches and compile quickly. cuDNN compiles kernels for each shape,
which takes seconds, and copies arrays whose channels are not the last axis in memory.
"""

import functools
import math

import numpy as np

from mpchain.backends import cuda
from mpchain.kernels import reference
from mpchain.kernels.gpu import cudnn
from mpchain.kernels.operation import SINGLE
from mpchain.typing import Array

_NAME = "cudnn"


def _floats(*arrays):
    """Returns the arrays in single precision."""
    return [cudnn.fit(x.astype(np.float32, copy=False)) for x in arrays]


def _reason(plan):
    return plan if isinstance(plan, str) else None


# In the graphs below, for batch normalization, x, y and their gradients are (N, C, elements, 1),
# and all other arrays (1, C, 1, 1).


def _add_batch_norm(library, graph, x, gamma, beta, mean, var, eps, momentum):
    """Adds a batch normalization with running statistics; cuDNN's frontend 1.32 requires them."""
    running = {"in_running_mean": mean, "in_running_var": var, "momentum": momentum}
    return graph.batchnorm(input=x, scale=gamma, bias=beta, epsilon=eps, **running)


def _add_batch_norm_gradient(library, graph, g, x, gamma, mean, inverse_std):
    return graph.batchnorm_backward(
        grad=g, input=x, scale=gamma, mean=mean, inv_variance=inverse_std
    )


@functools.lru_cache(maxsize=1024)
def batch_request(of_gradient: bool, shape: tuple, dtype: str) -> cudnn.Request:
    """Returns the request for a batch normalization, or its gradient.

    Args:
        of_gradient: whether to compute the gradient.
        shape: the shape of x, (N, C, ...).
        dtype: the dtype of x, y and their gradients; all other arrays are in single precision.

    Example:
        >>> batch_request(True, (8, 3), "float16").reads[0].shape
        (8, 3, 1, 1)
    """
    shape = *shape[:2], math.prod(shape[2:]), 1
    x, one = cudnn.Tensor(shape, cudnn.packed(shape), dtype), (1, shape[1], 1, 1)
    of_channels = cudnn.Tensor(one, cudnn.packed(one), "float32")
    n_extra = 3 * x.n_bytes
    if of_gradient:
        reads = x, x, *[of_channels] * 3
        return cudnn.Request(
            _add_batch_norm_gradient, reads, (x, of_channels, of_channels), n_extra=n_extra
        )
    reads, writes = (x, *[of_channels] * 4), (x, *[of_channels] * 4)
    return cudnn.Request(_add_batch_norm, reads, writes, n_scalars=2, n_extra=n_extra)


def _refuse_batch(of_gradient, xs, axis):
    if (reason := cudnn.unasked() or cudnn.refusal(*xs)) is not None:
        return reason
    x = xs[-1]
    if x.ndim < 2 or tuple(axis) != (0, *range(2, x.ndim)):
        return "not over all axes but the second"
    return _reason(cudnn.plan_of(batch_request(of_gradient, x.shape, x.dtype.name), x.device))


def _refuse_batch_norm(x, gamma, beta, axis, eps):
    return _refuse_batch(False, [x], axis)


def _refuse_batch_norm_gradient(g, x, gamma, mean, inverse_std, axis):
    return _refuse_batch(True, [g, x], axis)


@reference.batch_normalization.kernel(_NAME, _refuse_batch_norm, cudnn.DTYPES)
def batch_normalization(
    x: Array, gamma: Array, beta: Array, axis: tuple[int, ...], eps: float
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.batch_normalization`."""
    xp, kept = cuda.get_array_module(x), gamma.shape
    y = xp.empty(x.shape, x.dtype)
    mean, inverse_std, *running = (xp.empty(kept, "f") for _ in range(4))
    gamma, beta = _floats(gamma, beta)
    plan = cudnn.plan_of(batch_request(False, x.shape, x.dtype.name), x.device)
    results = y, mean, inverse_std, *running
    plan(cudnn.fit(x), gamma, beta, gamma, beta, *results, scalars=(eps, 0))
    text = "float s = inverse_std; var = fmaxf(1 / (s * s) - eps, 0);"
    kernel = cuda.elementwise(
        "float32 inverse_std, float32 eps", "float32 var", text, "mpchain_var"
    )
    return y, mean, inverse_std, kernel(inverse_std, np.float32(eps))


@reference.batch_normalization_gradient.kernel(_NAME, _refuse_batch_norm_gradient, cudnn.DTYPES)
def batch_normalization_gradient(
    g: Array, x: Array, gamma: Array, mean: Array, inverse_std: Array, axis: tuple[int, ...]
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.batch_normalization_gradient`."""
    xp, kept = cuda.get_array_module(x), gamma.shape
    gx, g_gamma, g_beta = xp.empty(x.shape, x.dtype), xp.empty(kept, "f"), xp.empty(kept, "f")
    plan = cudnn.plan_of(batch_request(True, x.shape, x.dtype.name), x.device)
    plan(cudnn.fit(g), cudnn.fit(x), *_floats(gamma, mean, inverse_std), gx, g_gamma, g_beta)
    return gx, g_gamma, g_beta


# In the graphs below, for layer and RMS normalization, x, y and their gradients are
# (rows, elements, 1, 1); scales and biases have one row, and statistics one element for each row.


def _add_layer_norm(library, graph, x, gamma, beta, eps):
    training = library.norm_forward_phase.TRAINING
    return graph.layernorm(
        norm_forward_phase=training, input=x, scale=gamma, bias=beta, epsilon=eps
    )


def _add_layer_norm_gradient(library, graph, g, x, gamma, mean, inverse_std):
    return graph.layernorm_backward(
        grad=g, input=x, scale=gamma, mean=mean, inv_variance=inverse_std
    )


def _add_rms_norm(library, graph, x, gamma, eps):
    training = library.norm_forward_phase.TRAINING
    return graph.rmsnorm(norm_forward_phase=training, input=x, scale=gamma, epsilon=eps)


def _add_rms_norm_gradient(library, graph, g, x, gamma, inverse):
    return graph.rmsnorm_backward(
        grad=g, input=x, scale=gamma, inv_variance=inverse, has_dbias=False
    )


@functools.lru_cache(maxsize=1024)
def layer_request(
    of_gradient: bool, n_rows: int, n: int, dtype: str, is_centered: bool = True
) -> cudnn.Request:
    """Returns the request for a layer normalization of rows, or its gradient.

    Args:
        is_centered: whether the mean is subtracted; False means RMS normalization, which has
            neither means nor beta.

    Example:
        >>> [x.shape for x in layer_request(False, 8, 3, "float32").writes]
        [(8, 3, 1, 1), (8, 1, 1, 1), (8, 1, 1, 1)]
    """
    shapes = (n_rows, n, 1, 1), (1, n, 1, 1), (n_rows, 1, 1, 1)
    x, of_elements, of_rows = (
        cudnn.Tensor(shape, cudnn.packed(shape), kind)
        for shape, kind in zip(shapes, (dtype, "float32", "float32"))
    )
    of_all, of_each = [of_elements] * (1 + is_centered), [of_rows] * (1 + is_centered)
    if of_gradient:
        add = _add_layer_norm_gradient if is_centered else _add_rms_norm_gradient
        return cudnn.Request(add, (x, x, of_elements, *of_each), (x, *of_all))
    add = _add_layer_norm if is_centered else _add_rms_norm
    return cudnn.Request(add, (x, *of_all), (x, *of_each), n_scalars=1)


def _layer_plan(of_gradient, x, n, is_centered):
    request = layer_request(of_gradient, x.size // n, n, x.dtype.name, is_centered)
    return cudnn.plan_of(request, x.device)


def _refuse_layer(of_gradient, x, gamma, axis, others, is_centered=True):
    if (reason := cudnn.unasked() or cudnn.refusal(x, gamma, *others)) is not None:
        return reason
    if sorted(a % x.ndim for a in axis) != [*range(x.ndim - len(axis), x.ndim)]:
        return "not over trailing axes"
    if gamma.shape != x.shape[x.ndim - len(axis) :]:
        return "not a factor for each element of a row"
    return _reason(_layer_plan(of_gradient, x, gamma.size, is_centered))


def _refuse_layer_norm(x, gamma, beta, axis, eps):
    return _refuse_layer(False, x, gamma, axis, [beta])


def _refuse_layer_norm_gradient(g, x, gamma, mean, inverse_std, axis):
    return _refuse_layer(True, x, gamma, axis, [g, mean, inverse_std])


@reference.sample_normalization.kernel(_NAME, _refuse_layer_norm, SINGLE)
def sample_normalization(
    x: Array, gamma: Array, beta: Array, axis: tuple[int, ...], eps: float
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.sample_normalization`."""
    return _normalize(x, [gamma, beta], axis, eps)


def _normalize(x, parameters, axis, eps):
    xp, lead = cuda.get_array_module(x), x.shape[: x.ndim - len(axis)]
    of_rows = (*lead, *[1] * len(axis))
    results = [xp.empty(shape, "f") for shape in (x.shape, *(of_rows for _ in parameters))]
    plan = _layer_plan(False, x, parameters[0].size, len(parameters) == 2)
    plan(*map(cudnn.fit, (x, *parameters)), *results, scalars=(eps,))
    return tuple(results)


@reference.sample_normalization_gradient.kernel(_NAME, _refuse_layer_norm_gradient, SINGLE)
def sample_normalization_gradient(
    g: Array, x: Array, gamma: Array, mean: Array, inverse_std: Array, axis: tuple[int, ...]
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.sample_normalization_gradient`."""
    return _gradients(g, x, gamma, [mean, inverse_std])


def _gradients(g, x, gamma, statistics):
    xp = cuda.get_array_module(x)
    results = [xp.empty(shape, "f") for shape in (x.shape, *(gamma.shape for _ in statistics))]
    plan = _layer_plan(True, x, gamma.size, len(statistics) == 2)
    plan(*map(cudnn.fit, (g, x, gamma, *statistics)), *results)
    return tuple(results)


def _refuse_rms_norm(x, gamma, axis, eps):
    return _refuse_layer(False, x, gamma, axis, [], False)


def _refuse_rms_norm_gradient(g, x, gamma, inverse, axis):
    return _refuse_layer(True, x, gamma, axis, [g, inverse], False)


@reference.rms_normalization.kernel(_NAME, _refuse_rms_norm, SINGLE)
def rms_normalization(
    x: Array, gamma: Array, axis: tuple[int, ...], eps: float
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.rms_normalization`."""
    return _normalize(x, [gamma], axis, eps)


@reference.rms_normalization_gradient.kernel(_NAME, _refuse_rms_norm_gradient, SINGLE)
def rms_normalization_gradient(
    g: Array, x: Array, gamma: Array, inverse: Array, axis: tuple[int, ...]
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.rms_normalization_gradient`."""
    return _gradients(g, x, gamma, [inverse])
