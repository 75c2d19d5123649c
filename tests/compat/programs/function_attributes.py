"""Reads what functions and hooks store: probabilities, masks, statistics, and Chainer's
warnings."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.link_hooks import SpectralNormalization

rng = np.random.RandomState(0)


def draw(*shape):
    return chainer.Variable(rng.standard_normal(shape).astype("f"))


words = []
loss = F.softmax_cross_entropy(draw(3, 2), np.array([0, 1, -1], "i"))
words += [*loss.creator.y.ravel()]
for x in (draw(3, 2), draw(3, 2, 4)):
    norm = F.batch_normalization(x, np.ones(2, "f"), np.ones(2, "f")).creator
    words += [*norm.mean, *norm.var, *norm.inv_std]
words += [*F.max_pooling_2d(draw(1, 1, 4, 4), 2).creator.indexes.ravel()]

h, x = draw(2, 3), draw(2, 3)
y = F.zoneout(h, x, 0.5)
zoneout = y.creator
words += [zoneout.flag_h.dtype, np.array_equal(zoneout.flag_h, ~zoneout.flag_x)]
words += [np.allclose(y.array, h.array * zoneout.flag_h + x.array * zoneout.flag_x)]
y = F.dropout(x, 0.5)
words += [np.allclose(y.array, x.array * y.creator.mask)]
y = F.rrelu(x)
words += [np.allclose(y.array, np.where(x.array >= 0, x.array, x.array * y.creator.r))]

scores = np.array([[0.1, 0.9], [0.8, 0.2]], "f")
words += [F.accuracy(scores[:, :, None, None], np.array([1, 1], "i")).array.item()]

np.random.seed(0)
linear, hook = (
    L.Linear(3, 2, initialW=np.arange(6, dtype="f").reshape(2, 3)),
    SpectralNormalization(),
)
linear.add_hook(hook)
linear(np.ones((1, 3), "f"))
words += [*hook.v]

for shape in [(1, 2), (1, 2, 3), (1, 2, 1, 1)]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        F.batch_normalization(np.ones(shape, "f"), np.ones(2, "f"), np.ones(2, "f"))
    words += [len(seen), *(w.category.__name__ for w in seen)]

table = chainer.dataset.tabular.from_data({"a": np.arange(6), "b": np.arange(6) * 2})
words += [*table.slice[5:0:-2].fetch()["a"], *table.slice[::-1].slice[1:3].fetch()["b"]]
print(*words)
