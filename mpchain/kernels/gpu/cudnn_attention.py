"""Attention by cuDNN: one kernel computes attention without storing the weights, and one computes
the gradient.

Only half precision is supported, because cuDNN has no plan for other dtypes. The compilation for a
shape takes seconds.

Dropout has one of two forms. With a seed, cuDNN draws the mask in both kernels, which do not store
it. Where draws belong to samples, cuDNN reads the mask from an array.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends import cuda
from mpchain.configuration import config
from mpchain.kernels import attend
from mpchain.kernels.attend import Dropout, kept_of
from mpchain.kernels.gpu.cudnn import ALIGNMENT, Request, Tensor, packed, plan_of, refusal
from mpchain.kernels.operation import HALF
from mpchain.typing import Array


class Options(NamedTuple):
    """What a graph of attention depends on besides its main arrays.

    Attributes:
        scale: the factor on the products.
        is_causal: whether query i attends to keys 0 to i only.
        is_deterministic: whether gradients have the same bits each time.
        bias: shape (1 or B, 1 or heads, L, S) and strides of the bias; None for no bias.
        dropout: None, or the ratio and whether cuDNN draws the mask from a seed.
        shows_mask: whether the graph also writes the mask that cuDNN draws.

    Example:
        >>> Options(0.125, True).dropout is None
        True
    """

    scale: float
    is_causal: bool
    is_deterministic: bool = False
    bias: tuple | None = None
    dropout: tuple[float, bool] | None = None
    shows_mask: bool = False


def _described(options, others):
    """Returns the arguments of a node: the tensors of bias and dropout are ``others``."""
    arguments = {"attn_scale": options.scale, "use_causal_mask": options.is_causal}
    arguments["bias"], others = (others[0], others[1:]) if options.bias else (None, others)
    if options.dropout is not None:
        ratio, has_seed = options.dropout
        arguments["dropout"] = (ratio, *others) if has_seed else tuple(others)
    return arguments


def _add_attention(library, graph, q, k, v, *others):
    *others, options = others
    arguments = _described(options, others)
    if not options.shows_mask:
        return graph.sdpa(q=q, k=k, v=v, generate_stats=True, **arguments)
    shape = [*q.get_dim()[:3], k.get_dim()[2]]
    layout = {"dim": shape, "stride": list(packed(tuple(shape)))}
    mask = graph.tensor(**layout, data_type=library.data_type.FLOAT, uid=6 + len(others))
    made = graph.sdpa(q=q, k=k, v=v, generate_stats=True, rng_dump=mask, **arguments)
    return *made, mask


def _add_gradient(library, graph, g, q, k, v, y, log_sums, *others):
    *others, options = others
    arguments = _described(options, others)
    arguments["use_deterministic_algorithm"] = options.is_deterministic
    return graph.sdpa_backward(q=q, k=k, v=v, o=y, dO=g, stats=log_sums, **arguments)


def _strides(shape):
    """Returns the strides of an array (B, heads, L, E) that is stored as (B, L, heads, E)."""
    _, heads, length, e = shape
    return length * heads * e, e, heads * e, 1


@functools.lru_cache(maxsize=1024)
def attention_request(
    of_gradient: bool,
    arrays: tuple[tuple, ...],
    dtype: str,
    options: Options,
) -> Request:
    """Returns the request for attention, or its gradient.

    Args:
        of_gradient: whether to compute the gradient.
        arrays: shapes and strides, in elements, of query, key and value; for the gradient, of g,
            query, key, value and y.
        dtype: the name of the arrays' dtype.
        options: all else.

    Example:
        >>> like = (2, 3, 16, 8), (384, 8, 24, 1)
        >>> attention_request(False, (like,) * 3, "float16", Options(1.0, True)).writes[1].shape
        (2, 3, 16, 1)
    """
    reads = tuple(Tensor(shape, strides, dtype) for shape, strides in arrays)
    q, k, v = reads[1:4] if of_gradient else reads
    of_rows = (*q.shape[:3], 1)
    log_sums = Tensor(of_rows, packed(of_rows), "float32")
    of_weights = (*q.shape[:3], k.shape[2])
    others, n_scalars = [], 0
    if options.bias is not None:
        others.append(Tensor(options.bias[0], options.bias[1], dtype))
    if options.dropout is not None:
        if options.dropout[1]:
            others += [Tensor((1,) * 4, (1,) * 4, "int64")] * 2
        else:
            others.append(Tensor(of_weights, packed(of_weights), dtype))
            n_scalars = 2 if of_gradient else 1
    if not of_gradient:
        y = (*q.shape[:3], v.shape[3])
        writes = [Tensor(y, _strides(y), dtype), log_sums]
        if options.shows_mask:
            writes.append(Tensor(of_weights, packed(of_weights), "float32"))
        reads = *reads, *others
        return Request(_add_attention, reads, tuple(writes), (options,), n_scalars)
    writes = tuple(Tensor(x.shape, _strides(x.shape), dtype) for x in (q, k, v))
    # The workspace holds sums in single precision. It may also take as much memory as the weights,
    # because other kernels keep the weights.
    n_extra = 4 * (q.n_bytes + k.n_bytes + v.n_bytes) + 4 * math.prod(of_weights)
    reads = *reads, log_sums, *others
    return Request(_add_gradient, reads, writes, (options,), n_scalars, n_extra)


def _layout(x):
    """Returns the shape of an array, and the strides for cuDNN: the array's own strides if
    possible."""
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


class _Call(NamedTuple):
    """A call of a kernel: its arrays, beginning with g for the gradient, and all else."""

    of_gradient: bool
    arrays: tuple
    scale: float
    is_causal: bool
    bias: Any = None
    dropout: Dropout | None = None
    shows_mask: bool = False

    def plan(self):
        """Returns the plan of the call, or the reason why there is none (str)."""
        is_deterministic = self.of_gradient and bool(config.cudnn_deterministic)
        layouts, dtype = tuple(map(_layout, self.arrays)), self.arrays[0].dtype.name
        bias = None if self.bias is None else _layout(self.bias)
        dropout = None if self.dropout is None else (float(self.dropout.ratio), self.dropout[1])
        options = Options(
            *(float(self.scale), bool(self.is_causal), is_deterministic, bias, dropout),
            shows_mask=self.shows_mask,
        )
        request = attention_request(self.of_gradient, layouts, dtype, options)
        return plan_of(request, self.arrays[0].device)

    def refusal(self):
        """Returns why cuDNN refuses the call, None if it does not."""
        given = () if self.bias is None else (self.bias,)
        if (reason := refusal(*self.arrays, *given)) is not None:
            return reason
        shape = self.arrays[0].shape  # that of query or of g, which have the same length
        if any(x.ndim != 4 or x.shape[:2] != shape[:2] for x in self.arrays):
            return "not arrays of four axes with equal first two axes"
        if shape[2] == 1:
            reason = "one query: its weights are few, and the keys have another length"
            return f"{reason} each time"
        query, key = self.arrays[1:3] if self.of_gradient else self.arrays[:2]
        of_scores = (*query.shape[:3], key.shape[2])
        for x in given:
            leading = zip(x.shape[:2], of_scores)
            if x.shape[2:] != of_scores[2:] or not all(m in (1, n) for m, n in leading):
                return "a bias that is not (1 or B, 1 or heads, L, S)"
        plan = self.plan()
        return plan if isinstance(plan, str) else None

    def run(self, log_sums, outs):
        """Runs the plan, which writes ``outs``."""
        read = [*self.arrays, *log_sums, *(() if self.bias is None else (self.bias,))]
        scalars: tuple = ()
        if self.dropout is not None and self.dropout.has_seed:
            read += [self.dropout.drawn[0], self.dropout.drawn[1]]
        elif self.dropout is not None:
            query, key = self.arrays[1:3] if self.of_gradient else self.arrays[:2]
            read.append(kept_of(self.dropout, (*query.shape[:3], key.shape[2]), query))
            share = 1 - self.dropout.ratio
            scalars = (1 / share, share) if self.of_gradient else (1 / share,)
        plan: Any = self.plan()
        plan(*map(_fit, read), *outs, scalars=scalars)


def _refuse(query, key, value, *options):
    return _Call(False, (query, key, value), *options).refusal()


def _refuse_gradient(g, query, key, value, y, log_sums, *options):
    return _Call(True, (g, query, key, value, y), *options).refusal()


def _refuse_kept(query, key, value, scale, is_causal, bias, dropout):
    if not dropout.has_seed:
        return "a mask that cuDNN has not drawn"
    return _Call(False, (query, key, value), scale, is_causal, bias, dropout, True).refusal()


def _empty(xp: Any, shape: tuple, dtype: Any) -> Array:
    b, heads, length, e = shape
    return xp.empty((b, length, heads, e), dtype).transpose(0, 2, 1, 3)


def _outs(query, value):
    """Returns memory for the results of attention."""
    xp, of_rows = cuda.get_array_module(query), query.shape[:3]
    y = _empty(xp, (*of_rows, value.shape[3]), query.dtype)
    return y, xp.empty((*of_rows, 1), np.float32)


@attend.attention.kernel("cudnn", _refuse, HALF)
def attention(
    query: Array,
    key: Array,
    value: Array,
    scale: float,
    is_causal: bool,
    bias: Array | None = None,
    dropout: Dropout | None = None,
) -> tuple[Array, Array]:
    """See :func:`mpchain.kernels.attention`."""
    outs = _outs(query, value)
    _Call(False, (query, key, value), scale, is_causal, bias, dropout).run((), outs)
    return outs


@attend.attention_gradient.kernel("cudnn", _refuse_gradient, HALF)
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
    dropout: Dropout | None = None,
) -> tuple[Array, ...]:
    """See :func:`mpchain.kernels.attention_gradient`."""
    xp, arrays = cuda.get_array_module(query), (g, query, key, value, y)
    gradients = tuple(_empty(xp, x.shape, x.dtype) for x in arrays[1:4])
    # another kernel may have computed log_sums, in another dtype
    log_sums = log_sums.astype(np.float32, copy=False)
    _Call(True, arrays, scale, is_causal, bias, dropout).run((log_sums,), gradients)
    return gradients


@attend.attention_kept.kernel("cudnn", _refuse_kept, HALF)
def attention_kept(
    query: Array,
    key: Array,
    value: Array,
    scale: float,
    is_causal: bool,
    bias: Array | None,
    dropout: Dropout,
) -> Array:
    """See :func:`mpchain.kernels.attention_kept`. Computes attention again to get the mask."""
    xp, of_weights = cuda.get_array_module(query), (*query.shape[:3], key.shape[2])
    kept = xp.zeros(of_weights, np.float32)  # cuDNN writes none of what a causal mask leaves out
    call = _Call(False, (query, key, value), scale, is_causal, bias, dropout, True)
    call.run((), (*_outs(query, value), kept))
    return kept.astype(query.dtype)
