"""Stores molecules of unequal sizes in arrays, splits them by scaffolds, and uses sentences of
unequal lengths."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

rng = np.random.RandomState(3)
scaffolds = {"ring": [0, 4, 5], "chain": [1, 3], "none": [2]}
order = rng.permutation(sorted(scaffolds.values(), key=len))
train = [index for group in order for index in group][:4]

atoms = np.array([np.array([i % 5 + 1] * (i + 2), np.int32) for i in range(6)])
labels = np.array([0, 1, 0, 1, 0, 1], np.int32)
dataset = chainer.datasets.TupleDataset(atoms[train], labels[train])
chosen = rng.choice([[6, 7], [8]])

embed = L.EmbedID(6, 4, initialW=rng.normal(size=(6, 4)).astype("f"))
out = L.Linear(4, 2, initialW=rng.normal(size=(2, 4)).astype("f"))
model = chainer.ChainList(embed, out)
optimizer = chainer.optimizers.SGD(0.1).setup(model)
for _ in range(3):
    sentences, targets = chainer.dataset.concat_examples(dataset[:], padding=0)
    loss = F.softmax_cross_entropy(out(F.sum(embed(sentences), axis=1)), targets)
    model.cleargrads()
    loss.backward()
    optimizer.update()
lengths = np.array([len(a) for a in np.asarray([list(a) for a in atoms])], copy=False)
print(train, chosen, atoms.dtype, lengths.sum(), float(loss.array))
