"""The models of the equality suite, with data: small models of several kinds."""

import numpy as np

import mpchain
from mpchain import distributions
from mpchain import functions as F
from mpchain import links as L
from mpchain.link import Chain

N_SAMPLES = 45
N_WORDS = 11


class Model(Chain):
    """A model that may drop activations."""

    ratio = 0.0

    def drop(self, x):
        return F.dropout(x, self.ratio) if self.ratio else x


class MLP(Model):
    """A classifier with layer normalization."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, 16)
            self.norm = L.LayerNormalization()
            self.l2 = L.Linear(None, 4)

    def forward(self, x, t):
        return F.softmax_cross_entropy(self.l2(self.drop(F.tanh(self.norm(self.l1(x))))), t)

    @staticmethod
    def samples(random):
        return random.normal(size=(N_SAMPLES, 10)), random.randint(4, size=N_SAMPLES)


class CNN(Model):
    """A classifier of images with group normalization."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(None, 6, 3, pad=1)
            self.norm1 = L.GroupNormalization(2)
            self.conv2 = L.Convolution2D(None, 8, 3, stride=2)
            self.norm2 = L.GroupNormalization(4)
            self.l = L.Linear(None, 3)

    def forward(self, x, t):
        h = self.drop(F.max_pooling_2d(F.relu(self.norm1(self.conv1(x))), 2))
        return F.softmax_cross_entropy(self.l(F.leaky_relu(self.norm2(self.conv2(h)))), t)

    @staticmethod
    def samples(random):
        return random.normal(size=(N_SAMPLES, 2, 10, 10)), random.randint(3, size=N_SAMPLES)


class WGANGP(Model):
    """A critic that is penalized where the norm of its gradient is not one."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, 16)
            self.norm = L.LayerNormalization()
            self.l2 = L.Linear(None, 12)
            # The gradient of a bias would be zero except for rounding errors, which Adam turns into
            # steps.
            self.l3 = L.Linear(None, 1, nobias=True)

    def critic(self, x):
        h = self.drop(F.leaky_relu(self.norm(self.l1(x))))
        return self.l3(F.tanh(self.l2(h)))

    def forward(self, real, fake, mixture):
        if self.ratio:  # then all noise is drawn within the update
            draw = distributions.Uniform(low=np.zeros(()), high=np.ones(()))
            mixture = draw.sample(len(real)).array.astype(real.dtype)
            fake = F.gaussian(fake, np.zeros_like(fake)).array
        between = mpchain.Variable(mixture[:, None] * real + (1 - mixture[:, None]) * fake)
        y = self.critic(between)
        (gradient,) = mpchain.grad([y], [between], enable_double_backprop=True)
        norm = F.sqrt(F.sum(gradient**2, axis=1))
        distance = F.mean(self.critic(fake)) - F.mean(self.critic(real))
        return distance + 10 * F.mean((norm - 1) ** 2)

    @staticmethod
    def samples(random):
        real, fake = random.normal(size=(2, N_SAMPLES, 6))
        return real + 1, fake, random.uniform(size=N_SAMPLES)


class R1(Model):
    """A convolutional critic with a penalty on its gradient at real images."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(None, 6, 3)
            self.norm = L.GroupNormalization(2)
            self.l = L.Linear(None, 1)

    def critic(self, x):
        return self.l(self.drop(F.softplus(self.norm(self.conv(x)))))

    def forward(self, real, fake):
        real = mpchain.Variable(real)
        y = self.critic(real)
        (gradient,) = mpchain.grad([y], [real], enable_double_backprop=True)
        penalty = F.sum(gradient**2) / len(real)
        return F.mean(F.softplus(-y)) + F.mean(F.softplus(self.critic(fake))) + 5 * penalty

    @staticmethod
    def samples(random):
        real, fake = random.normal(size=(2, N_SAMPLES, 1, 6, 6))
        return real + 0.5, fake


class LanguageModel(Model):
    """Predicts each next word by an LSTM with layer normalization."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(N_WORDS, 8)
            self.lstm = L.LSTM(8, 12)
            self.norm = L.LayerNormalization(12)
            self.l = L.Linear(12, N_WORDS)

    def forward(self, words):
        self.lstm.reset_state()
        loss = 0
        for now, following in zip(words.T[:-1], words.T[1:]):
            y = self.l(self.drop(self.norm(self.lstm(self.embed(now)))))
            loss += F.softmax_cross_entropy(y, following)
        return loss / (words.shape[1] - 1)

    @staticmethod
    def samples(random):
        return (random.randint(N_WORDS, size=(N_SAMPLES, 7)),)


class Seq2seq(Model):
    """Translates sequences of different lengths, with layer normalization of the decoder."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed_x = L.EmbedID(N_WORDS, 6)
            self.embed_y = L.EmbedID(N_WORDS, 6)
            n_layers = 2 if self.ratio else 1
            self.encoder = L.NStepLSTM(n_layers, 6, 8, self.ratio)
            self.decoder = L.NStepLSTM(n_layers, 6, 8, self.ratio)
            self.norm = L.LayerNormalization(8)
            self.l = L.Linear(8, N_WORDS)

    def forward(self, words, n_words):
        xs = [row[:n] for row, n in zip(words, n_words)]
        ys = [row[n // 2 :] for row, n in zip(words, n_words)]
        h, c, _ = self.encoder(None, None, [self.embed_x(x) for x in xs])
        _, _, outputs = self.decoder(h, c, [self.embed_y(y[:-1]) for y in ys])
        logits = self.l(self.norm(F.concat(outputs, axis=0)))
        targets = np.concatenate([y[1:] for y in ys])
        # The mean is over sentences, so the number of sentences is a batch's weight.
        return F.sum(F.softmax_cross_entropy(logits, targets, reduce="no")) / len(words)

    @staticmethod
    def samples(random):
        words = random.randint(N_WORDS, size=(N_SAMPLES, 8))
        return words, random.randint(2, 7, size=N_SAMPLES)


class Tagger(Model):
    """Labels the words of sentences; many words have no label, and their number differs between
    sentences."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(N_WORDS, 8)
            self.norm = L.LayerNormalization(8)
            self.l = L.Linear(8, 4)

    def forward(self, words, labels):
        h = self.drop(F.tanh(self.norm(self.embed(words.reshape(-1)))))
        y = F.reshape(self.l(h), (*words.shape, -1))
        loss = F.softmax_cross_entropy(F.swapaxes(y, 1, 2), labels)
        return loss + F.focal_loss(y[:, :, 0], np.minimum(labels, 1))

    @staticmethod
    def samples(random):
        labels = random.randint(-1, 4, size=(N_SAMPLES, 7))
        labels[np.arange(N_SAMPLES) % 4 < 2, 1:] = -1
        return random.randint(N_WORDS, size=(N_SAMPLES, 7)), labels


MODELS = {
    "MLP": MLP,
    "CNN": CNN,
    "WGAN-GP": WGANGP,
    "R1": R1,
    "LSTM LM": LanguageModel,
    "seq2seq": Seq2seq,
    "tagger": Tagger,
}
MODELS |= {
    f"{name} dropout": type(f"{kind.__name__}WithDropout", (kind,), {"ratio": 0.3})
    for name, kind in MODELS.items()
}
