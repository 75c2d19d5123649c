"""Computes the deconvolutions of a generator."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.functions.connection.deconvolution_2d import deconvolution_2d


class Generator(chainer.Chain):
    def __init__(self, ch=8, wscale=0.02):
        super().__init__()
        w = chainer.initializers.Normal(wscale)
        with self.init_scope():
            self.l0 = L.Linear(4, 4 * 4 * ch, initialW=w)
            self.dc1 = L.Deconvolution2D(ch, ch // 2, 4, 2, 1, initialW=w)
            self.bn0 = L.BatchNormalization(4 * 4 * ch)
            self.bn1 = L.BatchNormalization(ch // 2)
            self.dc2 = L.Deconvolution2D(ch // 2, 3, 3, 1, 1, initialW=w)
        self.ch = ch

    def __call__(self, z):
        h = F.reshape(F.relu(self.bn0(self.l0(z))), (len(z), self.ch, 4, 4))
        return F.sigmoid(self.dc2(F.relu(self.bn1(self.dc1(h)))))


np.random.seed(0)
gen = Generator()
z = np.random.uniform(-1, 1, (3, 4)).astype("f")
x = gen(chainer.Variable(z))
gen.cleargrads()
F.sum(x * x).backward()
with chainer.using_config("train", False):
    test = gen(z)
plain = deconvolution_2d(np.ones((1, 1, 2, 2), "f"), np.ones((1, 1, 2, 2), "f"), stride=2)
print(x.data.sum(), abs(gen.dc1.W.grad).sum(), test.data.sum(), plain.data.sum())
