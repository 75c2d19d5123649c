"""Models that tests of several folders train."""

from collections.abc import Callable

import mpchain
import mpchain.functions as F
import mpchain.links as L


class MLP(mpchain.Chain):
    """Two linear layers.

    Args:
        n_in: units of the input; if it is None, the first use initializes the parameters.
        ratio: the share of hidden units that dropout sets to zero; None omits dropout.
        n_units: units of the hidden layer.
        n_out: units of the output.
        activation: function of the hidden units.
        normalization: a link between the first layer and the activation; None omits it.
    """

    def __init__(
        self,
        n_in: int | None = 3,
        ratio: float | None = None,
        n_units: int = 4,
        n_out: int = 2,
        activation: Callable = F.tanh,
        normalization: mpchain.Link | None = None,
    ):
        super().__init__()
        self.ratio, self.activation = ratio, activation
        with self.init_scope():
            self.l1 = L.Linear(n_in, n_units)
            self.l2 = L.Linear(None if n_in is None else n_units, n_out)
            if normalization is not None:
                self.normalization = normalization

    def forward(self, x):
        h = self.l1(x)
        if hasattr(self, "normalization"):
            h = self.normalization(h)
        h = self.activation(h)
        return self.l2(h if self.ratio is None else F.dropout(h, self.ratio))

    def loss(self, x, t):
        return F.mean_squared_error(self(x), t)


class Recurrent(mpchain.Chain):
    """A linear layer over the state of a recurrent one, which continues from batch to batch.

    Args:
        kind: class of the recurrent layer, such as :class:`~mpchain.links.LSTM`.
        n_in, n_units, n_out: units of the input, of the state and of the output.
        unchains: whether gradients end at the state that the previous batch left.
    """

    def __init__(self, kind: type, n_in: int, n_units: int, n_out: int, unchains: bool = False):
        super().__init__()
        self.unchains = unchains
        with self.init_scope():
            self.layer, self.out = kind(n_in, n_units), L.Linear(n_units, n_out)

    def forward(self, x):
        if self.unchains and self.layer.h is not None:
            self.layer.h.unchain_backward()
            self.layer.c.unchain_backward()
        return self.out(self.layer(x))


class LanguageModel(mpchain.Chain):
    """An embedding, an LSTM, and the scores of the next word.

    Args:
        n_words: size of the vocabulary.
        size: units of the embedding.
        n_units: units of the state; None means as many as the embedding has.
    """

    def __init__(self, n_words: int, size: int, n_units: int | None = None):
        super().__init__()
        n_units = n_units or size
        with self.init_scope():
            self.embed, self.lstm = L.EmbedID(n_words, size), L.LSTM(size, n_units)
            self.out = L.Linear(n_units, n_words)

    def forward(self, words):
        return self.out(self.lstm(self.embed(words)))

    def read(self, texts):
        """Returns the scores after each word of texts (N, T), from a new state."""
        self.lstm.reset_state()
        return [LanguageModel.forward(self, texts[:, t]) for t in range(texts.shape[1])]
