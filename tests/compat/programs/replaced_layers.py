"""Replaces layers in place, and computes steps of an LSTM and a GRU without their links."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.functions.rnn.n_step_gru import _gru
from chainer.functions.rnn.n_step_lstm import _lstm

shown = []
model = chainer.Sequential(L.Linear(3), F.relu, L.Linear(4))
chain = chainer.ChainList(L.Linear(3), L.Linear(4))
for link in (model, chain):
    children = link._children
    shown.append(len(children))
    for i in range(len(children)):
        old, new = children[i], L.Linear(5 + i, initialW=1, initial_bias=i)
        children[i] = new
        children[i].name = str(i)
        if link is model:
            (place,) = [j for j, layer in enumerate(link._layers) if layer is old]
            link._layers[place] = new
    shown += [link[0].out_size, link[len(link) - 1].out_size]
    shown += [path for path, _ in link.namedlinks(skipself=True)]
shown.append(model(np.ones((1, 2), np.float32)).array.sum())

rng = np.random.RandomState(0)


def drawn(*shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


for n, step in ((4, _lstm), (3, _gru)):
    ws = [chainer.Variable(drawn(4, 3)) for _ in range(n)]
    ws += [chainer.Variable(drawn(4, 4)) for _ in range(n)]
    bs = [chainer.Variable(drawn(4)) for _ in range(2 * n)]
    h, c = step(drawn(2, 3), drawn(2, 4), drawn(2, 4) if n == 4 else None, ws, bs)
    F.sum(h).backward()
    shown += [h.array.sum(), "None" if c is None else c.array.sum()]
    shown += [ws[0].grad.sum(), ws[-1].grad.sum(), bs[1].grad.sum()]
print(*shown)
