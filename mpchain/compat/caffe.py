"""Imitates the parts of Chainer's Caffe reader that programs use to add types of layers."""

import functools
from collections.abc import Callable
from typing import Any

from mpchain import annexes, functions

_type_to_method: dict[str, Callable[..., None]] = {}
_oldname_to_method: dict[str, Callable[..., None]] = {}

_DEFAULTS = {
    "batch_norm_param": {"eps": 1e-5},
    "concat_param": {"axis": 1, "concat_dim": 1},
    "convolution_param": {"axis": 1, "bias_term": True, "group": 1},
    "dropout_param": {"dropout_ratio": 0.5},
    "eltwise_param": {"operation": 1},
    "inner_product_param": {"axis": 1, "bias_term": True},
    "lrn_param": {"alpha": 1.0, "beta": 0.75, "k": 1.0, "local_size": 5},
    "pooling_param": {"stride": 1},
    "reshape_param": {"num_axes": -1},
    "scale_param": {"axis": 1, "num_axes": 1},
    "slice_param": {"axis": 1, "slice_dim": 1},
    "softmax_param": {"axis": 1},
}
"""The defaults of Caffe's fields that are not zero, false or empty; see ``caffe.proto``."""

_EMPTY = {"bool": False, "double": 0.0, "float": 0.0, "int": 0, "string": ""}


def _part(name: str) -> Any:
    return annexes.load("interop", f"exporters.caffe_{name}", "chainer.links.caffe")


class Message:
    """A message of a Caffe file: its fields are attributes, with Caffe's defaults.

    Args:
        fields: the message's fields; see :func:`mpchain.exporters.caffe_messages.decode`.
        kind: the name of the message's type.
    """

    def __init__(self, fields: dict[str, Any], kind: str):
        self._fields, self._kind = fields, kind

    def __getattr__(self, name: str) -> Any:
        fields = _part("messages").fields_of(self._kind)
        if name not in fields:
            raise AttributeError(f"mpchain reads no field {name!r} of Caffe's {self._kind}")
        is_repeated, kind = fields[name]
        if is_repeated:
            values = self._fields.get(name, [])
            return values if kind in _EMPTY else [Message(v, kind) for v in values]
        if kind not in _EMPTY:
            return Message(self._fields.get(name, {}), kind)
        return self._fields.get(name, _DEFAULTS.get(self._kind, {}).get(name, _EMPTY[kind]))

    def HasField(self, name: str) -> bool:
        """Returns whether the file has the field."""
        return name in self._fields


def _layer(typ: str, oldname: str | None) -> Callable[..., Any]:
    """Decorator for a method that adds a layer of this type to a CaffeFunction."""

    def register(method):
        _type_to_method[typ] = method
        if oldname is not None:
            _oldname_to_method[oldname] = method
        _add()
        _part("function").CaffeFunction._add_layer = _add_layer
        return method

    return register


@functools.cache
def _add():
    """Returns mpchain's own function that adds a layer."""
    return vars(_part("function").CaffeFunction)["_add_layer"]


def _add_layer(self, layer):
    """Adds a layer by the program's method for its type if there is one, else by mpchain's.
    A program's method may call this function."""
    if isinstance(layer, Message):
        self.layers.append((layer.name, list(layer.bottom), list(layer.top)))
    elif layer.get("type", "") in _type_to_method:
        _type_to_method[layer["type"]](self, Message(layer, "Layer"))
    else:
        _add()(self, layer)


class _CaffePb:
    """Stands in for Chainer's module ``caffe_pb``, by which programs read networks."""

    @property
    def NetParameter(self) -> Any:
        return _part("messages").net_class()


caffe_pb = _CaffePb()


def _size_of(blob, axis, name):
    size = getattr(blob, name)
    return size if size > 0 else blob.shape.dim[axis]


def _get_num(blob: Any) -> int:
    return _size_of(blob, 0, "num")


def _get_channels(blob: Any) -> int:
    return _size_of(blob, 1, "channels")


def _get_height(blob: Any) -> int:
    return _size_of(blob, 2, "height")


def _get_width(blob: Any) -> int:
    return _size_of(blob, 3, "width")


def _pair_or_one(param, letters, name, default):
    height, width = getattr(param, f"{letters}_h"), getattr(param, f"{letters}_w")
    if height > 0:
        return height, width
    value = getattr(param, name)
    if isinstance(value, int):
        return value
    if default is not None and len(value) == 0:
        return default
    return value[0] if len(value) == 1 else value


def _get_ksize(param: Any) -> Any:
    return _pair_or_one(param, "kernel", "kernel_size", None)


def _get_stride(param: Any) -> Any:
    return _pair_or_one(param, "stride", "stride", 1)


def _get_pad(param: Any) -> Any:
    return _pair_or_one(param, "pad", "pad", 0)


class _SingleArgumentFunction:
    """Calls a function with one input and stored further arguments."""

    def __init__(self, func: Callable[..., Any], *args: Any, **kwargs: Any):
        self.func, self.args, self.kwargs = func, args, kwargs

    def __call__(self, x: Any) -> Any:
        return self.func(x, *self.args, **self.kwargs)


class _ListArgumentFcuntion:
    """Calls a function with a list of inputs; Chainer spells the class name this way."""

    def __init__(self, func: Callable[..., Any], **kwargs: Any):
        self.func, self.kwargs = func, kwargs

    def __call__(self, *xs: Any) -> Any:
        return self.func(xs, **self.kwargs)


class _EltwiseFunction:
    """Computes a product (operation 0), weighted sum (1) or maximum (2) of inputs."""

    def __init__(self, operation: int, coeffs: Any = None):
        self.operation, self.coeffs = operation, None if coeffs is None else list(coeffs)

    def __call__(self, *xs: Any) -> tuple[Any]:
        if self.operation == 1 and self.coeffs:
            xs = tuple([x * c for x, c in zip(xs, self.coeffs)])
        combine = [lambda a, b: a * b, lambda a, b: a + b, functions.maximum][self.operation]
        return (functools.reduce(combine, xs),)


class _CallChildLink:
    """Calls the child link of a network that has a given name."""

    def __init__(self, caffe_func: Any, name: str):
        self.name, self.caffe_func = name, caffe_func

    def __call__(self, *xs: Any, **kwargs: Any) -> Any:
        return self.caffe_func[self.name](*xs, **kwargs)
