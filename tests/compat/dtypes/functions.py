"""Calls functions with arrays of all combinations of dtypes, and prints the result's dtype or an
error."""

import itertools

import chainer
import chainer.functions as F
import numpy as np


def ones(*shape):
    return np.arange(1.0, np.prod(shape) + 1).reshape(shape) / 10


CASES = {
    "linear": (F.linear, [ones(4, 3), ones(2, 3), ones(2)]),
    "convolution_2d": (F.convolution_2d, [ones(2, 3, 5, 5), ones(4, 3, 3, 3), ones(4)]),
    "convolution_1d": (F.convolution_1d, [ones(2, 3, 5), ones(4, 3, 3), ones(4)]),
    "convolution_3d": (F.convolution_3d, [ones(2, 3, 4, 4, 4), ones(4, 3, 3, 3, 3), ones(4)]),
    "convolution_nd": (F.convolution_nd, [ones(2, 3, 5, 5), ones(4, 3, 3, 3), ones(4)]),
    "deconvolution_2d": (F.deconvolution_2d, [ones(2, 3, 5, 5), ones(3, 4, 3, 3), ones(4)]),
    "deconvolution_1d": (F.deconvolution_1d, [ones(2, 3, 5), ones(3, 4, 3), ones(4)]),
    "deconvolution_nd": (F.deconvolution_nd, [ones(2, 3, 5, 5), ones(3, 4, 3, 3), ones(4)]),
    "depthwise_convolution_2d": (
        F.depthwise_convolution_2d,
        [ones(2, 3, 5, 5), ones(2, 3, 3, 3), ones(6)],
    ),
    "dilated_convolution_2d": (
        F.dilated_convolution_2d,
        [ones(2, 3, 7, 7), ones(4, 3, 3, 3), ones(4)],
    ),
    "local_convolution_2d": (
        F.local_convolution_2d,
        [ones(2, 3, 5, 5), ones(4, 3, 3, 3, 3, 3), ones(4, 3, 3)],
    ),
    "batch_normalization": (
        F.batch_normalization,
        [ones(4, 3), ones(3), ones(3)],
    ),
    "fixed_batch_normalization": (
        lambda x, g, b: F.fixed_batch_normalization(
            x, g, b, np.zeros(3, g.dtype), np.ones(3, g.dtype)
        ),
        [ones(4, 3), ones(3), ones(3)],
    ),
    "layer_normalization": (
        F.layer_normalization,
        [ones(4, 3), ones(3), ones(3)],
    ),
    "group_normalization": (
        lambda x, g, b: F.group_normalization(x, 1, g, b),
        [ones(4, 3, 2), ones(3), ones(3)],
    ),
    "prelu": (F.prelu, [ones(4, 3), ones(3)]),
    "simplified_dropconnect": (
        lambda x, W, b: F.simplified_dropconnect(x, W, b, mask=np.ones((4, 2, 3), bool)),
        [ones(4, 3), ones(2, 3), ones(2)],
    ),
    "deconvolution_3d": (F.deconvolution_3d, [ones(1, 2, 3, 3, 3), ones(2, 2, 2, 2, 2), ones(2)]),
    "scale": (F.scale, [ones(4, 3), ones(3)]),
    "bias": (F.bias, [ones(4, 3), ones(3)]),
    "bilinear": (F.bilinear, [ones(4, 3), ones(4, 2), ones(3, 2, 2)]),
    "maxout of linear": (lambda x, W: F.maxout(F.linear(x, W), 2), [ones(4, 3), ones(4, 3)]),
    "lstm": (lambda c, x: F.lstm(c, x)[0], [ones(4, 3), ones(4, 12)]),
}
for name, (function, arrays) in CASES.items():
    for dtypes in itertools.product("efd", repeat=len(arrays)):
        xs = [chainer.Variable(array.astype(dtype)) for array, dtype in zip(arrays, dtypes)]
        try:
            print(name, *dtypes, function(*xs).dtype.char)
        except chainer.utils.type_check.InvalidType:
            print(name, *dtypes, "refused")
