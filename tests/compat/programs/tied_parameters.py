"""Uses parameters with two names, which Chainer counts, updates and saves under each name."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

hooks = chainer.optimizer_hooks


class Tied(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.a = L.Linear(2, 2, initialW=0.5, initial_bias=0.1)
            self.b = L.Linear(2, 2, initialW=0.5, nobias=True)
            self.b.W = self.a.W

    def loss(self):
        return F.sum(F.sigmoid(self.b(self.a(np.ones((1, 2), np.float32)))))


model = Tied()
shown = [*sorted(dict(model.namedparams())), len(list(model.params())), model.count_params()]
for name in "SGD MomentumSGD Adam AdaGrad RMSprop NesterovAG SMORMS3 MSVAG".split():
    model = Tied()
    optimizer = getattr(chainer.optimizers, name)().setup(model)
    for _ in range(3):
        optimizer.update(model.loss)
    rule = model.a.W.update_rule
    shown += [optimizer.t, rule.t, *model.a.W.array[0], model.a.b.array[0]]
for hook in (
    hooks.WeightDecay(0.1),
    hooks.GradientClipping(0.01),
    hooks.GradientHardClipping(-0.01, 0.01),
    hooks.Lasso(0.1),
    hooks.GradientLARS(),
):
    model = Tied()
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    optimizer.add_hook(hook)
    for _ in range(2):
        optimizer.update(model.loss)
    shown += [model.a.W.array[0, 0], model.a.b.array[0]]
model = Tied()
optimizer = chainer.optimizers.SGD(0.1).setup(model)
optimizer.set_loss_scale(8.0)
optimizer.update(model.loss)
shown.append(model.a.W.array[0, 0])

layer = L.Linear(2, 2, initialW=0.5)
twice = chainer.Sequential(layer, F.tanh, layer)
optimizer = chainer.optimizers.SGD(0.1).setup(twice)
optimizer.update(lambda: F.sum(twice(np.ones((1, 2), np.float32))))
shown += [twice.count_params(), layer.W.array[0, 0], layer.W.update_rule.t]
shown += sorted(dict(chainer.ChainList(layer, layer).namedparams()))

model = Tied()
optimizer = chainer.optimizers.Adam().setup(model)
optimizer.update(model.loss)
chainer.serializers.save_npz("optimizer.npz", optimizer)
shown += sorted(np.load("optimizer.npz").files)
other = Tied()
optimizer = chainer.optimizers.Adam().setup(other)
chainer.serializers.load_npz("optimizer.npz", optimizer)
shown.append(other.a.W.update_rule.t)
model.cleargrads()
model.loss().backward()
other.cleargrads()
other.addgrads(model)
print(*shown, other.a.W.grad[0, 0], other.a.b.grad[0])
