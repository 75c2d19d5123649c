"""Defines links that override ``_initialize_params``, or call it."""

import chainer.links as L
import numpy as np


class Ones(L.Convolution2D):
    def _initialize_params(self, in_channels):
        super(Ones, self)._initialize_params(in_channels)
        self.W.array[...] = in_channels


class Wide(L.Linear):
    def _initialize_params(self, in_size):
        super(Wide, self)._initialize_params(in_size + 1)


class Scaled(L.LayerNormalization):
    def _initialize_params(self, size):
        super(Scaled, self)._initialize_params(size)
        self.gamma.array[...] = size


x = np.arange(36, dtype=np.float32).reshape(1, 4, 3, 3)
lazy = Ones(None, 2, 3)
lazy.b.array[...] = 5
values = [lazy(x), Ones(4, 2, 3)(x), Scaled()(x.reshape(4, 9))]
wide = Wide(35, 2)
deconvolution = L.Deconvolution2D(None, 6, 2)
deconvolution._initialize_params(3)
lstm = L.LSTM(3, 2)
lstm._initialize_params()
print(
    *["%.4f" % abs(y.array).sum() for y in values],
    *[n for W in (wide.W, deconvolution.W, lstm.upward.W) for n in W.shape],
    L.Convolution2D(None, 5, 1).b.size,
)
