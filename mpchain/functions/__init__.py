"""Functions on variables: the family file that a name is imported from says what it means."""

from mpchain.functions import protocol
from mpchain.functions.activation import (
    leaky_relu,
    log_softmax,
    relu,
    sigmoid,
    softmax,
    softplus,
    tanh,
)
from mpchain.functions.arithmetic import absolute, add
from mpchain.functions.array import (
    broadcast_to,
    cast,
    concat,
    get_item,
    mean,
    reshape,
    split_axis,
    sum,
    sum_to,
    swapaxes,
    transpose,
)
from mpchain.functions.connection import (
    convolution_1d,
    convolution_2d,
    convolution_3d,
    convolution_nd,
    deconvolution_1d,
    deconvolution_2d,
    deconvolution_3d,
    deconvolution_nd,
    linear,
)
from mpchain.functions.evaluation import accuracy, binary_accuracy
from mpchain.functions.loss import (
    mean_squared_error,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
)
from mpchain.functions.mathematics import (
    exp,
    log,
    matmul,
    maximum,
    minimum,
    sqrt,
    square,
    where,
)
from mpchain.functions.noise import dropout
from mpchain.functions.normalization import batch_normalization, fixed_batch_normalization
from mpchain.functions.pooling import (
    average_pooling_2d,
    average_pooling_nd,
    max_pooling_2d,
    max_pooling_nd,
)

average = mean
protocol.install()

__all__ = [name for name in dir() if callable(globals()[name])]
