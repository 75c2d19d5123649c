"""Passes arrays to functions; the graph shows them as input nodes without gradient."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import Variable as V

rng = np.random.RandomState(0)
labels = np.array([0, 1], "i")


def d(*shape):
    return rng.uniform(0.2, 0.8, shape).astype("f")


def fixed(link, x):
    with chainer.using_config("train", False):
        return link(x)


norm, plain = L.BatchNormalization(3), L.BatchNormalization(3, use_gamma=False, use_beta=False)
CASES = [
    lambda: L.Linear(3, 2)(d(2, 3)),
    lambda: L.Linear(12, 2)(d(2, 3, 2, 2)),
    lambda: L.Convolution2D(2, 3, 3)(d(1, 2, 5, 5)),
    lambda: L.Deconvolution2D(2, 3, 3)(d(1, 2, 5, 5)),
    lambda: L.DepthwiseConvolution2D(2, 3, 3)(d(1, 2, 5, 5)),
    lambda: L.EmbedID(4, 3)(np.array([[0, 1]], "i")),
    lambda: F.softmax_cross_entropy(V(d(2, 3)), labels),
    lambda: F.sigmoid_cross_entropy(V(d(2, 3)), np.ones((2, 3), "i")),
    lambda: F.mean_squared_error(V(d(2)), d(2)),
    lambda: F.select_item(V(d(2, 3)), labels),
    lambda: norm(d(2, 3)),
    lambda: plain(V(d(2, 3))),
    lambda: fixed(norm, d(2, 3)),
    lambda: fixed(plain, V(d(2, 3))),
    lambda: L.GroupNormalization(2, 4)(d(2, 4, 2)),
    lambda: F.roi_pooling_2d(V(d(1, 2, 4, 4)), np.array([[0, 0, 0, 3, 3]], "f"), 2, 2, 1.0),
    lambda: V(d(2)) * d(2),
    lambda: F.matmul(d(2, 3), V(d(3, 2))),
    lambda: F.concat([d(2, 3), V(d(2, 3))]),
    lambda: F.where(np.array([True, False]), V(d(2)), d(2)),
    lambda: F.maximum(V(d(2)), d(2)),
    lambda: F.dropout(V(d(4)), mask=np.ones(4, "f")),
    lambda: V(d(4, 2))[np.array([1, 2])],
    lambda: F.lstm(d(2, 3), V(d(2, 12)))[1],
    lambda: L.Bilinear(2, 3, 2)(d(2, 2), d(2, 3)),
    lambda: L.PReLU()(d(2, 3)),
    lambda: F.scatter_add(V(d(3)), np.array([0, 1]), d(2)),
    lambda: F.contrastive(V(d(2, 3)), d(2, 3), labels),
    lambda: F.einsum("ij,jk->ik", d(2, 3), V(d(3, 2))),
    lambda: F.zoneout(d(2), V(d(2))),
    lambda: F.linear_interpolate(d(2), V(d(2)), d(2)),
    lambda: F.triplet(V(d(2, 3)), d(2, 3), d(2, 3)),
    lambda: L.Classifier(L.Linear(3, 2))(d(2, 3), labels),
]
shown = []
for case in CASES:
    function = case().creator_node
    nodes = [node.dtype.char + "x".join(map(str, node.shape)) for node in function.inputs]
    flags = "".join("-+"[node.requires_grad] for node in function.inputs)
    shown.append(":".join([type(function).__name__, flags, *nodes]))
x = np.arange(6, dtype="f").reshape(2, 3)
y = fixed(norm, x)
inputs = y.creator_node.inputs
shown += [inputs[i].data.sum() for i in (0, 1, 3, 4)]
shown.append(int(L.Linear(3, 2)(x).creator_node.inputs[0].data is x))
print(*shown)
