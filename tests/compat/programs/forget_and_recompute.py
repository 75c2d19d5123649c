"""Computes functions again in backward, and uses other utilities."""

import chainer
import chainer.functions as F
import numpy as np
from chainer.utils import conv, force_array, type_check, walker_alias
from chainer.utils.array import as_mat, size_of_shape
from chainer.utils.conv import get_conv_outsize, im2col_cpu

x = chainer.Variable(np.linspace(-1, 1, 6, dtype="f").reshape(2, 3))
y = F.forget(lambda x: F.tanh(x) * F.sigmoid(x), x)
F.sum(y).backward()
col = im2col_cpu(np.arange(16, dtype="f").reshape(1, 1, 4, 4), 2, 2, 2, 2, 0, 0)
assert conv.get_deconv_outsize(3, 2, 2, 0) == 6 and force_array(1.0).shape == ()
assert walker_alias.WalkerAlias([1, 1]).use_gpu is False and type_check.prod([2, 3]).eval() == 6
print(
    x.grad.sum(),
    col.sum(),
    get_conv_outsize(7, 3, 2, 1),
    *as_mat(np.ones((2, 3, 4))).shape,
    size_of_shape((2, 5)),
)
