"""Attention by cuDNN: one kernel that never stores the weights, and one for the gradient.

Only half precision is supported: cuDNN has no plan for others. Compiling takes seconds per shape.
"""

import functools
import math
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.configuration import config
from mpchain.kernels import reference
from mpchain.kernels.gpu.cudnn import ALIGNMENT, Request, Tensor, packed, plan_of, refusal
from mpchain.kernels.operation import HALF
from mpchain.typing import Array


def _add_attention(library, graph, q, k, v, *others):
    *bias, scale, is_causal = others
    options = {"attn_scale": scale, "use_causal_mask": is_causal, "bias": bias[0] if bias else None}
    return graph.sdpa(q=q, k=k, v=v, generate_stats=True, **options)


def _add_gradient(library, graph, g, q, k, v, y, log_sums, *others):
    *bias, scale, is_causal, is_deterministic = others
    options = {"attn_scale": scale, "use_causal_mask": is_causal, "bias": bias[0] if bias else None}
    options["use_deterministic_algorithm"] = is_deterministic
    return graph.sdpa_backward(q=q, k=k, v=v, o=y, dO=g, stats=log_sums, **options)


def _strides(shape):
    """Returns the strides of an array (B, heads, L, E) that is stored as (B, L, heads, E)."""
    _, heads, length, e = shape
    return length * heads * e, e, heads * e, 1


@functools.lru_cache(maxsize=1024)
def attention_request(
    of_gradient: bool,
    arrays: tuple[tuple, ...],
    dtype: str,
    scale: float,
    is_causal: bool,
    is_deterministic: bool = False,
    bias: tuple | None = None,
) -> Request:
    """Returns the request for attention, or its gradient.

    Args:
        arrays: shapes and strides, in elements, of query, key and value; for the gradient, of g,
            query, key, value and y.
        bias: shape (1 or B, 1 or heads, L, S) and strides of the bias; None for no bias.

    Example:
        >>> like = (2, 3, 16, 8), (384, 8, 24, 1)
        >>> attention_request(False, (like,) * 3, "float16", 1.0, True).writes[1].shape
        (2, 3, 16, 1)
    """
    reads = tuple(Tensor(shape, strides, dtype) for shape, strides in arrays)
    q, k, v = reads[1:4] if of_gradient else reads
    of_rows = (*q.shape[:3], 1)
    log_sums = Tensor(of_rows, packed(of_rows), "float32")
    biases = () if bias is None else (Tensor(bias[0], bias[1], dtype),)
    if not of_gradient:
        y = (*q.shape[:3], v.shape[3])
        writes = Tensor(y, _strides(y), dtype), log_sums
        return Request(_add_attention, (*reads, *biases), writes, (scale, is_causal))
    writes = tuple(Tensor(x.shape, _strides(x.shape), dtype) for x in (q, k, v))
    # Sums in single precision, which take less memory than the weights that other kernels keep.
    n_extra = 4 * (q.n_bytes + k.n_bytes + v.n_bytes) + 4 * math.prod(q.shape[:3]) * k.shape[2]
    arguments = scale, is_causal, is_deterministic
    reads = *reads, log_sums, *biases
    return Request(_add_gradient, reads, writes, arguments, n_extra=n_extra)


def _layout(x):
    """Returns the shape of an array, and the strides for cuDNN: the array's own if possible."""
    own, step = [stride // x.itemsize for stride in x.strides], ALIGNMENT // x.itemsize
    plain = packed(x.shape)
    own = tuple(p if n == 1 else stride for n, stride, p in zip(x.shape, own, plain))
    is_taken = own[-1] == 1 and all(stride > 0 and stride % step == 0 for stride in own[:-1])
    return x.shape, own if is_taken and x.data.ptr % ALIGNMENT == 0 else plain


def _fit(x):
    if x.data.ptr % ALIGNMENT == 0:
        strides = zip(x.shape, x.strides, _layout(x)[1])
        if all(n == 1 or stride == x.itemsize * right for n, stride, right in strides):
            return x
    return x.copy()


def _plan(of_gradient, arrays, scale, is_causal, bias) -> Any:
    is_deterministic = of_gradient and bool(config.cudnn_deterministic)
    layouts, dtype = tuple(map(_layout, arrays)), arrays[0].dtype.name
    options = float(scale), bool(is_causal), is_deterministic, _layout(bias[0]) if bias else None
    return plan_of(attention_request(of_gradient, layouts, dtype, *options), arrays[0].device)


def _reason(of_gradient, arrays, scale, is_causal, bias):
    if (reason := refusal(*arrays, *bias)) is not None:
        return reason
    if any(x.ndim != 4 or x.shape[:2] != arrays[0].shape[:2] for x in arrays):
        return "not arrays of four axes, the first two alike"
    if arrays[0].shape[2] == 1:  # the first array is query or g, which have the same length
        return "one query, for which the weights are few, and the keys of another length each time"
    query, key = arrays[1:3] if of_gradient else arrays[:2]
    of_scores = (*query.shape[:3], key.shape[2])
    for x in bias:
        leading = zip(x.shape[:2], of_scores)
        if x.shape[2:] != of_scores[2:] or not all(m in (1, n) for m, n in leading):
            return "a bias that is not (1 or B, 1 or heads, L, S)"
    plan = _plan(of_gradient, arrays, scale, is_causal, bias)
    return plan if isinstance(plan, str) else None


def _given(bias) -> Any:
    return () if bias is None else (bias,)


def _refuse(query, key, value, scale, is_causal, bias=None):
    return _reason(False, (query, key, value), scale, is_causal, _given(bias))


def _refuse_gradient(g, query, key, value, y, log_sums, scale, is_causal, bias=None):
    return _reason(True, (g, query, key, value, y), scale, is_causal, _given(bias))


def _empty(xp: Any, shape: tuple, dtype: Any) -> Array:
    b, heads, length, e = shape
    return xp.empty((b, length, heads, e), dtype).transpose(0, 2, 1, 3)


@reference.attention.kernel("cudnn", _refuse, HALF)
def attention(
    query: Array, key: Array, value: Array, scale: float, is_causal: bool, bias: Array | None = None
) -> tuple[Array, Array]:
    """See :func:`mpchain.kernels.reference.attention`."""
    xp, arrays = cuda.get_array_module(query), (query, key, value)
    y = _empty(xp, (*query.shape[:3], value.shape[3]), query.dtype)
    log_sums = xp.empty((*query.shape[:3], 1), np.float32)
    given: Any = _given(bias)
    plan = _plan(False, arrays, scale, is_causal, given)
    plan(*map(_fit, (*arrays, *given)), y, log_sums)
    return y, log_sums


@reference.attention_gradient.kernel("cudnn", _refuse_gradient, HALF)
def attention_gradient(
    g: Array,
    query: Array,
    key: Array,
    value: Array,
    y: Array,
    log_sums: Array,
    scale: float,
    is_causal: bool,
    bias: Array | None = None,
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.reference.attention_gradient`."""
    xp, arrays = cuda.get_array_module(query), (g, query, key, value, y)
    gradients = [_empty(xp, x.shape, x.dtype) for x in arrays[1:4]]
    given: Any = _given(bias)
    plan = _plan(True, arrays, scale, is_causal, given)
    log_sums = log_sums.astype(np.float32, copy=False)  # another kernel may have computed them
    plan(*map(_fit, (*arrays, log_sums, *given)), *gradients)
    return tuple(gradients)
