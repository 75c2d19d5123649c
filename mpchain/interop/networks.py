"""Networks of torchvision and Hugging Face, which load these libraries' weights by name."""

import functools

import numpy as np

from mpchain import functions as F
from mpchain import links as L
from mpchain.initializers import HeNormal, Normal
from mpchain.interop.rules import Tensor, rule
from mpchain.link import Chain, ChainList, Sequential
from mpchain.typing import Array, Input
from mpchain.variable import Variable, as_array

# This dict tells, for each depth, whether the blocks are bottlenecks, and how many each stage has.
_RESNETS = {
    18: (False, (2, 2, 2, 2)),
    34: (False, (3, 4, 6, 3)),
    50: (True, (3, 4, 6, 3)),
    101: (True, (3, 4, 23, 3)),
    152: (True, (3, 8, 36, 3)),
}


def _convolution(n_in, n_out, ksize, stride=1):
    options = {"nobias": True, "initialW": HeNormal()}
    return L.Convolution2D(n_in, n_out, ksize, stride, ksize // 2, **options)


class _Block(Chain):
    """A residual block of two convolutions, or a bottleneck of three."""

    def __init__(self, n_in, n_mid, is_bottleneck, stride):
        super().__init__()
        n_out = 4 * n_mid if is_bottleneck else n_mid
        if is_bottleneck:
            convolutions = [(n_in, n_mid, 1), (n_mid, n_mid, 3, stride), (n_mid, n_out, 1)]
        else:
            convolutions = [(n_in, n_mid, 3, stride), (n_mid, n_mid, 3)]
        self.n = len(convolutions)
        with self.init_scope():
            for i, sizes in enumerate(convolutions, 1):
                setattr(self, f"conv{i}", _convolution(*sizes))
                setattr(self, f"bn{i}", L.BatchNormalization(sizes[1], eps=1e-5))
            self.downsample = Sequential()
            if stride > 1 or n_in != n_out:
                self.downsample.append(_convolution(n_in, n_out, 1, stride))
                self.downsample.append(L.BatchNormalization(n_out, eps=1e-5))

    def forward(self, x):
        h = x
        for i in range(1, self.n + 1):
            h = self[f"bn{i}"](self[f"conv{i}"](h))
            h = F.relu(h) if i < self.n else h
        return F.relu(h + (self.downsample(x) if len(self.downsample) else x))


class ResNet(Chain):
    """A residual network like torchvision's ``resnet18`` to ``resnet152``.

    :class:`mpchain.links.ResNet50Layers` is the network of the paper's Caffe files instead, which
    pools and strides in other layers.

        >>> model = mpchain.interop.ResNet(18, n_classes=10)
        >>> model.count_params()
        11181642

    Args:
        n_layers: the number of layers: 18, 34, 50, 101 or 152.
        n_classes: the number of classes, which is the number of outputs.

    Raises:
        ValueError: the number of layers is unknown.

    See K. He et al., Deep residual learning for image recognition, CVPR 2016.
    """

    def __init__(self, n_layers: int, n_classes: int = 1000) -> None:
        super().__init__()
        if n_layers not in _RESNETS:
            known = ", ".join(map(str, _RESNETS))
            raise ValueError(f"ResNet: n_layers must be one of {known}, not {n_layers}")
        is_bottleneck, depths = _RESNETS[n_layers]
        n_in = 64
        with self.init_scope():
            self.conv1 = _convolution(3, 64, 7, 2)
            self.bn1 = L.BatchNormalization(64, eps=1e-5)
            for i, depth in enumerate(depths):
                blocks = Sequential()
                for k in range(depth):
                    blocks.append(_Block(n_in, 64 << i, is_bottleneck, 2 if i and not k else 1))
                    n_in = (256 if is_bottleneck else 64) << i
                setattr(self, f"layer{i + 1}", blocks)
            self.fc = L.Linear(n_in, n_classes)

    def forward(self, x: Input) -> Variable:
        """Computes the scores, before softmax, of images x (N, 3, H, W): (N, n_classes)."""
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.max_pooling_2d(h, 3, 2, 1, cover_all=False)
        for i in range(1, 5):
            h = self[f"layer{i}"](h)
        return self.fc(F.mean(h, axis=(2, 3)))


class GPT2(Chain):
    """The transformer of GPT-2, equivalent to Hugging Face's ``GPT2Model``.

    The weights of ``GPT2LMHeadModel`` load with ``prefix="transformer."``.

        >>> model = mpchain.interop.GPT2(n_layers=2, size=8, n_heads=2, n_words=100)
        >>> ids = np.array([[3, 1, 4]])
        >>> model(ids).shape, model.scores(ids).shape
        ((1, 3, 8), (1, 3, 100))

    Args:
        n_layers, size, n_heads: the numbers of layers, features and attention heads.
        n_words, n_positions: the size of the vocabulary and the length of the longest text.
        dropout: dropout ratio in training.

    See A. Radford et al., Language models are unsupervised multitask learners, 2019.
    """

    def __init__(
        self,
        n_layers: int = 12,
        size: int = 768,
        n_heads: int = 12,
        n_words: int = 50257,
        n_positions: int = 1024,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        gelu = functools.partial(F.gelu, approximate="tanh")
        options = {"pre_norm": True, "activation": gelu, "normalization": _norm(1e-5)}
        with self.init_scope():
            self.words = L.EmbedID(n_words, size, Normal(0.02))
            self.positions = L.EmbedID(n_positions, size, Normal(0.02))
            self.layers = ChainList(
                *[
                    L.TransformerEncoderLayer(size, n_heads, dropout=dropout, **options)
                    for _ in range(n_layers)
                ]
            )
            self.norm = L.LayerNormalization(size, 1e-5)

    def forward(self, ids: Input) -> Variable:
        """Computes the features of texts: from integers (B, L) to (B, L, size)."""
        h = F.dropout(self.words(ids) + self.positions(self.xp.arange(ids.shape[1])), self.dropout)
        for layer in self.layers:
            h = layer(h, is_causal=True)
        return self.norm(h)

    def scores(self, ids: Input) -> Variable:
        """Computes the scores of the next word, before softmax: (B, L, n_words)."""
        return F.linear(self(ids), self.words.W, n_batch_axes=2)


class BERT(Chain):
    """The encoder BERT, equivalent to Hugging Face's ``BertModel``.

    The weights of ``BertForMaskedLM`` and similar models load with ``prefix="bert."``; weights
    without a pooler need ``has_pooler=False``.

        >>> model = mpchain.interop.BERT(n_layers=2, size=8, n_heads=2, n_words=100)
        >>> features = model(np.array([[3, 1, 4]]))
        >>> features.shape, model.pooled(features).shape
        ((1, 3, 8), (1, 8))

    Args:
        n_layers, size, n_heads: the numbers of layers, features and attention heads.
        n_words, n_positions, n_types: the size of the vocabulary, the length of the longest text,
            and the number of segment types.
        dropout: dropout ratio in training.
        has_pooler: whether there is a layer that computes a feature vector of the text.

    See J. Devlin et al., BERT: pre-training of deep bidirectional transformers for language
    understanding, NAACL 2019.
    """

    def __init__(
        self,
        n_layers: int = 12,
        size: int = 768,
        n_heads: int = 12,
        n_words: int = 30522,
        n_positions: int = 512,
        n_types: int = 2,
        dropout: float = 0.1,
        has_pooler: bool = True,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        options = {"activation": F.gelu, "normalization": _norm(1e-12)}
        with self.init_scope():
            self.words = L.EmbedID(n_words, size, Normal(0.02))
            self.positions = L.EmbedID(n_positions, size, Normal(0.02))
            self.types = L.EmbedID(n_types, size, Normal(0.02))
            self.norm = L.LayerNormalization(size, 1e-12)
            self.layers = ChainList(
                *[
                    L.TransformerEncoderLayer(size, n_heads, dropout=dropout, **options)
                    for _ in range(n_layers)
                ]
            )
            self.pooler = L.Linear(size, size) if has_pooler else None

    def forward(
        self, ids: Input, types: Input | None = None, mask: Array | None = None
    ) -> Variable:
        """Computes the features of texts.

        Args:
            ids: integers (B, L).
            types: integers (B, L): the segment types; None means type 0.
            mask: array (B, L), true (1) for words, false (0) for padding; None means no padding.

        Returns:
            Variable (B, L, size).
        """
        h = self.words(ids) + self.positions(self.xp.arange(ids.shape[1]))
        h = h + self.types(self.xp.zeros(1, np.int32) if types is None else types)
        h = F.dropout(self.norm(h), self.dropout)
        if mask is not None:
            mask = as_array(mask).astype(bool)[:, None, None, :]
        for layer in self.layers:
            h = layer(h, mask=mask)
        return h

    def pooled(self, features: Input) -> Variable:
        """Computes the features of texts, (B, size), from the features of their words.

        Raises:
            TypeError: the model was made with ``has_pooler=False``.
        """
        if self.pooler is None:
            raise TypeError(f"{type(self).__name__}.pooled: the model was made without a pooler")
        return F.tanh(self.pooler(features[:, 0]))


def _norm(eps):
    return lambda size: L.LayerNormalization(size, eps)


@rule(GPT2)
def _of_gpt2(model):
    """Maps Hugging Face's names to GPT-2's tensors; Hugging Face's matrices are transposed."""
    found = {"wte": model.words, "wpe": model.positions}
    for i, layer in enumerate(model.layers):
        attention, h = layer.attention, f"h.{i}"
        inputs = [attention.query, attention.key, attention.value]
        products = {
            "attn.c_attn": inputs,
            "attn.c_proj": [attention.out],
            "mlp.c_fc": [layer.linear1],
            "mlp.c_proj": [layer.linear2],
        }
        found |= {f"{h}.ln_1": layer.norm1, f"{h}.ln_2": layer.norm2}
        for name, links in products.items():
            found[f"{h}.{name}.weight"] = Tensor([link.W for link in links], is_transposed=True)
            found[f"{h}.{name}.bias"] = Tensor([link.b for link in links])
        for name in ("bias", "masked_bias"):  # older files contain these masks
            found[f"{h}.attn.{name}"] = Tensor()
    return found | {"ln_f": model.norm}


@rule(BERT)
def _of_bert(model):
    """Maps Hugging Face's names to BERT's tensors."""
    found = {
        "embeddings.word_embeddings": model.words,
        "embeddings.position_embeddings": model.positions,
        "embeddings.token_type_embeddings": model.types,
        "embeddings.LayerNorm": model.norm,
        "embeddings.position_ids": Tensor(),  # older files contain this tensor
    }
    for i, layer in enumerate(model.layers):
        attention, h = layer.attention, f"encoder.layer.{i}"
        for name in ("query", "key", "value"):
            found[f"{h}.attention.self.{name}"] = attention[name]
        found |= {
            f"{h}.attention.output.dense": attention.out,
            f"{h}.attention.output.LayerNorm": layer.norm1,
            f"{h}.intermediate.dense": layer.linear1,
            f"{h}.output.dense": layer.linear2,
            f"{h}.output.LayerNorm": layer.norm2,
        }
    return found | {"pooler.dense": model.pooler}
