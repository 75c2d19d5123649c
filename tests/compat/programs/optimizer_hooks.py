"""Uses hooks of optimizers under their names in Chainer 1 to 6."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

results = []
for hook in (
    chainer.optimizer.WeightDecay(0.1),
    chainer.optimizer.Lasso(0.1),
    chainer.optimizer.GradientClipping(0.01),
    chainer.optimizer.GradientHardClipping(-0.01, 0.01),
    chainer.optimizer_hooks.GradientLARS(),
    chainer.optimizer_hooks.weight_decay.WeightDecay(0.2),
):
    link = L.Linear(2, 2, initialW=np.array([[1, -2], [3, 4]], "f"), initial_bias=1)
    optimizer = chainer.optimizers.MomentumSGD(lr=0.1)
    optimizer.setup(link)
    optimizer.add_hook(hook)
    for _ in range(2):
        optimizer.update(lambda x: F.sum(link(x) ** 2), np.array([[1, 2]], "f"))
    results.append(float(link.W.data.sum()))
print(*results)
