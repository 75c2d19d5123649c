"""Computes with half precision, casts and integer arrays."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

with chainer.using_config("dtype", np.float16):
    link = L.Linear(3, 2)
link.W.data[...] = 0.5
x = np.arange(6).reshape(2, 3).astype(np.float16)
y = F.cast(link(x), np.float32)
loss = F.sum(y)
loss.backward()
labels = np.array([-1, 1], "i")
ignored = F.softmax_cross_entropy(np.ones((2, 3), "f"), labels, ignore_label=-1)
picked = F.select_item(np.arange(6, dtype="f").reshape(2, 3), np.array([2, 0], "i"))
print(y.data.sum(), link.W.grad.dtype.itemsize, ignored.data, *picked.data)
