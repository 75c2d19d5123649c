"""Uses names that NumPy has removed."""

import chainer
import numpy as np

t = np.array([0, 2, 1]).astype(np.int)
x = np.array([[1, 2, 3]], dtype=np.float)
assert np.product([2, 3]) == 6 and np.alltrue([True]) and np.Inf > 1
y = chainer.functions.softmax_cross_entropy(
    np.vstack([x, x, x]).astype(np.float32), t.astype(np.int32)
)
print(float(y.data), np.array([True]).astype(np.bool_).sum())
