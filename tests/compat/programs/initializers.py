"""Uses initializers, and defines one."""

import chainer
import numpy as np
from chainer import initializers
from chainer.initializers import _get_initializer
from chainer.initializers.normal import HeNormal


class Diagonal(chainer.Initializer):
    def __call__(self, array):
        array[...] = 0
        np.fill_diagonal(array, 2)


np.random.seed(0)
link = chainer.links.Linear(3, 3, initialW=Diagonal(), initial_bias=initializers.One())
he = initializers.generate_array(HeNormal(scale=0.5), (4, 8), np)
constant = initializers.generate_array(_get_initializer(3), (2, 2), np)
orthogonal = initializers.generate_array(initializers.Orthogonal(), (3, 3), np)
fans = chainer.initializer.get_fans((4, 8, 3, 3))
print(link(np.ones((1, 3), "f")).data.sum(), he.sum(), constant.sum(), (orthogonal**2).sum(), *fans)
