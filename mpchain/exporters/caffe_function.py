"""Links that hold networks trained with Caffe."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mpchain import functions as F
from mpchain.configuration import using_config
from mpchain.exporters.caffe_messages import OLD_TYPES, decode
from mpchain.link import Chain, Link
from mpchain.links.arithmetic import Scale
from mpchain.links.connection import Linear
from mpchain.links.convolution import Convolution2D, Deconvolution2D
from mpchain.links.normalization import BatchNormalization
from mpchain.typing import Input
from mpchain.utils.conv import get_conv_outsize
from mpchain.variable import Variable, as_variable

_AVERAGE = 1
_WITHIN_CHANNEL = 1
_FLOOR = 1
_ELTWISE = ("product", "sum", "max")


class CaffeFunction(Chain):
    """A network read from a ``.caffemodel`` file; Caffe is not needed, but protobuf is.

    Links with parameters are children named after their layers, and can be trained further.
    Supported are layers of the types Convolution, Deconvolution, InnerProduct, BatchNorm, Scale,
    Pooling, LRN, ReLU, Sigmoid, TanH, Softmax, SoftmaxWithLoss, Dropout, Concat, Slice, Split,
    Eltwise, Reshape and Flatten; data layers stand for inputs. Layers of other types raise an error
    only if their outputs are needed.

        >>> import tempfile
        >>> from mpchain.exporters import caffe
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = caffe.export(L.Linear(3, 2), np.ones((5, 3), np.float32), folder)
        ...     net = CaffeFunction(f"{folder}/chainer_model.caffemodel")
        >>> net.layers
        [('InnerProduct-1', ['data'], ['InnerProduct-1'])]

    Args:
        model_path: the file; old ones (with ``V1LayerParameter``) are supported, too.

    Attributes:
        forwards (dict): the function or link of each known layer, by name.
        fs (Chain): the network itself; its children are the links with parameters.
        layers (list): triples of layer name, names of inputs and names of outputs, without data
            layers.

    Raises:
        OSError: the file cannot be read.
        ImportError: protobuf is not installed.
        ValueError: the file is damaged or not a Caffe model, or a layer's parameter is unsupported.

    See Y. Jia et al., Caffe: convolutional architecture for fast feature embedding, 2014.
    """

    def __init__(self, model_path: str) -> None:
        super().__init__()
        self.forwards = {}
        self.layers = []
        self._unknown_types = {}
        with open(model_path, "rb") as file:
            content = file.read()
        refusal = f"CaffeFunction: {model_path} is not a Caffe model"
        try:
            net = decode(content)
        except ValueError as error:
            raise ValueError(f"{refusal}: {error}") from error
        layers = [*net.get("layer", ()), *map(_with_type_name, net.get("layers", ()))]
        if not layers:
            raise ValueError(f"{refusal}: it has no layers")
        for layer in layers:
            self._add_layer(layer)

    @property
    def fs(self) -> Chain:
        """The network itself; its children are the links with parameters."""
        return self

    def named_layers(self) -> Iterator[tuple[str, Link]]:
        """Returns an iterator over pairs of name and link of the layers that have parameters."""
        return self._named_children()

    def _add_layer(self, layer):
        name, kind = layer.get("name", ""), layer.get("type", "")
        if kind in _DATA:
            return
        self.layers.append((name, layer.get("bottom", []), layer.get("top", [])))
        if kind not in _MAKERS:
            self._unknown_types[name] = kind
            return
        try:
            function = _MAKERS[kind](layer)
        except (KeyError, IndexError, ValueError) as error:
            lacks = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"CaffeFunction: layer {name!r} of type {kind}: {lacks}") from error
        self.forwards[name] = function
        if isinstance(function, Link):
            self.add_link(name, function)

    def forward(
        self, inputs: Mapping[str, Input], outputs: Sequence[str], disable: Sequence[str] = ()
    ) -> tuple[Variable, ...]:
        """Computes blobs of the network from other blobs.

        ``config.train`` selects the mode of dropout and batch normalization.

        Args:
            inputs: Variables or arrays by blob name.
            outputs: names of the blobs to compute.
            disable: names of layers to skip.

        Returns:
            tuple of Variable: the blobs in the order of ``outputs``.

        Raises:
            NotImplementedError: a required layer is of an unsupported type.
            ValueError: an output cannot be computed from the inputs.
        """
        blobs = dict(inputs)
        for name, bottoms, tops in self._needed(blobs, outputs, disable):
            if name in self._unknown_types:
                raise NotImplementedError(
                    f"CaffeFunction: layer {name!r} is of type {self._unknown_types[name]}, which "
                    f"is not supported; the types are {', '.join(sorted(_MAKERS))}"
                )
            results = self.forwards[name](*(blobs[bottom] for bottom in bottoms))
            blobs.update(zip(tops, results if isinstance(results, tuple) else (results,)))
        return tuple(as_variable(blobs[name]) for name in outputs)

    def _needed(self, inputs, outputs, disable):
        """Returns the layers to run, in order: those with known inputs that outputs depend on."""
        available, runnable = set(inputs), []
        for layer in self.layers:
            name, bottoms, tops = layer
            if name not in disable and available.issuperset(bottoms):
                runnable.append(layer)
                available.update(tops)
        missing = [name for name in outputs if name not in available]
        if missing:
            raise ValueError(
                f"CaffeFunction: {', '.join(missing)} cannot be computed from "
                f"{', '.join(inputs) or 'nothing'}; known are {', '.join(sorted(available))}"
            )
        wanted, needed = set(outputs), []
        for layer in reversed(runnable):
            _, bottoms, tops = layer
            if wanted.intersection(tops):
                wanted = wanted.difference(tops).union(bottoms)
                needed.append(layer)
        return needed[::-1]


def _with_type_name(layer):
    number = layer.get("type", 0)
    return layer | {"type": OLD_TYPES.get(number, f"number {number}")}


def _blobs(layer, least):
    """Returns the arrays of a layer's parameters."""
    blobs = [_array(blob) for blob in layer.get("blobs", ())]
    if len(blobs) < least:
        raise ValueError(f"it must have {least} arrays of parameters, but has {len(blobs)}")
    return blobs


def _array(blob):
    data = blob["double_data"] if "double_data" in blob else blob.get("data", ())
    if "shape" in blob:
        shape = blob["shape"].get("dim", [])
    else:  # old files store the shape as four sizes
        shape = [blob.get(axis, 1) for axis in ("num", "channels", "height", "width")]
    if len(data) != math.prod(shape):
        raise ValueError(f"an array of shape {tuple(shape)} has {len(data)} elements")
    return np.array(data, np.float32).reshape(shape)


def _pair(param, name, letters, default):
    """Returns the height and width of a size stored as one number, a list, or two fields."""
    height, width = (param.get(f"{letters}_{axis}") for axis in "hw")
    if height is not None or width is not None:
        return (default if height is None else height), (default if width is None else width)
    value = param.get(name, default)
    value = list(value) if isinstance(value, (list, np.ndarray)) else [value]
    if len(value) not in (1, 2):
        raise ValueError(f"{name} must be of two axes, but is {value}")
    return value[0], value[-1]


# These functions make the function or link of a layer; `_MAKERS` lists them by type of layer.


def _convolution(layer, link=Convolution2D):
    param = layer["convolution_param"]
    bias_term = param.get("bias_term", True)
    W, *b = _blobs(layer, 2 if bias_term else 1)
    if param.get("axis", 1) != 1 or W.ndim != 4:
        raise ValueError("only convolutions of images (N, C, H, W) are supported")
    ksize = _pair(param, "kernel_size", "kernel", W.shape[2])
    if ksize != W.shape[2:]:
        raise ValueError(f"the weights have shape {W.shape}, but kernel_size is {ksize}")
    return link.from_params(
        W,
        b[0].reshape(-1) if bias_term else None,
        _pair(param, "stride", "stride", 1),
        _pair(param, "pad", "pad", 0),
        dilate=_pair(param, "dilation", "dilation", 1),
        groups=param.get("group", 1),
    )


def _inner_product(layer):
    param = layer.get("inner_product_param", {})
    bias_term = param.get("bias_term", True)
    W, *b = _blobs(layer, 2 if bias_term else 1)
    if param.get("axis", 1) != 1:
        raise ValueError(f"axis {param['axis']} is not supported, only 1")
    W = W.reshape(W.shape[-2:])
    W = W.T if param.get("transpose", False) else W
    return Linear.from_params(W, b[0].reshape(-1) if bias_term else None)


class _BatchNorm(BatchNormalization):
    """Batch normalization without scale and shift; ``use_global_stats`` makes it use the averages
    even in training."""

    def __init__(self, mean, var, eps: float, use_global_stats) -> None:
        averages = {"initial_avg_mean": mean, "initial_avg_var": var}
        super().__init__(mean.size, 0.999, eps, use_gamma=False, use_beta=False, **averages)
        self.use_global_stats = use_global_stats

    def forward(self, x: Input) -> Variable:
        if not self.use_global_stats:
            return super().forward(x)
        with using_config("train", False):
            return super().forward(x)


def _batch_norm(layer):
    param = layer.get("batch_norm_param", {})
    mean, var, factor = _blobs(layer, 3)[:3]
    factor = factor.item()
    scale = 1 / factor if factor else 0
    eps = param.get("eps", 1e-5)
    use_global_stats = param.get("use_global_stats", False)
    return _BatchNorm(mean.reshape(-1) * scale, var.reshape(-1) * scale, eps, use_global_stats)


def _scale(layer):
    param = layer.get("scale_param", {})
    axis, bias_term = param.get("axis", 1), param.get("bias_term", False)
    if len(layer["bottom"]) == 2:  # the scale is an input
        if bias_term:
            raise ValueError("a bias is supported only for scales that are parameters")
        return functools.partial(F.scale, axis=axis)
    W, *b = _blobs(layer, 2 if bias_term else 1)
    link = Scale(axis, W.shape, bias_term, W.shape)
    assert link.W is not None  # the shape is given, so W is initialized
    link.W.array[...] = W
    if bias_term:
        assert link.bias.b is not None
        link.bias.b.array[...] = b[0]
    return link


def _pooling(layer):
    param = layer.get("pooling_param", {})
    if param.get("pool", 0) > _AVERAGE:
        raise ValueError("stochastic pooling is not supported")
    is_average = param.get("pool", 0) == _AVERAGE
    if param.get("global_pooling", False):
        reduce = F.mean if is_average else F.max
        return functools.partial(reduce, axis=(2, 3), keepdims=True)
    ksize = _pair(param, "kernel_size", "kernel", None)
    stride, pad = _pair(param, "stride", "stride", 1), _pair(param, "pad", "pad", 0)
    pool = _average_pooling if is_average else _max_pooling
    is_ceil = param.get("round_mode", 0) != _FLOOR
    return functools.partial(pool, ksize=ksize, stride=stride, pad=pad, is_ceil=is_ceil)


def _pooled_sizes(x, ksize, stride, pad, is_ceil):
    """Returns output sizes: Caffe rounds up, but omits windows that start after the image."""
    sizes = []
    for size, k, s, p in zip(x.shape[2:], ksize, stride, pad):
        n = get_conv_outsize(size, k, s, p, is_ceil)
        sizes.append(n - 1 if (n - 1) * s >= size + p else n)
    return sizes


def _max_pooling(x, ksize, stride, pad, is_ceil):
    height, width = _pooled_sizes(x, ksize, stride, pad, is_ceil)
    y = F.max_pooling_2d(x, ksize, stride, pad, is_ceil)
    return y if y.shape[2:] == (height, width) else y[:, :, :height, :width]


def _average_pooling(x, ksize, stride, pad, is_ceil):
    """Averages over the part of each window that is inside the padded image."""
    counts, margins = [], []
    axes = zip(_pooled_sizes(x, ksize, stride, pad, is_ceil), x.shape[2:], ksize, stride, pad)
    for n, size, k, s, p in axes:
        starts = np.arange(n) * s
        counts.append(np.minimum(starts + k, size + 2 * p) - starts)
        margins.append((p, max((n - 1) * s + k - size - p, 0)))
    y = F.average_pooling_2d(F.pad(x, ((0, 0), (0, 0), *margins), "constant"), ksize, stride)
    correction = math.prod(ksize) / np.outer(*counts)
    y = y[:, :, : len(counts[0]), : len(counts[1])]
    if (correction == 1).all():
        return y
    return y * y.xp.asarray(np.broadcast_to(correction, y.shape), y.dtype)


def _lrn(layer):
    param = layer.get("lrn_param", {})
    if param.get("norm_region", 0) == _WITHIN_CHANNEL:
        raise ValueError("normalization within channels is not supported")
    n = param.get("local_size", 5)
    alpha, beta = param.get("alpha", 1.0) / n, param.get("beta", 0.75)
    options = {"n": n, "k": param.get("k", 1.0), "alpha": alpha, "beta": beta}
    return functools.partial(F.local_response_normalization, **options)


def _relu(layer):
    slope = layer.get("relu_param", {}).get("negative_slope", 0.0)
    return functools.partial(F.leaky_relu, slope=slope) if slope else F.relu


def _softmax(layer):
    return functools.partial(F.softmax, axis=layer.get("softmax_param", {}).get("axis", 1))


def _softmax_with_loss(layer):
    if layer.get("softmax_param", {}).get("axis", 1) != 1:
        raise ValueError("only axis 1 is supported")
    ignore_label = layer.get("loss_param", {}).get("ignore_label", -1)
    return functools.partial(F.softmax_cross_entropy, ignore_label=ignore_label)


def _dropout(layer):
    ratio = layer.get("dropout_param", {}).get("dropout_ratio", 0.5)
    return functools.partial(F.dropout, ratio=ratio)


def _concat(layer):
    param = layer.get("concat_param", {})
    axis = param.get("axis", param.get("concat_dim", 1))
    return lambda *xs: F.concat(xs, axis)


def _slice(layer):
    param = layer.get("slice_param", {})
    axis = param.get("axis", param.get("slice_dim", 1))
    sections = param.get("slice_point") or len(layer["top"])
    return lambda x: F.split_axis(x, sections, axis)


def _split(layer):
    n = len(layer["top"])
    return lambda x: (x,) * n


def _eltwise(layer):
    param = layer.get("eltwise_param", {})
    operation = _ELTWISE[param.get("operation", 1)]
    weights = param.get("coeff", ())
    if len(weights) and (operation != "sum" or len(weights) != len(layer["bottom"])):
        raise ValueError("coeff must be one number per input, and the operation SUM")
    if operation == "sum":
        return functools.partial(_weighted_sum, [float(w) for w in weights])
    combine = F.maximum if operation == "max" else lambda a, b: a * b
    return lambda *xs: functools.reduce(combine, map(F.identity, xs))


def _weighted_sum(weights, *xs):
    xs = [w * F.identity(x) for w, x in zip(weights, xs)] if weights else xs
    return F.add(*xs)


def _reshape(layer):
    param = layer["reshape_param"]
    if param.get("axis", 0) != 0 or param.get("num_axes", -1) != -1:
        raise ValueError("only axis 0 and num_axes -1 are supported")
    dims = list(param["shape"]["dim"])
    # Zero keeps the size of the axis.
    return lambda x: F.reshape(x, tuple(n or x.shape[i] for i, n in enumerate(dims)))


_DATA = "Data DummyData HDF5Data ImageData Input MemoryData Silence WindowData".split()
_MAKERS = {
    "BatchNorm": _batch_norm,
    "Concat": _concat,
    "Convolution": _convolution,
    "Deconvolution": functools.partial(_convolution, link=Deconvolution2D),
    "Dropout": _dropout,
    "Eltwise": _eltwise,
    "Flatten": lambda layer: lambda x: F.reshape(x, (x.shape[0], -1)),
    "InnerProduct": _inner_product,
    "LRN": _lrn,
    "Pooling": _pooling,
    "ReLU": _relu,
    "Reshape": _reshape,
    "Scale": _scale,
    "Sigmoid": lambda layer: F.sigmoid,
    "Slice": _slice,
    "Softmax": _softmax,
    "SoftmaxWithLoss": _softmax_with_loss,
    "Split": _split,
    "TanH": lambda layer: F.tanh,
}
