"""The operators of ONNX, computed by mpchain's functions.

Floating-point values are Variables; integers and booleans are arrays. Thanks to NumPy's protocols,
most functions here compute with both kinds. Each function takes the inputs of one operator (None
for omitted ones) and its attributes.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain.backends.dtypes import is_floating
from mpchain.exporters.onnx.graph import registering
from mpchain.exporters.onnx.resizing import resize
from mpchain.variable import Variable, as_array, as_variable

OPERATORS: dict[str, Callable[..., Any]] = {
    "Abs": np.absolute,
    "Acos": np.arccos,
    "Add": np.add,
    "And": np.logical_and,
    "Asin": np.arcsin,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Div": lambda x, y: np.divide(x, y) if _is_float(x) else np.floor_divide(x, y),
    "Equal": lambda x, y: np.equal(as_array(x), as_array(y)),
    "Exp": np.exp,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Log": np.log,
    "MatMul": np.matmul,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Pow": np.power,
    "Reciprocal": lambda x: 1 / x,
    "Sign": lambda x: _like(x, np.sign(as_array(x))),
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
    "Tan": np.tan,
    "Tanh": np.tanh,
    # The operators below compute functions of one input.
    "Celu": lambda x, alpha=1.0: F.maximum(x, x * 0) + alpha * F.elu(F.minimum(x, x * 0) / alpha),
    "Ceil": F.ceil,
    "Det": lambda x: F.det(x) if x.ndim == 2 else F.batch_det(x),
    "Elu": lambda x, alpha=1.0: F.elu(x, alpha),
    "Erf": F.erf,
    "Floor": F.floor,
    "Gelu": lambda x, approximate="none": F.gelu(x, approximate),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: F.clip(x * alpha + beta, 0.0, 1.0),
    "HardSwish": lambda x: x * F.clip(x / 6 + 0.5, 0.0, 1.0),
    "Identity": lambda x: x,
    "LeakyRelu": lambda x, alpha=0.01: F.leaky_relu(x, alpha),
    "LogSoftmax": lambda x, axis=-1: F.log_softmax(x, axis),
    "Mish": F.mish,
    "Relu": F.relu,
    "Selu": lambda x, alpha=1.67326319, gamma=1.05070102: gamma * F.elu(x, alpha),
    "Sigmoid": F.sigmoid,
    "Softmax": lambda x, axis=-1: F.softmax(x, axis),
    "Softplus": F.softplus,
    "Swish": lambda x, alpha=1.0: x * F.sigmoid(x * alpha),
}
"""Maps the name of an operator to a function of its inputs and attributes, which returns one output
or a list of outputs."""


def _is_float(x):
    return is_floating(x.dtype)


def _like(x, array):
    return as_variable(array) if isinstance(x, Variable) else array


_of = registering(OPERATORS)


def _refuse_if(is_unsupported, what):
    if is_unsupported:
        raise NotImplementedError(f"ONNXModel: {what} is not supported")


def _numbers(x):
    return tuple(int(n) for n in as_array(x).reshape(-1))


def _many(function):
    def call(*xs):
        y = xs[0]
        for x in xs[1:]:
            y = function(y, x)
        return y

    return call


OPERATORS |= {"Max": _many(np.maximum), "Min": _many(np.minimum), "Sum": _many(np.add)}


@_of("Where")
def _where(condition, x, y):
    if isinstance(x, Variable) or isinstance(y, Variable):
        return F.where(as_array(condition), as_variable(x), as_variable(y))
    return np.where(condition, x, y)


@_of("Mod")
def _mod(x, y, fmod=0):
    if _is_float(x):
        return F.fmod(x, y)
    return np.fmod(x, y) if fmod else np.mod(x, y)


@_of("Clip")
def _clip(x, low=None, high=None):
    low, high = (
        default if n is None else float(as_array(n))
        for n, default in ((low, -math.inf), (high, math.inf))
    )
    return F.clip(x, low, high) if _is_float(x) else np.clip(x, low, high).astype(x.dtype)


@_of("PRelu")
def _prelu(x, slope):
    return F.where(as_array(x) >= 0, x, x * slope)


@_of("Cast")
def _cast(x, to):
    if is_floating(np.dtype(to)):
        return F.cast(x, to) if isinstance(x, Variable) else as_variable(x.astype(to))
    return as_array(x).astype(to)


@_of("Constant")
def _constant(value):
    return as_variable(value) if is_floating(value.dtype) and value.ndim else value


@_of("ConstantOfShape")
def _constant_of_shape(shape, value=None):
    value = np.zeros(1, np.float32) if value is None else value
    array = np.full(_numbers(shape), value[0], value.dtype)
    return as_variable(array) if _is_float(array) else array


@_of("Dropout")
def _dropout(x, *ratio, n_outputs, **attributes):
    return [x, np.ones(x.shape, bool)][:n_outputs]


# The operators below change shapes, and select and place elements.


@_of("Shape")
def _shape(x, start=0, end=None):
    return np.array(x.shape, np.int64)[start:end]


@_of("Range")
def _range(begin, end, step):
    return np.arange(as_array(begin).item(), as_array(end).item(), as_array(step).item())


@_of("Reshape")
def _reshape(x, shape, allowzero=0):
    shape = _numbers(shape)
    if not allowzero:
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return np.reshape(x, tuple(shape))


@_of("Flatten")
def _flatten(x, axis=1):
    return np.reshape(x, (math.prod(x.shape[:axis]), -1))


@_of("Transpose")
def _transpose(x, perm=None):
    return np.transpose(x, perm and tuple(perm))


@_of("Expand")
def _expand(x, shape):
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, _numbers(shape)))


@_of("Squeeze")
def _squeeze(x, places=None, axes=None):
    axes = axes if places is None else _numbers(places)
    return np.squeeze(x, axis=None if axes is None else tuple(axes))


@_of("Unsqueeze")
def _unsqueeze(x, places=None, axes=()):
    axes = axes if places is None else _numbers(places)
    n = x.ndim + len(axes)
    inserted = {a % n for a in axes}
    sizes = iter(x.shape)
    return np.reshape(x, tuple(1 if i in inserted else next(sizes) for i in range(n)))


@_of("Concat")
def _concat(*xs, axis):
    if any(isinstance(x, Variable) for x in xs):
        return F.concat(xs, axis)
    return np.concatenate(xs, axis)


@_of("Split")
def _split(x, sizes=None, axis=0, num_outputs=None, split=None, n_outputs=1):
    sizes = split if sizes is None else _numbers(sizes)
    if sizes is None:
        part = -(-x.shape[axis] // (num_outputs or n_outputs))
        bounds = list(range(part, x.shape[axis], part))
    else:
        bounds = np.cumsum(sizes)[:-1].tolist()
    return F.split_axis(x, bounds, axis) if bounds else [x]


@_of("Slice")
def _slice(x, begins, ends, axes=None, steps=None):
    begins, ends = _numbers(begins), _numbers(ends)
    axes = range(len(begins)) if axes is None else _numbers(axes)
    steps = [1] * len(begins) if steps is None else _numbers(steps)
    items = [slice(None)] * x.ndim
    for begin, end, axis, step in zip(begins, ends, axes, steps):
        items[axis] = slice(begin, end, step)
    return x[tuple(items)]


@_of("Gather")
def _gather(x, indexes, axis=0):
    indexes = as_array(indexes)
    return x[(slice(None),) * (axis % x.ndim) + (indexes if indexes.ndim else int(indexes),)]


@_of("GatherND")
def _gather_nd(x, indexes, batch_dims=0):
    _refuse_if(batch_dims, "GatherND with batch_dims")
    return x[tuple(np.moveaxis(as_array(indexes), -1, 0))]


@_of("GatherElements")
def _gather_elements(x, indexes, axis=0):
    return x[_places(as_array(indexes), axis % x.ndim)]


def _places(indexes, axis):
    """Returns an index that selects elements by their positions along an axis."""
    places = list(np.indices(indexes.shape, sparse=True))
    places[axis] = indexes
    return tuple(np.broadcast_arrays(*places))


def _position(function):
    def call(x, axis=0, keepdims=1, select_last_index=0):
        if select_last_index:
            y = x.shape[axis] - 1 - function(F.flip(x, axis), axis).array
        else:
            y = function(x, axis).array
        # The exporter can convert an index of this form when the model is exported again.
        kept = (slice(None),) * (axis % x.ndim) + (None,)
        return (y[kept] if keepdims else y).astype(np.int64)

    return call


OPERATORS |= {"ArgMax": _position(F.argmax), "ArgMin": _position(F.argmin)}


@_of("TopK")
def _topk(x, k, axis=-1, largest=1, sorted=1):
    values, indices = F.topk(x, int(as_array(k).item()), axis, bool(largest))
    return values if isinstance(x, Variable) else values.array, indices


@_of("ScatterElements")
def _scatter_elements(x, indexes, updates, axis=0, reduction="none"):
    return _scattered(x, _places(as_array(indexes), axis % x.ndim), updates, reduction)


@_of("ScatterND")
def _scatter_nd(x, indexes, updates, reduction="none"):
    return _scattered(x, tuple(np.moveaxis(as_array(indexes), -1, 0)), updates, reduction)


def _scattered(x, places, updates, reduction):
    _refuse_if(reduction not in ("none", "add"), f"the reduction {reduction!r}")
    x, updates = as_variable(x), as_variable(updates)
    if reduction == "none":
        updates = updates - x[places]
    return F.scatter_add(x, places, updates)


@_of("Pad")
def _pad(x, pads, value=None, axes=None, mode="constant"):
    _refuse_if(mode != "constant", f"padding of mode {mode!r}")
    pads = _numbers(pads)
    axes = range(x.ndim) if axes is None else _numbers(axes)
    value = 0 if value is None else as_array(value).item()
    half = len(pads) // 2
    widths = [(0, 0)] * x.ndim
    for axis, begin, end in zip(axes, pads[:half], pads[half:]):
        widths[axis] = begin, end
    return F.pad(x, widths, "constant", constant_values=value)


# The operators below compute sums and products.


def _reduction(function):
    def reduce(x, places=None, axes=None, keepdims=1, noop_with_empty_axes=0):
        axes = axes if places is None else _numbers(places)
        if not axes:
            if noop_with_empty_axes:
                return x
            axes = range(x.ndim)
        return function(x, tuple(a % x.ndim for a in axes), bool(keepdims))

    return reduce


def _log_sum_exp(x, axes, keepdims):
    y = F.logsumexp(x, axes)
    if not keepdims:
        return y
    return F.reshape(y, tuple(1 if i in axes else n for i, n in enumerate(x.shape)))


def _product(x, axes, keepdims):
    for axis in sorted(axes, reverse=True):
        x = F.prod(x, axis, keepdims=True)
    return x if keepdims else F.squeeze(x, axes)


def _cumsum(x, axis, reverse=0):
    axis = int(as_array(axis))
    return F.flip(F.cumsum(F.flip(x, axis), axis), axis) if reverse else F.cumsum(x, axis)


OPERATORS |= {
    "ReduceSum": _reduction(lambda x, axes, k: np.sum(x, axis=axes, keepdims=k)),
    "ReduceMean": _reduction(lambda x, axes, k: np.mean(x, axis=axes, keepdims=k)),
    "ReduceMax": _reduction(lambda x, axes, k: np.max(x, axis=axes, keepdims=k)),
    "ReduceMin": _reduction(lambda x, axes, k: np.min(x, axis=axes, keepdims=k)),
    "ReduceL2": _reduction(lambda x, axes, k: np.sqrt(np.sum(x * x, axis=axes, keepdims=k))),
    "ReduceSumSquare": _reduction(lambda x, axes, k: np.sum(x * x, axis=axes, keepdims=k)),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceProd": _reduction(_product),
    "CumSum": _cumsum,
    "CumProd": lambda x, axis: F.cumprod(x, int(as_array(axis))),
    "Resize": resize,
    "Einsum": lambda *xs, equation: F.einsum(equation, *xs),
}


@_of("Gemm")
def _gemm(a, b, c=None, alpha=1.0, beta=1.0, transA=0, transB=0):
    if transB and not transA and alpha == beta == 1 and (c is None or c.ndim == 1):
        return F.linear(a, b, c)
    y = F.matmul(a, b, bool(transA), bool(transB))
    y = y if alpha == 1 else y * alpha
    return y if c is None else y + c * beta


@_of("DFT")
def _dft(x, length=None, axis=None, inverse=0, onesided=0):
    is_part = length is not None or onesided or int(as_array(axis)) % x.ndim != x.ndim - 2
    _refuse_if(is_part, "DFT of part of an axis, or along an axis other than the second-to-last,")
    parts = x[..., 0], x[..., 1]
    return F.stack((F.ifft if inverse else F.fft)(parts), x.ndim - 1)


@_of("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy(x, labels, weight=None, ignore_index=None, reduction="mean"):
    _refuse_if(reduction == "mean" and weight is not None, "a mean of weighted losses")
    options = {"class_weight": None if weight is None else as_array(weight)}
    options["ignore_label"] = -1 if ignore_index is None else ignore_index
    options["reduce"] = "mean" if reduction == "mean" else "no"
    y = F.softmax_cross_entropy(x, as_array(labels), **options)
    return F.sum(y) if reduction == "sum" else y


# The operators below normalize.


@_of("LayerNormalization")
def _layer_normalization(x, scale, bias=None, axis=-1, epsilon=1e-5, stash_type=1):
    axes = tuple(range(axis % x.ndim, x.ndim))
    centered = x - np.mean(x, axis=axes, keepdims=True)
    variance = np.mean(centered * centered, axis=axes, keepdims=True)
    y = centered * (variance + epsilon) ** -0.5 * scale
    return y if bias is None else y + bias


@_of("BatchNormalization")
def _batch_normalization(
    x, scale, bias, mean, var, epsilon=1e-5, momentum=0.9, training_mode=0, spatial=1
):
    _refuse_if(training_mode, "BatchNormalization in training")
    return F.fixed_batch_normalization(x, scale, bias, mean, var, epsilon)


@_of("InstanceNormalization")
def _instance_normalization(x, scale, bias, epsilon=1e-5):
    return F.instance_normalization(x, scale, bias, epsilon)


@_of("LRN")
def _lrn(x, size, alpha=1e-4, beta=0.75, bias=1.0):
    _refuse_if(size % 2 == 0, "LRN of even size")
    return F.local_response_normalization(x, size, bias, alpha / size, beta)


# The operators below are functions of windows.


def _sizes(x, kernel_shape, strides, dilations, pads, auto_pad):
    _refuse_if(auto_pad not in ("NOTSET", "VALID"), f"auto_pad={auto_pad}")
    n = x.ndim - 2
    ones, zeros = [1] * n, [0] * 2 * n
    pads = pads or zeros
    return kernel_shape, strides or ones, dilations or ones, list(zip(pads[:n], pads[n:]))


def _padded(x, pads, value=0.0):
    if not any(map(any, pads)):
        return x
    return F.pad(x, [(0, 0), (0, 0), *pads], "constant", constant_values=value)


@_of("Conv")
def _conv(
    x, W, b=None, kernel_shape=None, strides=None, dilations=None, pads=None, group=1,
    auto_pad="NOTSET",
):  # fmt: skip
    _, strides, dilations, pads = _sizes(x, W.shape[2:], strides, dilations, pads, auto_pad)
    if all(begin == end for begin, end in pads):
        pad = tuple(begin for begin, _ in pads)
    else:
        x, pad = _padded(x, pads), 0
    options = {"dilate": tuple(dilations), "groups": group}
    return F.convolution_nd(x, W, b, tuple(strides), pad, **options)


@_of("ConvTranspose")
def _conv_transpose(
    x, W, b=None, kernel_shape=None, strides=None, dilations=None, pads=None, group=1,
    auto_pad="NOTSET", output_padding=None, output_shape=None,
):  # fmt: skip
    _refuse_if(output_shape is not None, "output_shape of ConvTranspose")
    _, strides, dilations, pads = _sizes(x, W.shape[2:], strides, dilations, pads, auto_pad)
    options = {"dilate": tuple(dilations), "groups": group}
    y = F.deconvolution_nd(x, W, b, tuple(strides), 0, **options)
    more = output_padding or [0] * len(pads)
    if any(more):
        if b is not None:
            y = y - np.reshape(b, (1, -1, *[1] * len(pads)))
        y = _padded(y, [(0, n) for n in more])
        if b is not None:
            y = y + np.reshape(b, (1, -1, *[1] * len(pads)))
    items = [slice(begin, n - end) for (begin, end), n in zip(pads, y.shape[2:])]
    return y[(slice(None), slice(None), *items)] if any(map(any, pads)) else y


@_of("MaxPool")
def _max_pool(
    x, kernel_shape, strides=None, dilations=None, pads=None, auto_pad="NOTSET", ceil_mode=0,
    storage_order=0,
):  # fmt: skip
    ksize, strides, dilations, pads = _sizes(x, kernel_shape, strides, dilations, pads, auto_pad)
    _refuse_if(set(dilations) != {1}, "MaxPool with dilations")
    if ceil_mode:
        pads = [
            (begin, end + _overhang(n + begin + end, begin + n, k, s))
            for n, (begin, end), k, s in zip(x.shape[2:], pads, ksize, strides)
        ]
    x = _padded(x, pads, -math.inf)
    return F.max_pooling_nd(x, tuple(ksize), tuple(strides), 0, cover_all=False)


def _overhang(padded, inside, k, s):
    """Returns by how many elements a last, incomplete window extends beyond the padded axis."""
    n = -(-(padded - k) // s) + 1
    n -= (n - 1) * s >= inside
    return max((n - 1) * s + k - padded, 0)


@_of("AveragePool")
def _average_pool(
    x, kernel_shape, strides=None, dilations=None, pads=None, auto_pad="NOTSET", ceil_mode=0,
    count_include_pad=0,
):  # fmt: skip
    ksize, strides, dilations, pads = _sizes(x, kernel_shape, strides, dilations, pads, auto_pad)
    _refuse_if(set(dilations) != {1} or ceil_mode, "AveragePool with dilations or ceil_mode")
    y = F.average_pooling_nd(_padded(x, pads), tuple(ksize), tuple(strides))
    if count_include_pad or not any(map(any, pads)):
        return y
    ones = _padded(as_variable(np.ones((1, 1, *x.shape[2:]), x.dtype)), pads)
    return y / F.average_pooling_nd(ones, tuple(ksize), tuple(strides))


@_of("GlobalAveragePool")
def _global_average_pool(x):
    return F.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True)


@_of("GlobalMaxPool")
def _global_max_pool(x):
    return F.max(x, axis=tuple(range(2, x.ndim)), keepdims=True)
