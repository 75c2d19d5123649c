"""Copies links and their parameters."""

import chainer
import chainer.links as L
import numpy as np

np.random.seed(0)
a = chainer.Chain(l=L.Linear(2, 2), n=L.BatchNormalization(2))
shared, initialized, copied = a.copy("share"), a.copy("init"), a.copy("copy")
assert shared.l.W is not a.l.W and shared.l.W.data is a.l.W.data
assert not np.array_equal(initialized.l.W.data, a.l.W.data)
copied.l.W.data[...] = 1
a.copyparams(copied)
for p in (*a.params(), *copied.params()):
    p.grad = np.ones_like(p.data)
a.addgrads(copied)
a.to_cpu()
a.disable_update()
assert not a.update_enabled
print(a.l.W.data.sum(), a.l.W.grad.sum(), a["l"].b.data.sum(), a.count_params())
