"""The messages of Caffe's files that mpchain reads and writes.

Field numbers and names are those of ``caffe.proto``, https://github.com/BVLC/caffe.
"""

import functools
from typing import Any

import numpy as np

_PARAMETERS = {
    "batch_norm_param": "1 bool use_global_stats, 3 float eps",
    "concat_param": "1 int concat_dim, 2 int axis",
    "convolution_param": "1 int num_output, 2 bool bias_term, 3 repeated int pad, "
    "4 repeated int kernel_size, 5 int group, 6 repeated int stride, 9 int pad_h, 10 int pad_w, "
    "11 int kernel_h, 12 int kernel_w, 13 int stride_h, 14 int stride_w, 16 int axis, "
    "18 repeated int dilation",
    "dropout_param": "1 float dropout_ratio",
    "eltwise_param": "1 int operation, 2 repeated float coeff",
    "inner_product_param": "1 int num_output, 2 bool bias_term, 5 int axis, 6 bool transpose",
    "input_param": "1 repeated Shape shape",
    "loss_param": "1 int ignore_label",
    "lrn_param": "1 int local_size, 2 float alpha, 3 float beta, 4 int norm_region, 5 float k",
    "pooling_param": "1 int pool, 2 int kernel_size, 3 int stride, 4 int pad, 5 int kernel_h, "
    "6 int kernel_w, 7 int stride_h, 8 int stride_w, 9 int pad_h, 10 int pad_w, "
    "12 bool global_pooling, 13 int round_mode",
    "relu_param": "1 float negative_slope",
    "reshape_param": "1 Shape shape, 2 int axis, 3 int num_axes",
    "scale_param": "1 int axis, 2 int num_axes, 4 bool bias_term",
    "slice_param": "1 int slice_dim, 2 repeated int slice_point, 3 int axis",
    "softmax_param": "2 int axis",
}
_MESSAGES = _PARAMETERS | {
    "Shape": "1 packed int dim",
    "Blob": "1 int num, 2 int channels, 3 int height, 4 int width, 5 packed float data, "
    "7 Shape shape, 8 packed double double_data",
    "Layer": "1 string name, 2 string type, 3 repeated string bottom, 4 repeated string top, "
    "7 repeated Blob blobs, 101 loss_param, 104 concat_param, 106 convolution_param, "
    "108 dropout_param, 110 eltwise_param, 117 inner_product_param, 118 lrn_param, "
    "121 pooling_param, 123 relu_param, 125 softmax_param, 126 slice_param, 133 reshape_param, "
    "139 batch_norm_param, 142 scale_param, 143 input_param",
    "OldLayer": "2 repeated string bottom, 3 repeated string top, 4 string name, 5 int type, "
    "6 repeated Blob blobs, 9 concat_param, 10 convolution_param, 12 dropout_param, "
    "17 inner_product_param, 18 lrn_param, 19 pooling_param, 24 eltwise_param, 30 relu_param, "
    "31 slice_param, 39 softmax_param, 42 loss_param",
    "Net": "1 string name, 2 repeated OldLayer layers, 3 repeated string input, "
    "100 repeated Layer layer",
}
_OLD_TYPES = (
    "1 Accuracy, 3 Concat, 4 Convolution, 5 Data, 6 Dropout, 8 Flatten, 9 HDF5Data, 12 ImageData, "
    "14 InnerProduct, 15 LRN, 17 Pooling, 18 ReLU, 19 Sigmoid, 20 Softmax, 21 SoftmaxWithLoss, "
    "22 Split, 23 TanH, 24 WindowData, 25 Eltwise, 29 MemoryData, 32 DummyData, 33 Slice, "
    "36 Silence, 39 Deconvolution"
)
OLD_TYPES = {int(number): name for number, name in map(str.split, _OLD_TYPES.split(","))}
"""Maps the numbers of layer types in old files to names of layer types."""


@functools.cache
def net_class() -> Any:
    """Returns protobuf's class for the message ``Net``, built from this module's tables.

        >>> net_class().DESCRIPTOR.full_name
        'caffe.Net'

    Raises:
        ImportError: protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise ImportError("Caffe's files need protobuf: pip install protobuf") from error
    file = descriptor_pb2.FileDescriptorProto(name="mpchain_caffe.proto", package="caffe")
    for message, fields in _MESSAGES.items():
        added = file.message_type.add(name=message)
        for number, *label, kind, name in map(_field, fields.split(",")):
            field = {"label": "LABEL_REPEATED" if label else "LABEL_OPTIONAL"}
            if kind in _MESSAGES:
                field["type_name"] = kind
            else:
                field["type"] = "TYPE_INT64" if kind == "int" else f"TYPE_{kind.upper()}"
            options = {"packed": label == ["packed"]}
            added.field.add(name=name, number=int(number), options=options, **field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.Net"))


def _field(text):
    """Returns number, labels, kind and name of a field; the kind defaults to the name."""
    words = text.split()
    return words if len(words) > 2 else [*words, words[-1]]


def fields_of(message: str) -> dict[str, tuple[bool, str]]:
    """Returns the fields of a message: whether each is repeated, and its kind.

    >>> fields_of("Shape")
    {'dim': (True, 'int')}
    """
    fields = [_field(text) for text in _MESSAGES[message].split(",")]
    return {name: (bool(label), kind) for _, *label, kind, name in fields}


def decode(content: bytes) -> dict[str, Any]:
    """Reads a network: returns a dict of fields by name, without fields that this module's tables
    lack.

    A repeated field is a list, or an array if its elements are floats.

        >>> decode(net_class()(name="net").SerializeToString())
        {'name': 'net'}

    Raises:
        ImportError: protobuf is not installed.
        ValueError: ``content`` (bytes) is damaged.
    """
    net = net_class()
    from google.protobuf.message import DecodeError

    try:
        return _as_dict(net.FromString(content))
    except DecodeError as error:
        raise ValueError(f"damaged or truncated: {error}") from error


def _as_dict(message):
    from google.protobuf.unknown_fields import UnknownFieldSet

    known = message.DESCRIPTOR.fields_by_number
    for field in UnknownFieldSet(message):
        if field.field_number in known:  # protobuf skips a field of another wire type
            name = known[field.field_number].name
            raise ValueError(f"damaged: field {name!r} has wire type {field.wire_type}")
    return {field.name: _plain(field, value) for field, value in message.ListFields()}


def _plain(field, value):
    if isinstance(value, bytes):
        raise ValueError(f"damaged: field {field.name!r} is not UTF-8")
    if isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "ListFields"):
        return _as_dict(value)
    dtype = {field.CPPTYPE_FLOAT: np.float32, field.CPPTYPE_DOUBLE: np.float64}.get(field.cpp_type)
    return [_plain(field, one) for one in value] if dtype is None else np.array(value, dtype)


def as_text(message: dict[str, Any]) -> str:
    """Writes a network, a dict, in protobuf's text format.

    >>> print(as_text({"name": "net", "layer": [{"type": "ReLU"}]}), end="")
    name: "net"
    layer {
      type: "ReLU"
    }
    """
    from google.protobuf.text_format import MessageToString

    return MessageToString(net_class()(**message), as_utf8=True)
