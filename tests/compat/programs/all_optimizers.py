"""Uses every optimizer; some are imported from the modules that define them."""

import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import optimizers
from chainer.optimizers.ada_delta import AdaDelta
from chainer.optimizers.adam import Adam, AdamRule
from chainer.optimizers.momentum_sgd import MomentumSGD

makers = [
    AdaDelta(), optimizers.AdaGrad(), Adam(), optimizers.AdamW(), optimizers.AMSGrad(),
    optimizers.AdaBound(), optimizers.AMSBound(), optimizers.CorrectedMomentumSGD(), MomentumSGD(),
    optimizers.MSVAG(), optimizers.NesterovAG(), optimizers.RMSprop(), optimizers.RMSpropGraves(),
    optimizers.SGD(), optimizers.SMORMS3(),
]  # fmt: skip
x = np.array([[1.0, -2.0]], "f")
results = []
for optimizer in makers:
    link = L.Linear(2, 2, initialW=np.array([[1, 2], [3, -4]], "f"))
    optimizer.setup(link)
    for _ in range(3):
        optimizer.update(lambda: F.sum(F.tanh(link(x)) ** 2))
    results.append(float(link.W.data.sum()))
assert AdamRule is not None
print(*results)
