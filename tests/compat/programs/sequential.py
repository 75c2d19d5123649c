"""Uses Sequential and repeat."""

import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.sequential import Sequential

np.random.seed(0)
block = Sequential(L.Linear(4, 4), F.relu)
model = Sequential(L.Linear(3, 4), block.repeat(2), L.Linear(4, 2))
model.append(F.softmax)
x = np.random.standard_normal((2, 3)).astype("f")
flat = model.flatten()
assert [type(layer).__name__ for layer in flat][0] == "Linear" and len(flat) == 7
print(model(x).data[:, 0].sum(), model.count_params(), len(model))
