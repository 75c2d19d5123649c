"""Attention in one kernel, if a library has such a kernel."""

from mpchain import kernels, observers, random
from mpchain.backends.cuda import get_array_module, is_gpu_array
from mpchain.backends.dtypes import smallest
from mpchain.configuration import config
from mpchain.functions.activation import softmax
from mpchain.functions.array import swapaxes
from mpchain.functions.contraction import matmul
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.mathematics import where
from mpchain.functions.noise import Masks, check_ratio
from mpchain.functions.reduction import sum as sum_over
from mpchain.kernels import Dropout
from mpchain.observers import current
from mpchain.typing import Array, Input, Output
from mpchain.variable import Variable, as_array

OWN_GENERATOR = "cudnn_dropout"
"""The name in ``config.kernels`` that lets cuDNN draw masks where draws belong to samples."""


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


def dropout_factors(
    query: Input,
    key: Input,
    value: Input,
    scale: float,
    is_causal: bool,
    bias: Array | None,
    dropout: Dropout,
) -> Array:
    """Returns what the dropout of :func:`fused_attention` multiplies the weights with.

    Example:
        >>> x, dropout = np.ones((1, 3)), Dropout(0.5, False, np.ones((1, 1)))
        >>> dropout_factors(x, x, x, 1.0, False, None, dropout)
        array([[2.]])
    """
    arrays = as_array(query), as_array(key), as_array(value)
    kept = kernels.attention_kept(*arrays, scale, is_causal, bias, dropout)
    return kept * kept.dtype.type(1 / (1 - dropout.ratio))


def composed_attention(
    query: Input,
    key: Input,
    value: Input,
    scale: float,
    is_causal: bool,
    bias: Array | None = None,
    dropout: Dropout | None = None,
) -> Variable:
    """Computes attention by other functions; the result is that of :func:`fused_attention`.

    Example:
        >>> x = np.ones((1, 2, 3, 4))
        >>> composed_attention(x, x, x, 1.0, True).shape
        (1, 2, 3, 4)
    """
    weights = attention_weights(query, key, scale, is_causal, bias)
    if dropout is not None:
        factors = dropout_factors(query, key, value, scale, is_causal, bias, dropout)
        weights = weights * factors
    return matmul(weights, value)


def _derivative(g, query, key, value, y, aux, scale, is_causal, bias, dropout):
    options = scale, is_causal, bias
    if not isinstance(g, Variable):
        arrays = g, query, key, value, y, *aux
        if dropout is not None and dropout.has_seed:
            # cuDNN may have no plan for this gradient; on a B200, for example, it has no
            # deterministic plan. The reference needs the mask then.
            if kernels.attention_gradient.select(*arrays, *options, dropout).library != "cudnn":
                kept = kernels.attention_kept(query, key, value, *options, dropout)
                dropout = Dropout(dropout.ratio, False, kept)
        return kernels.attention_gradient(*arrays, *options, dropout)
    weights = dropped = attention_weights(query, key, *options)
    change = matmul(g, swapaxes(value, -1, -2))
    if dropout is not None:
        factors = dropout_factors(query, key, value, *options, dropout)
        change, dropped = change * factors, weights * factors
    change = change - sum_over(change * weights, axis=-1, keepdims=True)
    change = change * weights * scale
    gradients = matmul(change, key), matmul(swapaxes(change, -1, -2), query)
    return *gradients, matmul(swapaxes(dropped, -1, -2), g)


@differentiable(joint=_derivative, n_arrays=3)
def fused_attention(
    query, key, value, scale, is_causal, bias=None, dropout=None
) -> tuple[Output, object]:
    """Returns :func:`mpchain.kernels.attention`; the bias has no gradient."""
    y, log_sums = kernels.attention(query, key, value, scale, is_causal, bias, dropout)
    return y, (log_sums,)


def undrawn_dropout(ratio: float) -> Dropout | None:
    """Returns the dropout of weights before it is drawn; None if nothing is dropped.

    A library draws by its own generator where draws belong to no sample, or if ``config.kernels``
    contains :data:`OWN_GENERATOR`.

    Raises:
        ValueError: the ratio is out of range.

    Example:
        >>> undrawn_dropout(0.1)
        Dropout(ratio=0.1, has_seed=True, drawn=None)
    """
    check_ratio("dropout", ratio)
    if not (ratio and config.train):
        return None
    return Dropout(ratio, not random.is_by_sample() or OWN_GENERATOR in (config.kernels or ()))


def draw_dropout(dropout: Dropout | None, query: Variable, key: Variable) -> Dropout | None:
    """Returns the dropout of the weights of query (..., L, E) and key (..., S, E), drawn."""
    if dropout is None:
        return None
    xp, shape = query.xp, (*query.shape[:-1], key.shape[-2])
    if dropout.has_seed:
        return dropout._replace(drawn=observers.draws(Masks()).seed(xp))
    counters = random.counters(xp, shape) if current.recorder is None else None
    if counters is None:
        masks = observers.draws(Masks())
        return dropout._replace(drawn=masks.kept(xp, shape, query.dtype, dropout.ratio))
    return dropout._replace(drawn=counters)


def is_fused(
    query: Variable,
    key: Variable,
    value: Variable,
    scale: object,
    is_causal: bool,
    bias: Array | None = None,
    dropout: Dropout | None = None,
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
    return kernels.attention.select(*arrays, scale, is_causal, bias, dropout).library != "reference"
