"""Uses GRUs of unknown input size, which draw weights when a gate is first computed."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

words = []
for make, has_state in [
    (L.GRU, False),
    (L.StatefulGRU, False),
    (L.StatelessGRU, True),
]:
    np.random.seed(0)
    gru, x = make(None, 3), np.linspace(-1, 1, 12, dtype="f").reshape(2, 6)
    h = np.full((2, 3), 0.5, "f")
    for step in range(2):
        y = gru(h, x) if has_state else gru(x)
        h = y
        drawn = [gru.W_r.W.array, gru.W_z.W.array, gru.W.W.array]
        words += [None if W is None else abs(W).sum() for W in drawn]
    gru.cleargrads()
    F.sum(y * y).backward()
    words += [abs(p.grad).sum() for _, p in sorted(gru.namedparams())]

print(*words)
