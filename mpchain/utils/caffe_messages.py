"""The messages of Caffe's files that mpchain reads and writes, and those alone.

Numbers and names are those of ``caffe.proto``, https://github.com/BVLC/caffe.
"""

from mpchain.utils.protobuf import MessageType

_SHAPE = MessageType({1: "packed int dim"})
_BLOB = MessageType(
    {
        1: "int num",
        2: "int channels",
        3: "int height",
        4: "int width",
        5: "packed float data",
        7: "Shape shape",
        8: "packed double double_data",
    },
    Shape=_SHAPE,
)

PARAMETERS = {
    "batch_norm_param": MessageType({1: "bool use_global_stats", 3: "float eps"}),
    "concat_param": MessageType({1: "int concat_dim", 2: "int axis"}),
    "convolution_param": MessageType(
        {
            1: "int num_output",
            2: "bool bias_term",
            3: "repeated int pad",
            4: "repeated int kernel_size",
            5: "int group",
            6: "repeated int stride",
            9: "int pad_h",
            10: "int pad_w",
            11: "int kernel_h",
            12: "int kernel_w",
            13: "int stride_h",
            14: "int stride_w",
            16: "int axis",
            18: "repeated int dilation",
        }
    ),
    "dropout_param": MessageType({1: "float dropout_ratio"}),
    "eltwise_param": MessageType({1: "int operation", 2: "repeated float coeff"}),
    "inner_product_param": MessageType(
        {1: "int num_output", 2: "bool bias_term", 5: "int axis", 6: "bool transpose"}
    ),
    "input_param": MessageType({1: "repeated Shape shape"}, Shape=_SHAPE),
    "loss_param": MessageType({1: "int ignore_label"}),
    "lrn_param": MessageType(
        {
            1: "int local_size",
            2: "float alpha",
            3: "float beta",
            4: "int norm_region",
            5: "float k",
        }
    ),
    "pooling_param": MessageType(
        {
            1: "int pool",
            2: "int kernel_size",
            3: "int stride",
            4: "int pad",
            5: "int kernel_h",
            6: "int kernel_w",
            7: "int stride_h",
            8: "int stride_w",
            9: "int pad_h",
            10: "int pad_w",
            12: "bool global_pooling",
            13: "int round_mode",
        }
    ),
    "relu_param": MessageType({1: "float negative_slope"}),
    "reshape_param": MessageType(
        {1: "Shape shape", 2: "int axis", 3: "int num_axes"}, Shape=_SHAPE
    ),
    "scale_param": MessageType({1: "int axis", 2: "int num_axes", 4: "bool bias_term"}),
    "slice_param": MessageType({1: "int slice_dim", 2: "repeated int slice_point", 3: "int axis"}),
    "softmax_param": MessageType({2: "int axis"}),
}

_NUMBERS = {
    101: "loss_param",
    104: "concat_param",
    106: "convolution_param",
    108: "dropout_param",
    110: "eltwise_param",
    117: "inner_product_param",
    118: "lrn_param",
    121: "pooling_param",
    123: "relu_param",
    125: "softmax_param",
    126: "slice_param",
    133: "reshape_param",
    139: "batch_norm_param",
    142: "scale_param",
    143: "input_param",
}
_OLD_NUMBERS = {
    9: "concat_param",
    10: "convolution_param",
    12: "dropout_param",
    17: "inner_product_param",
    18: "lrn_param",
    19: "pooling_param",
    24: "eltwise_param",
    30: "relu_param",
    31: "slice_param",
    39: "softmax_param",
    42: "loss_param",
}


def _layer_type(fields, numbers):
    fields = fields | {number: f"{name} {name}" for number, name in numbers.items()}
    return MessageType(fields, Blob=_BLOB, **PARAMETERS)


LAYER = _layer_type(
    {
        1: "string name",
        2: "string type",
        3: "repeated string bottom",
        4: "repeated string top",
        7: "repeated Blob blobs",
    },
    _NUMBERS,
)
_OLD_LAYER = _layer_type(
    {
        2: "repeated string bottom",
        3: "repeated string top",
        4: "string name",
        5: "int type",
        6: "repeated Blob blobs",
    },
    _OLD_NUMBERS,
)
NET = MessageType(
    {
        1: "string name",
        2: "repeated OldLayer layers",
        3: "repeated string input",
        100: "repeated Layer layer",
    },
    Layer=LAYER,
    OldLayer=_OLD_LAYER,
)

OLD_TYPES = {
    1: "Accuracy",
    3: "Concat",
    4: "Convolution",
    5: "Data",
    6: "Dropout",
    8: "Flatten",
    9: "HDF5Data",
    12: "ImageData",
    14: "InnerProduct",
    15: "LRN",
    17: "Pooling",
    18: "ReLU",
    19: "Sigmoid",
    20: "Softmax",
    21: "SoftmaxWithLoss",
    22: "Split",
    23: "TanH",
    24: "WindowData",
    25: "Eltwise",
    29: "MemoryData",
    32: "DummyData",
    33: "Slice",
    36: "Silence",
    39: "Deconvolution",
}
"""Names of the layer types that old files number; of others the number is told."""
