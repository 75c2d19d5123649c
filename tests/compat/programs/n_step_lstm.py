"""Runs a sequence-to-sequence model of NStepLSTM."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

np.random.seed(0)


class Seq2seq(chainer.Chain):
    def __init__(self, n_layers, n_vocab, n_units):
        super().__init__()
        with self.init_scope():
            self.embed_x = L.EmbedID(n_vocab, n_units)
            self.embed_y = L.EmbedID(n_vocab, n_units)
            self.encoder = L.NStepLSTM(n_layers, n_units, n_units, 0.0)
            self.decoder = L.NStepLSTM(n_layers, n_units, n_units, 0.0)
            self.W = L.Linear(n_units, n_vocab)

    def forward(self, xs, ys):
        exs = F.split_axis(
            self.embed_x(F.concat(xs, axis=0)), np.cumsum([len(x) for x in xs[:-1]]), 0
        )
        eys = F.split_axis(
            self.embed_y(F.concat(ys, axis=0)), np.cumsum([len(y) for y in ys[:-1]]), 0
        )
        hx, cx, _ = self.encoder(None, None, exs)
        _, _, os = self.decoder(hx, cx, eys)
        return F.softmax_cross_entropy(self.W(F.concat(os, axis=0)), F.concat(ys, axis=0))


model = Seq2seq(2, 7, 5)
optimizer = chainer.optimizers.Adam()
optimizer.setup(model)
xs = [np.random.randint(0, 7, n).astype("i") for n in (4, 2, 3)]
ys = [np.random.randint(0, 7, n).astype("i") for n in (3, 3, 2)]
losses = []
for _ in range(3):
    optimizer.update(model, xs, ys)
    losses.append(float(model(xs, ys).data))
print(*losses)
