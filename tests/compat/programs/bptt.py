"""Trains by truncated backpropagation through time, with an updater."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training


class RNNForLM(chainer.Chain):
    def __init__(self, n_vocab, n_units):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(n_vocab, n_units)
            self.l1 = L.LSTM(n_units, n_units)
            self.l2 = L.Linear(n_units, n_vocab)
        for param in self.params():
            param.data[...] = np.random.uniform(-0.1, 0.1, param.data.shape)

    def reset_state(self):
        self.l1.reset_state()

    def __call__(self, x):
        return self.l2(F.dropout(self.l1(F.dropout(self.embed(x), ratio=0.0)), ratio=0.0))


class ParallelSequentialIterator(chainer.dataset.Iterator):
    def __init__(self, dataset, batch_size):
        self.dataset, self.batch_size = dataset, batch_size
        self.epoch, self.is_new_epoch, self.iteration = 0, False, 0
        self.offsets = [i * len(dataset) // batch_size for i in range(batch_size)]

    def __next__(self):
        words = [self.dataset[(o + self.iteration) % len(self.dataset)] for o in self.offsets]
        self.iteration += 1
        following = [self.dataset[(o + self.iteration) % len(self.dataset)] for o in self.offsets]
        epoch = self.iteration * self.batch_size // len(self.dataset)
        self.is_new_epoch, self.epoch = self.epoch < epoch, epoch
        return list(zip(words, following))

    @property
    def epoch_detail(self):
        return self.iteration * self.batch_size / len(self.dataset)

    next = __next__


class BPTTUpdater(training.updaters.StandardUpdater):
    def __init__(self, train_iter, optimizer, bprop_len, device):
        super().__init__(train_iter, optimizer, device=device)
        self.bprop_len = bprop_len

    def update_core(self):
        loss = 0
        train_iter = self.get_iterator("main")
        optimizer = self.get_optimizer("main")
        for i in range(self.bprop_len):
            x, t = self.converter(train_iter.__next__(), self.device)
            loss += optimizer.target(chainer.Variable(x), chainer.Variable(t))
        optimizer.target.cleargrads()
        loss.backward()
        loss.unchain_backward()
        optimizer.update()


np.random.seed(0)
words = np.random.randint(0, 8, 60).astype(np.int32)
model = L.Classifier(RNNForLM(8, 6))
model.compute_accuracy = False
optimizer = chainer.optimizers.SGD(lr=1.0)
optimizer.setup(model)
optimizer.add_hook(chainer.optimizer.GradientClipping(5))
updater = BPTTUpdater(ParallelSequentialIterator(words, 4), optimizer, 5, -1)
trainer = training.Trainer(updater, (3, "epoch"))
trainer.extend(training.extensions.LogReport(trigger=(3, "iteration")))
trainer.run()
print(*[entry["main/loss"] for entry in trainer.get_extension("LogReport").log])
