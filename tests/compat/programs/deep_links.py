"""Imports links from the modules that define them."""

import chainer
import numpy as np
from chainer.links.activation.prelu import PReLU
from chainer.links.connection.convolution_2d import Convolution2D
from chainer.links.connection.embed_id import EmbedID
from chainer.links.connection.linear import Linear
from chainer.links.model.classifier import Classifier
from chainer.links.normalization.batch_normalization import BatchNormalization

rng = np.random.RandomState(0)
model = chainer.Sequential(
    Convolution2D(2, 3, 3, initialW=rng.standard_normal((3, 2, 3, 3)).astype("f")),
    BatchNormalization(3),
    PReLU(),
    Linear(48, 2, initialW=rng.standard_normal((2, 48)).astype("f")),
)
classifier = Classifier(model)
loss = classifier(rng.standard_normal((4, 2, 6, 6)).astype("f"), np.array([0, 1, 1, 0], "i"))
classifier.cleargrads()
loss.backward()
embed = EmbedID(4, 2, initialW=np.arange(8).reshape(4, 2).astype("f"))
print(loss.data, abs(model[0].W.grad).sum(), embed(np.array([1, 3], "i")).data.sum())
