"""Sets modes by their old and new names."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.function import force_backprop_mode, no_backprop_mode

link = L.Linear(2, 1, initialW=1.0)
x = np.ones((1, 2), "f")
with no_backprop_mode():
    assert link(x).creator is None
    with force_backprop_mode():
        assert link(x).creator is not None
norm = L.BatchNormalization(2)
with chainer.using_config("train", False), chainer.using_config("enable_backprop", False):
    y = F.dropout(norm(np.array([[1, 2], [3, 5]], "f")), 0.9)
assert chainer.config.train and not chainer.is_debug()
with chainer.using_config("debug", True):
    assert chainer.is_debug()
chainer.config.dtype = np.float64
double = L.Linear(2, 2).W.dtype
chainer.config.dtype = np.float32
print(y.data.sum(), double.itemsize)
