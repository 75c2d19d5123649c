"""Export of models to files of Caffe."""

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.backends.cuda import to_cpu
from mpchain.configuration import force_backprop_mode, using_config
from mpchain.exporters.caffe_messages import as_text, net_class
from mpchain.observers import Observer
from mpchain.serializers.files import open_atomic
from mpchain.typing import Input
from mpchain.utils.conv import get_conv_outsize, get_deconv_outsize
from mpchain.variable import Variable, as_variable

_MAXIMUM, _AVERAGE = 0, 1
_PRODUCT, _SUM, _LARGER = 0, 1, 2


def export(
    model: Callable[..., Any],
    args: object,
    directory: str | os.PathLike[str] | None = None,
    export_params: bool = True,
    graph_name: str = "Graph",
) -> str:
    """Writes a model as Caffe's ``chainer_model.prototxt`` and ``chainer_model.caffemodel``.

    The export runs the model once, in inference mode, and records its functions. It supports
    Linear, Convolution2D, Deconvolution2D, AveragePooling2D, MaxPooling2D, LRN, batch
    normalization, ReLU, LeakyReLU, Sigmoid, Tanh, Softmax, Concat, Reshape, Dropout, the mean over
    an image, sums, differences, products and maxima, and all functions that multiply or shift each
    channel by constants. After a product with weights, these constants (for example of batch
    normalization) are merged into the weights.

        >>> text = export(F.relu, np.ones((1, 3), np.float32))
        >>> [line.strip() for line in text.splitlines() if "type" in line]
        ['type: "Input"', 'type: "ReLU"']

    Args:
        model: a callable of Variables that returns a Variable, or a tuple, list or dict of them.
        args: the model's input, or a tuple, list or dict (named arguments) of inputs: Variables or
            arrays.
        directory: the folder of the files, created if it does not exist; None writes no file.
        export_params: whether to write the .caffemodel file, too.
        graph_name: the name of the network.

    Returns:
        str: the content of the prototxt file.

    Raises:
        ImportError: protobuf is not installed.
        NotImplementedError: the model uses an unsupported function.
        ValueError: Caffe would compute another result, the model takes no input, or an output does
            not depend on the inputs.
    """
    layers = _Trace(model, args).layers
    text = as_text({"name": graph_name, "layer": [_without_blobs(x) for x in layers]})
    if directory is not None:
        os.makedirs(directory, exist_ok=True)
        with open_atomic(os.path.join(directory, "chainer_model.prototxt"), "w") as file:
            file.write(text)
        if export_params:
            content = net_class()(name=graph_name, layer=layers).SerializeToString()
            with open_atomic(os.path.join(directory, "chainer_model.caffemodel")) as file:
                file.write(content)
    return text


def _without_blobs(layer):
    return {name: value for name, value in layer.items() if name != "blobs"}


class _Recorder(Observer):
    """Records the applied functions, in order, and their input arrays."""

    def __init__(self) -> None:
        self.applications = []

    def forward_postprocess(self, function, in_data) -> None:
        self.applications.append((function, in_data))


class _Value:
    """A value in the network: ``weight * source + shift``, along axis 1.

    The source is the name of a blob, or a layer that is not written yet, since weight and shift
    can still be merged into its parameters.
    """

    def __init__(self, source: Input, shape, weight=1.0, shift=0.0) -> None:
        self.source = source
        self.shape = shape
        self.weight = weight
        self.shift = shift

    def affine(self, weight, shift):
        return _Value(self.source, self.shape, self.weight * weight, self.shift * weight + shift)


class _Trace:
    """Converts the functions that a model's call applies to Caffe's layers."""

    def __init__(self, model, args: Any) -> None:
        self.layers = []
        self.counts = {}
        self.names = {}
        # A key is the function that made a variable, or the node of an input variable.
        self.values = {}
        names, inputs = _inputs(args)
        for i, x in enumerate(inputs):
            name = f"data_{i + 1}" if i else "data"
            shape = {"input_param": {"shape": [{"dim": x.shape}]}}
            self.layers.append({"name": name, "type": "Input", "top": [name], **shape})
            self.values[x.node] = _Value(name, x.shape)
        recorder = _Recorder()
        with using_config("train", False), force_backprop_mode(), recorder:
            outputs = model(**dict(zip(names, inputs))) if names else model(*inputs)
        for function, in_data in recorder.applications:
            self.read(function, in_data)
        for y in _listed(outputs):
            value = self.value_of(y.node) if isinstance(y, Variable) else None
            if value is None:
                _fail("an output does not depend on the inputs")
            self.blob(value)

    def value_of(self, node):
        """Returns the value of a variable, or None for one that does not depend on the inputs."""
        return self.values.get(node if node.creator_node is None else node.creator_node)

    def read(self, function, in_data):
        """Calls the reader of a function, and stores the value of the function's output."""
        if function.inputs is None:  # the function is not part of the graph
            return
        operands = [self.value_of(node) for node in function.inputs]
        if not any(operands):
            return
        if function.label not in _READERS:
            raise NotImplementedError(
                f"exporters.caffe.export: {function.label} cannot be exported to Caffe; "
                f"these functions can: {', '.join(sorted(_READERS))}"
            )
        operands = [to_cpu(array) if x is None else x for x, array in zip(operands, in_data)]
        constants = getattr(function, "constants", ())
        self.values[function] = _READERS[function.label](self, *operands, *constants)

    def layer(self, kind, bottoms, shape, blobs=(), **params):
        """Adds a layer with one output, and returns its value."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        name = f"{kind}-{self.counts[kind]}"
        layer = {"name": name, "type": kind, "bottom": bottoms, "top": [name], **params}
        if blobs:
            layer["blobs"] = [
                {"shape": {"dim": b.shape}, "data": np.asarray(b, np.float32).reshape(-1)}
                for b in blobs
            ]
        self.layers.append(layer)
        return _Value(name, shape)

    def blob(self, value):
        """Returns the name of the blob of a value; adds the layers that it needs."""
        where = "where Caffe needs an array that depends on the inputs"
        what = f"a constant array of shape {value.shape} stands {where}"
        _refuse_if(not isinstance(value, _Value), what)
        if id(value) not in self.names:
            self.names[id(value)] = value, self._written(value).source
        return self.names[id(value)][1]

    def _written(self, value) -> Any:
        source, shape = value.source, value.shape
        if isinstance(source, _Product):
            return source(value.weight, value.shift)
        if np.all(value.weight == 1) and np.all(value.shift == 0):
            return value
        blobs = [np.broadcast_to(x, shape[1:2]) for x in (value.weight, value.shift)]
        param = {"axis": 1, "bias_term": True}
        return self.layer("Scale", [source], shape, blobs, scale_param=param)


def _inputs(args):
    """Returns the names of the arguments, if any, and the arguments as Variables."""
    keys = list(args) if isinstance(args, dict) else []
    inputs = [as_variable(x) for x in _listed(args)]
    if not inputs:
        raise ValueError("exporters.caffe.export: args must hold an input")
    # These new variables have no history, but need gradients, so that they are part of the graph.
    return keys, [Variable(x.array) for x in inputs]


def _listed(values):
    if isinstance(values, dict):
        return list(values.values())
    return list(values) if isinstance(values, (tuple, list)) else [values]


def _refuse_if(is_inexpressible, rule):
    if is_inexpressible:
        raise NotImplementedError(f"exporters.caffe.export: {rule}")


def _fail(rule):
    raise ValueError(f"exporters.caffe.export: {rule}")


# Each reader below adds the layers of one function. A reader takes the trace, the function's inputs
# (values or constant arrays), and the function's other arguments.


def _per_channel(x, value):
    """Returns a constant as an array (C,), a factor or shift of each channel; or as an array () if
    it is one number."""
    array = np.asarray(x, np.float64)
    if array.size == 1:
        return array.reshape(())
    shape = (1,) * (len(value.shape) - array.ndim) + array.shape
    is_odd = array.size != max(shape[1:2]) or len(shape) != len(value.shape)
    rule = f"a constant array of shape {array.shape} has no number per channel of {value.shape}"
    _refuse_if(is_odd, rule)
    return array.reshape(-1)


def _add(trace, a, b):
    if isinstance(a, _Value) and isinstance(b, _Value):
        return _eltwise(trace, _SUM, a, b)
    value, x = (a, b) if isinstance(a, _Value) else (b, a)
    return value.affine(1, _per_channel(x, value))


def _subtract(trace, a, b):
    if isinstance(a, _Value) and isinstance(b, _Value):
        return _eltwise(trace, _SUM, a, b, coeff=[1.0, -1.0])
    if isinstance(a, _Value):
        return a.affine(1, -_per_channel(b, a))
    return b.affine(-1, _per_channel(a, b))


def _multiply(trace, a, b):
    if isinstance(a, _Value) and isinstance(b, _Value):
        return _eltwise(trace, _PRODUCT, a, b)
    value, x = (a, b) if isinstance(a, _Value) else (b, a)
    return value.affine(_per_channel(x, value), 0)


def _shift_and_scale(trace, x, mean, scale, beta):
    return _add(trace, _multiply(trace, _subtract(trace, x, mean), scale), beta)


def _divide(trace, a, b):
    is_by_input = not isinstance(a, _Value) or isinstance(b, _Value)
    _refuse_if(is_by_input, "Caffe has no division by an array that depends on the inputs")
    return a.affine(1 / _per_channel(b, a), 0)


def _eltwise(trace, operation, *xs, **options):
    shapes = {x.shape for x in xs}
    if len(shapes) > 1:
        _fail(f"Caffe combines arrays of one shape, not {' and '.join(map(str, shapes))}")
    param = {"operation": operation, **options}
    return trace.layer("Eltwise", [*map(trace.blob, xs)], xs[0].shape, eltwise_param=param)


class _Product:
    """A layer with weights, not yet written; calling it with a factor and a shift writes it."""

    def __init__(self, trace, kind, x: Input, W, shape, name: str, param) -> None:
        self.trace, self.kind, self.shape, self.name = trace, kind, shape, name
        self.W = _constant(W, f"the weights of {kind}").astype(np.float64)
        self.param = param
        self.bottom = trace.blob(x)

    def __call__(self, weight, shift):
        factors = np.broadcast_to(weight, self.shape[1:2])
        # Weights of a transposed convolution are (inputs, outputs / groups, height, width).
        is_transposed = self.kind == "Deconvolution"
        groups = self.param["group"] if is_transposed else 1
        W = self.W.reshape(groups, -1, *self.W.shape[1:])
        trailing = (1,) * (self.W.ndim - 2)
        place = (groups, 1, -1, *trailing) if is_transposed else (1, -1, 1, *trailing)
        blobs = [(W * factors.reshape(place)).reshape(self.W.shape)]
        has_bias = bool(np.any(shift))
        if has_bias:
            blobs.append(np.broadcast_to(shift, self.shape[1:2]))
        param = {self.name: {**self.param, "bias_term": has_bias}}
        return self.trace.layer(self.kind, [self.bottom], self.shape, blobs, **param)


def _constant(x, what):
    _refuse_if(isinstance(x, _Value), f"{what} must not depend on the inputs")
    return x


def _linear(trace, x, W, b=None):
    shape = (x.shape[0], W.shape[0])
    param = {"num_output": W.shape[0]}
    product = _Product(trace, "InnerProduct", x, W, shape, "inner_product_param", param)
    return _Value(product, shape, 1.0, 0.0 if b is None else _constant(b, "the bias"))


def _geometry(window):
    """Returns the fields that Caffe's messages for convolution and pooling share."""
    _refuse_if(len(window.ksize) != 2, "windows must have two axes")
    pairs = {"pad": window.pad, "stride": window.stride, "kernel": window.ksize}
    return {f"{name}_{axis}": v for name, pair in pairs.items() for axis, v in zip("hw", pair)}


def _convolution_param(n, window):
    param = {"num_output": n, "group": window.groups, **_geometry(window)}
    return param if set(window.dilate) == {1} else {**param, "dilation": list(window.dilate)}


def _check_sizes(what, found, caffes):
    if tuple(found) != tuple(caffes):
        _fail(f"Caffe gives {what} the size {tuple(caffes)}, not {tuple(found)}")


def _convolution(trace, x, W, *others):
    *biases, window = others
    axes = zip(window.in_size, *window[:4])
    sizes = [get_conv_outsize(size, k, s, p, d=d) for size, k, s, p, d in axes]
    _check_sizes("this convolution (without cover_all)", window.out_size, sizes)
    shape = (x.shape[0], W.shape[0], *window.out_size)
    param = _convolution_param(W.shape[0], window)
    product = _Product(trace, "Convolution", x, W, shape, "convolution_param", param)
    return _Value(product, shape, 1.0, _constant(biases[0], "the bias") if biases else 0.0)


def _deconvolution(trace, x, W, window):
    axes = zip(window.out_size, *window[:4])
    sizes = [get_deconv_outsize(size, k, s, p, d=d) for size, k, s, p, d in axes]
    _check_sizes("this transposed convolution (without outsize)", window.in_size, sizes)
    n = W.shape[1] * window.groups
    shape = (x.shape[0], n, *window.in_size)
    param = _convolution_param(n, window)
    product = _Product(trace, "Deconvolution", x, W, shape, "convolution_param", param)
    return _Value(product, shape)


def _pooling(trace, x, window, pool):
    sizes = []
    for size, k, s, p in zip(window.in_size, *window[:3]):
        n = get_conv_outsize(size, k, s, p, True)
        sizes.append(n - 1 if (n - 1) * s >= size + p else n)
    _check_sizes("this pooling (rounded up, as with cover_all)", window.out_size, sizes)
    shape = (*x.shape[:2], *window.out_size)
    param = {"pool": pool, **_geometry(window)}
    return trace.layer("Pooling", [trace.blob(x)], shape, pooling_param=param)


def _max_pooling(trace, x, window):
    return _pooling(trace, x, window, _MAXIMUM)


def _sums_of_windows(trace, x, window):
    # Where a window exceeds the padding, Caffe averages over less than the window.
    axes = zip(window.in_size, *window[:3])
    ends = [get_conv_outsize(size, k, s, p) for size, k, s, p in axes]
    _check_sizes("this pooling (rounded up)", window.out_size, ends)
    return _pooling(trace, x, window, _AVERAGE).affine(math.prod(window.ksize), 0)


def _mean(trace, x, axis, keepdims):
    axes = {a % len(x.shape) for a in ((axis,) if isinstance(axis, int) else axis or ())}
    _refuse_if(axes != {2, 3} or len(x.shape) != 4, "Caffe has no means but those over images")
    param = {"pool": _AVERAGE, "global_pooling": True}
    shape = (*x.shape[:2], 1, 1)
    y = trace.layer("Pooling", [trace.blob(x)], shape, pooling_param=param)
    return y if keepdims else _reshape(trace, y, shape[:2])


def _local_response_normalization(trace, x, n, k, alpha, beta):
    # Caffe divides alpha by the number of neighbors, so the product is written.
    param = {"local_size": n, "alpha": alpha * n, "beta": beta, "norm_region": 0, "k": float(k)}
    return trace.layer("LRN", [trace.blob(x)], x.shape, lrn_param=param)


def _activation(kind):
    return lambda trace, x: trace.layer(kind, [trace.blob(x)], x.shape)


def _leaky_relu(trace, x, slope):
    param = {"negative_slope": float(slope)}
    return trace.layer("ReLU", [trace.blob(x)], x.shape, relu_param=param)


def _softmax(trace, x, axis):
    return trace.layer("Softmax", [trace.blob(x)], x.shape, softmax_param={"axis": axis})


def _concat(trace, *operands):
    *xs, axis = operands
    _refuse_if(not all(isinstance(x, _Value) for x in xs), "Caffe cannot join constant arrays")
    shape = list(xs[0].shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    bottoms = [trace.blob(x) for x in xs]
    return trace.layer("Concat", bottoms, tuple(shape), concat_param={"axis": axis})


def _reshape(trace, x, shape):
    size = math.prod(x.shape)
    known = math.prod(n for n in shape if n != -1)
    shape = tuple(size // known if n == -1 else n for n in shape)
    # -1 stands for the batch size, which may change.
    dims = [-1, *shape[1:]] if shape[:1] == x.shape[:1] else shape
    param = {"reshape_param": {"shape": {"dim": dims}}}
    return trace.layer("Reshape", [trace.blob(x)], shape, **param)


_READERS = {
    "add": _add,
    "add_constant": lambda trace, x, c: x.affine(1, c),
    "cast": lambda trace, x, dtype: x,
    "concat": _concat,
    "convolution_input": _deconvolution,
    "convolution_output": _convolution,
    "convolution_with_bias": _convolution,
    "divide": _divide,
    "divide_by_constant": lambda trace, x, c: x.affine(1 / c, 0),
    "identity": lambda trace, x: x,
    "leaky_relu": _leaky_relu,
    "linear": _linear,
    "linear_with_bias": _linear,
    "local_response_normalization": _local_response_normalization,
    "max_windows": _max_pooling,
    "maximum": lambda trace, a, b: _eltwise(trace, _LARGER, a, b),
    "mean": _mean,
    "multiply": _multiply,
    "multiply_by_constant": lambda trace, x, c: x.affine(c, 0),
    "negative": lambda trace, x: x.affine(-1, 0),
    "relu": _activation("ReLU"),
    "reshape": _reshape,
    "shifted_and_scaled": _shift_and_scale,
    "sigmoid": _activation("Sigmoid"),
    "softmax": _softmax,
    "subtract": _subtract,
    "subtract_from_constant": lambda trace, x, c: x.affine(-1, c),
    "sum_windows": _sums_of_windows,
    "tanh": _activation("TanH"),
}
