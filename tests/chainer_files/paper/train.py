"""A program like those of papers in 2019: a small network learns which half of an image is
brighter.

Chainer 7.8.1 has written the log and the snapshot beside it: ``python train.py --out .``
"""

import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions


class Network(chainer.Chain):
    def __init__(self, n_out):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(None, 8, 3, pad=1)
            self.bn = L.BatchNormalization(8)
            self.conv2 = L.Convolution2D(8, 8, 3, pad=1)
            self.fc = L.Linear(None, n_out)

    def __call__(self, x):
        h = F.max_pooling_2d(F.relu(self.bn(self.conv1(x))), 2)
        h = F.average_pooling_2d(F.relu(self.conv2(h)), 2)
        return self.fc(h)


parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
parser.add_argument("--out", default="result")
args = parser.parse_args()

np.random.seed(0)
images = np.random.rand(160, 1, 8, 8).astype(np.float32)
labels = (images[:, 0, :, :4].mean(axis=(1, 2)) > images[:, 0, :, 4:].mean(axis=(1, 2))).astype("i")
model = L.Classifier(Network(2))
optimizer = chainer.optimizers.Adam(alpha=0.003)
optimizer.setup(model)
optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-4))
train = chainer.datasets.TupleDataset(images, labels)
train_iter = chainer.iterators.SerialIterator(train, 8)

updater = training.updaters.StandardUpdater(train_iter, optimizer)
trainer = training.Trainer(updater, (1, "epoch"), out=args.out)
trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
trainer.extend(extensions.snapshot(), trigger=(10, "iteration"))
if args.resume:
    chainer.serializers.load_npz(args.resume, trainer)
trainer.run()
