"""Reads gradients that were never cleared, and copies that share their parameters."""

import copy
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np


def state(param):
    g = param.grad
    return "None" if g is None else "unset" if np.isnan(g).all() else float(g.ravel()[0])


def loss(link):
    return F.sum(link(np.ones((1, 2), np.float32)))


seen = [state(chainer.Parameter(np.ones(2, np.float32))), state(chainer.Parameter(1, (2,)))]
for prepare in ("array", "cleargrad", "zerograd"):
    p = chainer.Parameter(1)
    prepared = getattr(p, prepare)
    if callable(prepared):
        prepared()
    p.initialize((2,))
    seen.append(state(p))
link = L.Linear(2, 2)
seen += [state(p) for p in (link.W, link.b, L.EmbedID(3, 2).W, L.BatchNormalization(2).gamma)]
loss(link).backward()
seen.append(state(link.W))
link.cleargrads()
seen.append(state(link.W))
link = L.Linear(2, 2)
optimizer = chainer.optimizers.SGD().setup(link)
optimizer.update()
seen.append(int(np.isnan(link.W.array).all()))
for n_in in (2, None):
    link = L.Linear(n_in, 2)
    optimizer = chainer.optimizers.SGD().setup(link)
    optimizer.update(lambda: loss(link))
    seen += [state(link.W), state(link.b)]
link = L.Linear(2, 2)
seen += [state(link.copy(mode).W) for mode in ("share", "copy", "init")]
seen += [state(p.W) for p in (copy.deepcopy(link), pickle.loads(pickle.dumps(link)))]

shared = link.copy()
further = shared.copy()
shared.W.array = np.full((2, 2), 7, np.float32)
shared.b.data = np.full(2, 3, np.float32)
shared.W.grad = np.ones((2, 2), np.float32)
seen += [link.W.array.sum(), further.W.array.sum(), link.b.array.sum(), state(link.W)]
seen += [int(link.W.array is further.W.array), int(link.copy("copy").W.array is link.W.array)]
own = copy.deepcopy(link)
own.W.array = np.zeros((2, 2), np.float32)
seen += [link.W.array.sum(), own.W.array.sum()]
del shared
link.W.array = np.ones((2, 2), np.float32)
seen.append(further.W.array.sum())
print(*seen)
