"""Calls float32 links with float32 and float64 inputs, and prints the dtype and the sum of
magnitudes of the result."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np


def data(*shape):
    return np.sin(np.arange(np.prod(shape)).reshape(shape))


LINKS = {
    "BatchNormalization": (L.BatchNormalization(3), data(4, 3)),
    "BatchNormalization of images": (L.BatchNormalization(3), data(2, 3, 5, 5)),
    "GroupNormalization": (L.GroupNormalization(1, 3), data(2, 3, 5, 5)),
    "LayerNormalization": (L.LayerNormalization(3), data(4, 3)),
    "Linear": (L.Linear(3, 2, initialW=0.1), data(4, 3)),
    "Convolution2D": (L.Convolution2D(3, 2, 3, initialW=0.1), data(2, 3, 5, 5)),
    "ConvolutionND": (L.ConvolutionND(2, 3, 2, 3, initialW=0.1), data(2, 3, 5, 5)),
    "Convolution1D": (L.Convolution1D(3, 2, 3, initialW=0.1), data(2, 3, 5)),
    "DeconvolutionND": (L.DeconvolutionND(2, 3, 2, 3, initialW=0.1), data(2, 3, 5, 5)),
    "Deconvolution2D": (L.Deconvolution2D(3, 2, 3, initialW=0.1), data(2, 3, 5, 5)),
    "Scale": (L.Scale(1, (3,), True), data(4, 3)),
    "Bias": (L.Bias(1, (3,)), data(4, 3)),
    "Scale of constants": (lambda x: L.Scale(1, (3,), True)(x.array), data(4, 3)),
    "Bias of constants": (lambda x: L.Bias(1, (3,))(x.array), data(4, 3)),
    "Bilinear": (lambda x: L.Bilinear(3, 3, 2, True, 0.1)(x, x), data(4, 3)),
}
for name, (link, x) in LINKS.items():
    for dtype in "fd":
        try:
            y = link(chainer.Variable(x.astype(dtype)))
            F.sum(y * y).backward()
            print(name, dtype, y.dtype.char, f"{float(abs(y.array).sum()):.3f}")
        except (chainer.utils.type_check.InvalidType, TypeError):
            print(name, dtype, "refused")
