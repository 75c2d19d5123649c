"""Imports functions from the modules that define them."""

import chainer
import numpy as np
from chainer.functions.activation import leaky_relu, relu
from chainer.functions.activation.log_softmax import _log_softmax
from chainer.functions.array import concat, reshape, split_axis
from chainer.functions.connection import convolution_2d, linear
from chainer.functions.loss import softmax_cross_entropy, vae
from chainer.functions.math import basic_math, exponential, matmul, minmax, sum
from chainer.functions.noise import dropout
from chainer.functions.pooling import average_pooling_2d, max_pooling_nd

rng = np.random.RandomState(0)
x = chainer.Variable(rng.standard_normal((2, 3, 6, 6)).astype("f"))
W = rng.standard_normal((4, 3, 3, 3)).astype("f")
h = relu.relu(convolution_2d.convolution_2d(x, W))
h = max_pooling_nd.max_pooling_2d(average_pooling_2d.average_pooling_2d(h, 2, 1), 2)
h = reshape.reshape(h, (2, -1))
h = leaky_relu.leaky_relu(linear.linear(h, rng.standard_normal((5, h.shape[1])).astype("f")))
a, b = split_axis.split_axis(concat.concat((h, h), axis=1), 2, 1)
y = softmax_cross_entropy.softmax_cross_entropy(a * b, np.array([0, 3], "i"))
kl = vae.gaussian_kl_divergence(a, dropout.dropout(b, 0.0))
total = sum.sum(exponential.exp(-basic_math.absolute(a))) + minmax.max(b)
product = matmul.matmul(a, b, transb=True)
y.backward()
print(y.data, kl.data, total.data, product.data.sum(), _log_softmax(a.data).sum(), x.grad.sum())
