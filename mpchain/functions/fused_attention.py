"""Attention in one kernel, if a library has such a kernel."""

from mpchain import kernels
from mpchain.backends.cuda import get_array_module, is_gpu_array
from mpchain.backends.dtypes import smallest
from mpchain.functions.activation import softmax
from mpchain.functions.array import swapaxes
from mpchain.functions.contraction import matmul
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.mathematics import where
from mpchain.functions.reduction import sum as sum_over
from mpchain.typing import Array, Input, Output
from mpchain.variable import Variable


def attention_weights(
    query: Input, key: Input, scale: float, is_causal: bool, bias: Array | None
) -> Variable:
    """Returns the weights with which :func:`composed_attention` multiplies values.

    Example:
        >>> attention_weights(np.ones((1, 1, 2, 4)), np.ones((1, 1, 2, 4)), 1.0, True, None).array
        array([[[[1. , 0. ],
                 [0.5, 0.5]]]])
    """
    scores = matmul(query * scale, swapaxes(key, -1, -2))
    scores = scores if bias is None else scores + bias
    if is_causal:
        xp = get_array_module(query)
        is_later = xp.arange(scores.shape[-1]) > xp.arange(scores.shape[-2])[:, None]
        low = xp.asarray(smallest(scores.dtype) / 2, scores.dtype)
        scores = where(is_later, low, scores)
    return softmax(scores, scores.ndim - 1)


def composed_attention(
    query: Input, key: Input, value: Input, scale: float, is_causal: bool, bias: Array | None = None
) -> Variable:
    """Computes attention by other functions; the result is that of :func:`fused_attention`.

    Example:
        >>> x = np.ones((1, 2, 3, 4))
        >>> composed_attention(x, x, x, 1.0, True).shape
        (1, 2, 3, 4)
    """
    return matmul(attention_weights(query, key, scale, is_causal, bias), value)


def _derivative(g, query, key, value, y, aux, scale, is_causal, bias):
    if not isinstance(g, Variable):
        (log_sums,) = aux
        return kernels.attention_gradient(g, query, key, value, y, log_sums, scale, is_causal, bias)
    weights = attention_weights(query, key, scale, is_causal, bias)
    change = matmul(g, swapaxes(value, -1, -2))
    change = change - sum_over(change * weights, axis=-1, keepdims=True)
    change = change * weights * scale
    gradients = matmul(change, key), matmul(swapaxes(change, -1, -2), query)
    return *gradients, matmul(swapaxes(weights, -1, -2), g)


@differentiable(joint=_derivative, n_arrays=3)
def fused_attention(query, key, value, scale, is_causal, bias=None) -> tuple[Output, object]:
    """Returns :func:`mpchain.kernels.reference.attention`; the bias has no gradient."""
    y, log_sums = kernels.attention(query, key, value, scale, is_causal, bias)
    return y, (log_sums,)


def is_fused(
    query: Variable,
    key: Variable,
    value: Variable,
    scale: object,
    is_causal: bool,
    bias: Array | None = None,
) -> bool:
    """Returns whether a library has a kernel for these arguments.

    Example:
        >>> x = mpchain.Variable(np.zeros((1, 2, 3, 4)))
        >>> is_fused(x, x, x, 1.0, True)
        False
    """
    if not (is_gpu_array(query.array) and isinstance(scale, (int, float))):
        return False
    arrays = query.array, key.array, value.array
    return kernels.attention.select(*arrays, scale, is_causal, bias).library != "reference"
