"""Converts functions other than elementwise formulas and functions of windows to nodes.

A converter takes the graph, the array arguments of a declared function as :class:`Value` (a list of
them if the function takes a sequence), and its other arguments, in which a scalar may be a
:class:`Dim` and an array a Value. It returns the name of the output, or a list of several names.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain import kernels
from mpchain.exporters.onnx.graph import Graph, Untraceable, Value, registering
from mpchain.exporters.onnx.tracing import Dim
from mpchain.functions.fused_attention import composed_attention
from mpchain.functions.mathematics import where
from mpchain.functions.n_step import _composed_layer
from mpchain.kernels.reference import inverse_rms, mean_and_inverse_std

_END = np.iinfo(np.int64).max

CONVERTERS: dict[str, Callable[..., Any]] = {}
"""Maps the name of a declared function to its converter."""


def _normalize_batch(x, gamma, beta, axis, eps, follow):
    mean, inverse_std = mean_and_inverse_std(x, axis, eps)
    gamma, beta = (np.reshape(p, mean.shape) for p in (gamma, beta))
    return (x - mean) * inverse_std * gamma + beta


EXPANDED: dict[str, Callable[..., Any] | None] = {
    "batch_normalization": _normalize_batch,
    "fused_attention": composed_attention,
    "gru": None,
    "join_gates": None,
    "lstm": None,
    "recurrent_layer": _composed_layer,
    "rms_normalization": lambda x, gamma, axis, eps: x * inverse_rms(x, axis, eps) * gamma,
    "shifted_and_scaled": lambda x, mean, scale, beta: (x - mean) * scale + beta,
    "slstm": None,
    "split_gates": None,
    "tree_lstm": None,
    "without_later": where,
}
"""Maps names of functions that are composed of other functions to the body to convert; None stands
for the function's own body."""

_NO_FUNCTION = "ONNX has no such function"
_NO_DECOMPOSITION = "ONNX has no decomposition or inverse of matrices"
_HIDDEN_PLACES = "the places of the maxima in their windows are computed outside of the graph"

NOT_EXPRESSIBLE: dict[str, str] = {
    **dict.fromkeys(
        "digamma erfcinv erfcx erfinv lgamma log_ndtr ndtri normal_hazard polygamma zeta".split(),
        _NO_FUNCTION,
    ),
    **dict.fromkeys("cholesky inverse inverse_root lyapunov".split(), _NO_DECOMPOSITION),
    **dict.fromkeys("take_from_windows place_in_windows".split(), _HIDDEN_PLACES),
    "alignment_loss": "its recursion over time is computed outside of the graph",
    "convolution_filter": "it is the gradient of filters, and ONNX has no gradients",
}


def not_expressible() -> dict[str, str]:
    """Returns the names of the declared functions that cannot be exported, with the reasons.

    >>> not_expressible()["lgamma"]
    'ONNX has no such function'
    """
    return dict(NOT_EXPRESSIBLE)


_of = registering(CONVERTERS)


def _zeros(g, shape, dtype):
    if not any(isinstance(n, Dim) for n in shape):
        return g.constant(np.zeros(shape, dtype))
    return g.expand(g.constant(np.zeros((1,) * len(shape), dtype)), (1,) * len(shape), shape)


def static(what: str, *numbers: Any) -> tuple[int, ...]:
    """Returns the numbers unchanged; raises :class:`Untraceable` if one depends on the batch size.

    >>> static("the size", 3, 4)
    (3, 4)
    """
    if any(isinstance(n, Dim) for n in numbers):
        raise Untraceable(f"{what} depends on the batch size")
    return numbers


# The converters below change shapes.


@_of("cast")
def _cast(g, x, dtype):
    return g.cast(x, dtype)


@_of("reshape")
def _reshape(g, x, shape):
    return g.reshape(x, shape)


@_of("transpose")
def _transpose(g, x, axes):
    axes = range(x.ndim)[::-1] if axes is None else [a % x.ndim for a in axes]
    return g.add("Transpose", x, perm=list(axes))


@_of("broadcast_to")
def _broadcast_to(g, x, shape):
    return g.expand(x, x.shape, shape)


@_of("sum_to")
def _sum_to(g, x, shape):
    lead = x.ndim - len(shape)
    axes = [*range(lead), *(i for i, n in enumerate(shape, lead) if n == 1 and x.shape[i] != 1)]
    y = g.add("ReduceSum", x, g.integers(axes), keepdims=1) if axes else g.name_of(x)
    return g.squeeze(y, *range(lead)) if lead else y


@_of("copy", "identity")
def _copy(g, x, *device):
    return g.add("Identity", x)


@_of("clip")
def _clip(g, x, low, high):
    return g.add("Clip", x, *(None if n is None else np.array(n, x.dtype) for n in (low, high)))


@_of("flip")
def _flip(g, x, axis):
    axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    y = x
    for a in axes:
        y = g.slice(y, -1, -_END, a, -1)
    return y if isinstance(y, str) else g.name_of(y)


@_of("split")
def _split(g, x, indexes, axis):
    bounds = [0, *indexes, x.shape[axis]]
    names = []
    for begin, end in itertools.pairwise(bounds):
        names.append(g.slice(x, begin, end, axis))
    return names


@_of("separate")
def _separate(g, x, axis):
    (n,) = static("the number of its outputs", x.shape[axis])
    return [g.add("Gather", x, np.array(i), axis=axis) for i in range(n)]


@_of("concat")
def _concat(g, xs, axis):
    return g.add("Concat", *xs, axis=axis)


@_of("stack")
def _stack(g, xs, axis):
    return g.add("Concat", *(g.unsqueeze(x, axis) for x in xs), axis=axis)


@_of("cut_sequences")
def _cut_sequences(g, x, lengths):
    return [
        g.slice(g.add("Gather", x, np.array(i), axis=0), 0, n, 0) for i, n in enumerate(lengths)
    ]


@_of("pad_sequence")
def _pad_sequence(g, xs, length, padding):
    rows = []
    for x in xs:
        (n,) = static("the length of a sequence", x.shape[0])
        row = pad(g, x, [(0, length - n)], padding, [0])
        rows.append(g.unsqueeze(row, 0))
    return g.add("Concat", *rows, axis=0)


@_of("transpose_sequence")
def _transpose_sequence(g, xs):
    lengths = static("the length of a sequence", *(x.shape[0] for x in xs))
    names = []
    for t in range(lengths[0]):
        parts = [g.slice(x, t, t + 1, 0) for x, n in zip(xs, lengths) if n > t]
        names.append(g.add("Concat", *parts, axis=0))
    return names


def pad(g: Graph, x: Value, widths: Sequence[Any], value: float, axes: Sequence[int]) -> str:
    """Adds a node that pads axes with a value; ``widths`` are pairs (before, after).

    >>> pad(Graph(), Value(None, "x", (2,), np.float32), [(0, 1)], 0, [0])
    'Pad_0'
    """
    begins, ends = zip(*widths)
    pads = g.integers([*begins, *ends])
    return g.add("Pad", x, pads, np.array(value, x.dtype), g.integers(axes))


@_of("pad_with_constants")
def _pad_with_constants(g, x, widths, values):
    widths = np.broadcast_to(np.asarray(widths), (x.ndim, 2))
    values = np.broadcast_to(np.asarray(values), (x.ndim, 2))
    y = x
    for axis, (width, value) in enumerate(zip(widths, values)):
        # The two ends of an axis may have different values, so each end is padded by its own node.
        for side, (n, v) in enumerate(zip(width, value)):
            if n:
                pads = [(n, 0) if side == 0 else (0, n)]
                y = Value(g, pad(g, y, pads, v, [axis]), x.shape, x.dtype)
    return g.name_of(y)


# The converters below select and place elements.


@_of("get_item")
def _get_item(g, x, slices):
    items = list(slices) if isinstance(slices, tuple) else [slices]
    if any(isinstance(i, (np.ndarray, Value, list)) for i in items):
        return _take(g, x, slices)
    if any(i is Ellipsis for i in items):
        n = x.ndim - sum(i is not None and i is not Ellipsis for i in items)
        at = next(k for k, i in enumerate(items) if i is Ellipsis)
        items[at : at + 1] = [slice(None)] * n
    y, axis, dropped, inserted, place = x, 0, [], [], 0
    for item in items:
        if item is None:
            inserted.append(place)
            place += 1
            continue
        if isinstance(item, slice):
            if item != slice(None):
                step = 1 if item.step is None else item.step
                begin = item.start if item.start is not None else 0 if step > 0 else _END
                end = item.stop if item.stop is not None else _END if step > 0 else -_END
                y = g.slice(y, begin, end, axis, step)
            place += 1
        else:
            y = g.slice(y, item, _END if item == -1 else item + 1, axis)
            dropped.append(axis)
        axis += 1
    y = g.squeeze(y, *dropped) if dropped else y
    y = g.unsqueeze(y, *inserted) if inserted else y
    return y if isinstance(y, str) else g.add("Identity", y)


@_of("take")
def _take(g, x, where):
    items = where if isinstance(where, tuple) else (where,)
    lead = 0
    while isinstance(items[lead], slice) and items[lead] == slice(None):
        lead += 1
    rest = items[lead:]
    if len(rest) == 1 and isinstance(rest[0], (np.ndarray, Value)) and rest[0].dtype != bool:
        return g.add("Gather", x, rest[0], axis=lead)
    if not any(isinstance(item, Value) for item in rest):
        return _elements(g, x, rest, lead)
    if lead or not all(isinstance(item, (np.ndarray, Value)) for item in rest):
        raise Untraceable("it mixes slices and indexes that depend on the inputs")
    if any(item.dtype == bool for item in rest):
        raise Untraceable("the number of elements that a mask selects depends on the inputs")
    shapes = {tuple(item.shape) for item in rest}
    if len(shapes) > 1:
        raise Untraceable("its arrays of indexes broadcast")
    axis = len(min(shapes))
    parts = [g.unsqueeze(g.cast(_named(g, item), np.int64), axis) for item in rest]
    return g.add("GatherND", x, g.add("Concat", *parts, axis=axis))


def _elements(g, x, items, lead):
    """Takes elements at positions known at export, along all axes except the first ``lead``."""
    shape = static("the size of an indexed axis", *x.shape[lead:])
    places = np.arange(math.prod(shape)).reshape(shape)[items]
    rows = g.reshape(x, [*x.shape[:lead], -1])
    return g.add("Gather", rows, places, axis=lead)


def _named(g, item):
    return g.constant(item) if isinstance(item, np.ndarray) else g.name_of(item)


@_of("take_along")
def _take_along(g, x, indices, axis):
    return g.add("GatherElements", x, _named(g, indices), axis=axis)


@_of("put_along")
def _put_along(g, y, indices, axis, shape):
    return g.add("ScatterElements", _zeros(g, shape, y.dtype), _named(g, indices), y, axis=axis)


def _position(operator):
    def convert(g, x, axis):
        rows = g.reshape(x, [-1]) if axis is None else x
        return g.cast(g.add(operator, rows, axis=axis or 0, keepdims=0), np.int32)

    return convert


def _topk(g, x, axis, largest, k=None):
    k = g.integers([x.shape[axis] if k is None else k])
    return g.add_many("TopK", 2, x, k, axis=axis, largest=int(largest), sorted=1)[1]


POSITIONS: dict[str, Callable[..., Any]] = {
    "argmax": _position("ArgMax"),
    "argmin": _position("ArgMin"),
    "argsort": _topk,
    "topk": _topk,
}
"""Converters of functions that find elements, by the names that
:func:`mpchain.functions.positions.shown` gets."""


@_of("scatter_item", "place")
def _scatter(g, y, slices, shape):
    return _added(g, Value(g, _zeros(g, shape, y.dtype), shape, y.dtype), y, slices)


@_of("scatter_add")
def _scatter_add(g, a, b, slices):
    return _added(g, a, b, slices)


def _added(g, x, y, slices):
    """Adds y to x[slices]: flattens x, and scatters y to positions known at export."""
    shape = static("the shape of its result", *x.shape)
    try:
        places = np.arange(math.prod(shape)).reshape(shape)[slices]
    except (IndexError, TypeError):
        raise Untraceable("its indexes depend on the inputs") from None
    flat = g.reshape(x, [-1]), g.constant(places.reshape(-1)), g.reshape(y, [-1])
    return g.reshape(g.add("ScatterElements", *flat, axis=0, reduction="add"), shape)


@_of("take_rows")
def _take_rows(g, W, ids):
    y = g.add("Gather", W, ids, axis=0)
    if isinstance(ids, np.ndarray):
        known = ids >= 0
        return g.add("Mul", y, known[..., None].astype(W.dtype)) if not known.all() else y
    if not g.name_of(ids).startswith("Where"):
        return y
    # The index -1 stands for no row.
    known = g.cast(g.add("GreaterOrEqual", ids, np.array(0, ids.dtype)), W.dtype)
    return g.add("Mul", y, g.unsqueeze(known, ids.ndim))


@_of("add_rows")
def _add_rows(g, rows, ids, n):
    if not isinstance(ids, np.ndarray) or (ids < 0).any():
        raise Untraceable("its indexes depend on the inputs, or stand for no row")
    shape = n, rows.shape[-1]
    indexes = g.constant(ids[..., None], np.int64)
    return g.add("ScatterND", _zeros(g, shape, rows.dtype), indexes, rows, reduction="add")


@_of("shift")
def _shift(g, x, steps):
    parts = []
    for channels, *moves in steps:
        part = g.slice(x, channels.start, channels.stop, 1)
        for axis, (move, size) in enumerate(zip(moves, x.shape[2:]), 2):
            n = min(abs(move), size)
            begin, end, pads = (0, size - n, (n, 0)) if move >= 0 else (n, size, (0, n))
            part = g.slice(part, begin, end, axis)
            part = pad(g, Value(g, part, (), x.dtype), [pads], 0, [axis])
        parts.append(part)
    return g.add("Concat", *parts, axis=1)


# The converters below compute sums and products.


def _reduction(operator, **options):
    def convert(g, x, axis=None, keepdims=False):
        axes = None if axis is None else g.integers((axis,) if isinstance(axis, int) else axis)
        if axis == ():
            return g.add("Identity", x)
        return g.add(operator, x, axes, keepdims=int(keepdims), **options)

    return convert


CONVERTERS |= {
    "sum": _reduction("ReduceSum"),
    "mean": _reduction("ReduceMean"),
    "max": _reduction("ReduceMax"),
    "min": _reduction("ReduceMin"),
    "logsumexp": _reduction("ReduceLogSumExp"),
    "prod": lambda g, x: g.add("ReduceProd", x, g.integers([-1]), keepdims=0),
    "cumsum": lambda g, x, is_backward: g.add("CumSum", x, np.array(-1), reverse=int(is_backward)),
    "cumprod": lambda g, x: g.add("CumProd", x, np.array(-1)),
    "softmax": lambda g, x, axis: g.add("Softmax", x, axis=axis),
    "scaled_softmax": lambda g, x, axis, scale: g.add(
        "Softmax", g.add("Mul", x, np.asarray(scale, x.dtype)), axis=axis
    ),
    "log_softmax": lambda g, x, axis: g.add("LogSoftmax", x, axis=axis),
    "matrix_product": lambda g, a, b: g.add("MatMul", a, b),
    "determinant": lambda g, a: g.add("Det", a),
}


@_of("linear", "linear_with_bias")
def _linear(g, x, W, b=None):
    if x.ndim == 2 and b is not None:
        return g.add("Gemm", x, W, b, transB=1)
    # Runtimes compute this transpose once.
    y = g.add("MatMul", x, g.add("Transpose", W, perm=[1, 0]))
    return y if b is None else g.add("Add", y, b)


@_of("drop")
def _drop(g, x, counters, ratio):
    return g.add("Mul", x, kernels.drop(np.ones(x.shape, x.dtype), None, counters, ratio))


@_of("add_dropped")
def _add_dropped(g, h, x, counters, ratio):
    return g.add("Add", h, _drop(g, x, counters, ratio))


@_of("add_and_order")
def _add_and_order(g, y, b):
    return g.add("Add", y, g.reshape(b, y.shape[2:]))


@_of("with_contiguous_gradient")
def _with_contiguous_gradient(g, y):
    return g.add("Identity", y)


@_of("contract")
def _contract(g, a, b, labels):
    letters = {}
    texts = ["".join(letters.setdefault(i, chr(97 + len(letters))) for i in of) for of in labels]
    return g.add("Einsum", a, b, equation=f"{texts[0]},{texts[1]}->{texts[2]}")


@_of("map_axis")
def _map_axis(g, x, matrix, axis):
    matrix = np.asarray(matrix, x.dtype)
    if axis == x.ndim - 2:
        return g.add("MatMul", matrix, x)
    order = [i for i in range(x.ndim) if i != axis] + [axis]
    moved = x if axis == x.ndim - 1 else g.add("Transpose", x, perm=order)
    y = g.add("MatMul", moved, np.ascontiguousarray(matrix.T))
    if axis == x.ndim - 1:
        return y
    return g.add("Transpose", y, perm=[int(i) for i in np.argsort(order)])


@_of("sums_of_rows")
def _sums_of_rows(g, data, x, row, col, n):
    terms = g.add("Mul", g.add("Gather", x, np.asarray(col)), g.unsqueeze(data, 1))
    zeros = _zeros(g, (n, x.shape[1]), x.dtype)
    indexes = g.constant(np.asarray(row)[:, None], np.int64)
    return g.add("ScatterND", zeros, indexes, terms, reduction="add")


@_of("products_of_rows")
def _products_of_rows(g, y, x, row, col):
    rows = [g.add("Gather", a, np.asarray(i)) for a, i in ((y, row), (x, col))]
    return g.add("ReduceSum", g.add("Mul", *rows), g.integers([1]), keepdims=0)


@_of("map_boxes")
def _map_boxes(g, x, rows, columns, images):
    rows, columns = (np.asarray(m, x.dtype)[:, None] for m in (rows, columns))
    boxes = g.add("Gather", x, np.asarray(images, np.int64))
    return g.add("MatMul", g.add("MatMul", rows, boxes), columns.swapaxes(2, 3).copy())


@_of("spread_boxes")
def _spread_boxes(g, y, rows, columns, images, shape):
    rows, columns = (np.asarray(m, y.dtype)[:, None] for m in (rows, columns))
    boxes = g.add("MatMul", g.add("MatMul", rows.swapaxes(2, 3).copy(), y), columns)
    zeros = _zeros(g, shape, y.dtype)
    indexes = g.constant(np.asarray(images)[:, None], np.int64)
    return g.add("ScatterND", zeros, indexes, boxes, reduction="add")


@_of("transform")
def _transform(g, real, imag, is_inverse, norm):
    """Adds the discrete Fourier transform along the last axis, of rows of complex numbers."""
    (n,) = static("the size of the transformed axis", real.shape[-1])
    rows = [g.reshape(x, [-1, n, 1]) for x in (real, imag)]
    joined = g.add("Concat", *rows, axis=2)
    y = g.add("DFT", joined, None, np.array(1), inverse=int(is_inverse))
    backward = 1 / n if is_inverse else 1.0  # ONNX divides an inverse transform by n
    wanted = {"ortho": n**-0.5, "forward": 1.0 if is_inverse else 1 / n}.get(norm, backward)
    if wanted != backward:
        y = g.add("Mul", y, np.array(wanted / backward, real.dtype))
    parts = [g.add("Gather", y, np.array(i), axis=2) for i in (0, 1)]
    return [g.reshape(part, real.shape) for part in parts]


@_of("rotate")
def _rotate(g, x, cos, sin, is_interleaved):
    half = x.shape[-1] // 2
    axis = x.ndim - 1
    if is_interleaved:
        parts = g.slice(x, 0, _END, axis, 2), g.slice(x, 1, _END, axis, 2)
    else:
        parts = g.slice(x, 0, half, axis), g.slice(x, half, _END, axis)
    (a, b), (cos, sin) = parts, (_named(g, cos), _named(g, sin))
    first = g.add("Sub", g.add("Mul", a, cos), g.add("Mul", b, sin))
    second = g.add("Add", g.add("Mul", a, sin), g.add("Mul", b, cos))
    if not is_interleaved:
        return g.add("Concat", first, second, axis=axis)
    pairs = g.add("Concat", g.unsqueeze(first, axis + 1), g.unsqueeze(second, axis + 1), axis=-1)
    return g.reshape(pairs, x.shape)


# The converters below normalize.


@_of("sample_normalization")
def _sample_normalization(g, x, gamma, beta, axis, eps):
    axes = sorted(a % x.ndim for a in axis)
    if axes == [*range(axes[0], x.ndim)] and gamma.shape == beta.shape == x.shape[axes[0] :]:
        return g.add("LayerNormalization", x, gamma, beta, axis=axes[0], epsilon=float(eps))
    over = g.integers(axes)
    centered = g.add("Sub", x, g.add("ReduceMean", x, over, keepdims=1))
    variance = g.add("ReduceMean", g.add("Mul", centered, centered), over, keepdims=1)
    std = g.add("Sqrt", g.add("Add", variance, np.array(eps, x.dtype)))
    return g.add("Add", g.add("Mul", g.add("Div", centered, std), gamma), beta)


@_of("normalize")
def _normalize(g, x, eps, axis, limit):
    axes = g.integers((axis,) if isinstance(axis, int) else axis)
    norm = g.add("ReduceL2", x, axes, keepdims=1)
    return g.add("Div", x, g.add("Add", norm, np.array(eps, x.dtype)))


@_of("local_response_normalization")
def _local_response_normalization(g, x, n, k, alpha, beta):
    n = 2 * (n // 2) + 1  # ONNX divides alpha by n
    shape = [*x.shape[:2], -1, 1]
    rows = g.reshape(x, shape)
    y = g.add("LRN", rows, size=n, alpha=float(alpha * n), beta=float(beta), bias=float(k))
    return g.reshape(y, x.shape)


@_of("neighbors")
def _neighbors(g, x, reach):
    """Adds sums over neighboring channels: averages over windows, times the window size."""
    rows = g.reshape(x, [x.shape[0], 1, x.shape[1], -1])
    n, options = 2 * reach + 1, {"count_include_pad": 1, "pads": [reach, 0, reach, 0]}
    y = g.add("AveragePool", rows, kernel_shape=[n, 1], **options)
    return g.reshape(g.add("Mul", y, np.array(n, x.dtype)), x.shape)


# The converters below compute losses.


@_of("softmax_cross_entropy")
def _softmax_cross_entropy(g, x, t, normalize, class_weight, ignore_label, reduce):
    labels = g.cast(_named(g, t), np.int64)
    weight = None if class_weight is None else np.asarray(class_weight, x.dtype)
    options = {"ignore_index": int(ignore_label), "reduction": "none"}
    losses = g.add("SoftmaxCrossEntropyLoss", x, labels, weight, **options)
    if reduce != "mean":
        return losses
    return _mean_loss(g, losses, x, labels, ignore_label, normalize)


@_of("sigmoid_cross_entropy")
def _sigmoid_cross_entropy(g, x, t, normalize, reduce):
    labels = _named(g, t)
    f = g.cast(labels, x.dtype)
    # The loss is max(x, 0) - x t + log(1 + exp(-|x|)); ONNX's Softplus is log(1 + exp(z)).
    tail = g.add("Softplus", g.add("Neg", g.add("Abs", x)))
    losses = g.add("Add", g.add("Sub", g.add("Relu", x), g.add("Mul", x, f)), tail)
    labels = g.cast(labels, np.int64)
    valid = g.add("Not", g.add("Equal", labels, np.array(-1)))
    losses = g.add("Mul", losses, g.cast(valid, x.dtype))
    return losses if reduce != "mean" else _mean_loss(g, losses, x, labels, -1, normalize)


def _mean_loss(g, losses, x, labels, ignore_label, normalize):
    total = g.add("ReduceSum", losses, keepdims=0)
    if normalize:
        valid = g.add("Not", g.add("Equal", labels, np.array(int(ignore_label))))
        count = g.add("ReduceSum", g.cast(valid, x.dtype), keepdims=0)
    else:
        count = g.cast(g.squeeze(g.integers(x.shape[:1]), 0), x.dtype)
    return g.add("Div", total, g.add("Max", count, np.array(1, x.dtype)))
