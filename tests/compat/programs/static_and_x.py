"""Uses features that mpchain lacks: static graphs run normally, and ChainerX is unavailable."""

import chainer
import chainerx
import numpy as np
from chainer import static_code, static_graph
from chainer.backends import intel64


class Model(chainer.Chain):
    def __init__(self):
        super().__init__(l=chainer.links.Linear(2, 1, initialW=2.0))

    @static_graph
    def __call__(self, x):
        self.note(x)
        return self.l(x)

    @static_code
    def note(self, x):
        self.seen = x.shape


model = Model()
y = model(np.ones((1, 2), "f"))
assert not chainerx.is_available() and not intel64.is_ideep_available()
assert not intel64.should_use_ideep(">=auto") and model.seen == (1, 2)
print(y.data.sum())
