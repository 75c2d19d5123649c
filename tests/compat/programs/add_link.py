"""Adds links, parameters and persistent values by methods."""

import chainer
import chainer.links as L
import numpy as np


class Old(chainer.Chain):
    def __init__(self):
        super().__init__(embed=L.EmbedID(10, 3))
        self.add_link("l1", L.Linear(3, 4))
        self.add_param("scale", (4,), initializer=0.5)
        self.add_persistent("count", 7)

    def __call__(self, x):
        return self.l1(self.embed(x)) * chainer.functions.broadcast_to(self.scale, (len(x), 4))


np.random.seed(1)
model = Old()
layers = chainer.ChainList()
for n in (4, 5):
    layers.add_link(L.Linear(n, n + 1))
y = model(np.array([1, 2, 3], "i"))
for layer in layers:
    y = layer(y)
names = sorted(name for name, _ in model.namedparams())
assert names == ["/embed/W", "/l1/W", "/l1/b", "/scale"], names
assert sorted(name for name, _ in layers.namedparams()) == ["/0/W", "/0/b", "/1/W", "/1/b"]
print(y.data.sum(), model.count, len(list(model.links())), len(layers))
