"""Attention, and the layers of transformers."""

from collections.abc import Callable
from typing import Any

from mpchain import functions as F
from mpchain import observers
from mpchain.configuration import config
from mpchain.functions.attention import project_heads
from mpchain.functions.noise import add_dropout
from mpchain.link import Chain, Link
from mpchain.links.connection import Linear
from mpchain.links.normalization import LayerNormalization
from mpchain.typing import Array, InitialValue, Input
from mpchain.utils.arrays import converted
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_array


class MultiHeadAttention(Chain):
    """Multi-head attention.

    The link computes :func:`mpchain.functions.multi_head_attention`. It can cache the keys and
    values of earlier calls, to generate a sequence step by step.

        >>> attention = L.MultiHeadAttention(8, n_heads=2)
        >>> attention(np.ones((3, 5, 8), np.float32), is_causal=True).shape
        (3, 5, 8)

    Args:
        size: number of features of queries and of the result.
        n_heads: number of heads; it must divide ``size``.
        dropout: dropout ratio of the attention weights in training.
        key_size, value_size: numbers of features of keys and values; None means ``size``.
        nobias: whether to omit the biases.
        initialW: initializer of the weights; None means LeCunNormal.
        initial_bias: initializer of the biases; None means zeros.

    Attributes:
        query, key, value (Linear): the projections of all heads, with weights (size, size), (size,
            key_size) and (size, value_size).
        out (Linear): the map from the concatenated outputs of the heads to the result, with weights
            (size, size).

    Raises:
        ValueError: ``n_heads`` does not divide ``size``.

    See A. Vaswani et al., Attention is all you need, NIPS 2017.
    """

    def __init__(
        self,
        size: int,
        n_heads: int,
        dropout: float = 0.0,
        *,
        key_size: int | None = None,
        value_size: int | None = None,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        super().__init__()
        if n_heads < 1 or size % n_heads:
            raise ValueError(f"MultiHeadAttention: n_heads={n_heads} must divide size={size}")
        self.size = size
        self.n_heads = n_heads
        self.dropout = dropout
        key_size = size if key_size is None else key_size
        value_size = size if value_size is None else value_size
        with self.init_scope():
            self.query = Linear(size, size, nobias, initialW, initial_bias)
            self.key = Linear(key_size, size, nobias, initialW, initial_bias)
            self.value = Linear(value_size, size, nobias, initialW, initial_bias)
            self.out = Linear(size, size, nobias, initialW, initial_bias)

    def forward(
        self,
        query: Input,
        key: Input | None = None,
        value: Input | None = None,
        *,
        mask: Array | None = None,
        is_causal: bool = False,
        cache: dict[str, Any] | None = None,
    ) -> Variable:
        """Computes the attention.

        Args:
            query: Variable or array (B, L, size).
            key: Variable or array (B, S, key_size); None means ``query`` (self-attention).
            value: Variable or array (B, S, value_size); None means ``key``.
            mask: array of bool that broadcasts to (B, n_heads, L, S): True where a query may
                attend to a key; (B, 1, 1, S) masks the padding of the keys.
            is_causal: whether each query ignores the keys of later positions; the last query has
                the position of the last key.
            cache: a dict, initially empty. In self-attention, each call appends its keys and values
                to the keys and values of earlier calls, and S is the total number of keys. If
                ``key`` is given, later calls reuse the keys and values of the first call.

        Returns:
            Variable (B, L, size).

        Raises:
            InvalidType: a shape or dtype is wrong.
        """
        for name, x in {"query": query, "key": key, "value": value}.items():
            check(x is None or x.ndim == 3, "MultiHeadAttention", f"{name} must have 3 axes", x=x)
        if cache and key is not None:
            q, k, v = self._heads(self.query, query), cache["key"], cache["value"]
        else:
            q, k, v = self._project(query, key, value)
            if cache:
                k, v = F.concat([cache["key"], k], 2), F.concat([cache["value"], v], 2)
            if cache is not None:
                cache.update(key=k, value=v)
        if is_causal and k.shape[2] != q.shape[2]:
            mask, is_causal = _causal_mask(self.xp, q.shape[2], k.shape[2], mask), False
        y = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=is_causal, dropout_ratio=self.dropout
        )
        y = F.reshape(F.transpose(y, (0, 2, 1, 3)), query.shape)
        return self.out(y, n_batch_axes=2)

    def _project(self, query, key, value):
        """Returns the queries, keys and values of all heads, (B, n_heads, L or S, D)."""
        links = self.query, self.key, self.value
        if key is value is None and all(map(_is_plain, links)):
            weights, biases = zip(*((link.W, link.b) for link in links))
            return project_heads(query, weights, biases, self.n_heads)
        key = query if key is None else key
        inputs = query, key, key if value is None else value
        return [self._heads(link, x) for link, x in zip(links, inputs)]

    def _heads(self, projection, x):
        """Projects (B, L, I) to (B, n_heads, L, D)."""
        y = F.reshape(projection(x, n_batch_axes=2), (*x.shape[:2], self.n_heads, -1))
        return F.transpose(y, (0, 2, 1, 3))


def _is_plain(link):
    """Returns whether a projection is a Linear link that computes only its linear map, without
    hooks."""
    is_seen = config.link_hooks or link.local_link_hooks or observers.see_links()
    return type(link) is Linear and link.W.is_initialized and not is_seen


def _causal_mask(xp, n_queries, n_keys, mask):
    """Returns the causal mask, combined with ``mask``: True where a query may attend to a key. The
    last query has the position of the last key."""
    allowed = xp.arange(n_keys) <= xp.arange(n_queries)[:, None] + (n_keys - n_queries)
    return allowed if mask is None else allowed & converted(xp, as_array(mask))


class _TransformerLayer(Chain):
    """Base of transformer layers, whose sublayers have normalization, dropout and a residual
    connection."""

    def __init__(self, size, hidden_size, dropout, activation, pre_norm):
        super().__init__()
        self.dropout = dropout
        self.activation = activation
        self.pre_norm = pre_norm
        hidden_size = 4 * size if hidden_size is None else hidden_size
        with self.init_scope():
            self.linear1 = Linear(size, hidden_size)
            self.linear2 = Linear(hidden_size, size)

    def _residual(self, x, norm, sublayer):
        """Adds the output of a sublayer to x, and normalizes the sublayer's input or the sum."""
        y = add_dropout(x, sublayer(norm(x) if self.pre_norm else x), self.dropout)
        return y if self.pre_norm else norm(y)

    def _feed_forward(self, x):
        h = self.activation(self.linear1(x, n_batch_axes=2))
        return self.linear2(F.dropout(h, self.dropout), n_batch_axes=2)


class TransformerEncoderLayer(_TransformerLayer):
    """Transformer encoder layer: self-attention, then a feed-forward network at each position.

        >>> layer = L.TransformerEncoderLayer(8, n_heads=2)
        >>> layer(np.ones((3, 5, 8), np.float32), is_causal=True).shape
        (3, 5, 8)

    Args:
        size: number of features.
        n_heads: number of heads; it must divide ``size``.
        hidden_size: number of hidden features of the feed-forward network; None means 4 size.
        dropout: dropout ratio of attention weights, hidden features, and outputs of sublayers.
        activation: function of the hidden features.
        pre_norm: whether to normalize the inputs of sublayers, x + f(norm(x)); the paper normalizes
            the sums, norm(x + f(x)).
        normalization: a function that makes a normalization link for a number of features.

    Attributes:
        attention (MultiHeadAttention): the self-attention.
        linear1, linear2 (Linear): the feed-forward network: weights (hidden_size, size) and
            (size, hidden_size).
        norm1, norm2: the normalizations of the attention and of the feed-forward network.

    See A. Vaswani et al., Attention is all you need, NIPS 2017; for ``pre_norm``, R. Xiong et al.,
    On layer normalization in the transformer architecture, ICML 2020.
    """

    def __init__(
        self,
        size: int,
        n_heads: int,
        hidden_size: int | None = None,
        dropout: float = 0.1,
        *,
        activation: Callable[[Variable], Variable] = F.relu,
        pre_norm: bool = False,
        normalization: Callable[[int], Link] = LayerNormalization,
    ) -> None:
        super().__init__(size, hidden_size, dropout, activation, pre_norm)
        with self.init_scope():
            self.attention = MultiHeadAttention(size, n_heads, dropout)
            self.norm1 = normalization(size)
            self.norm2 = normalization(size)

    def forward(
        self,
        x: Input,
        *,
        mask: Array | None = None,
        is_causal: bool = False,
        cache: dict[str, Any] | None = None,
    ) -> Variable:
        """Applies the layer.

        Args:
            x: Variable or array (B, L, size).
            mask, is_causal, cache: see :meth:`MultiHeadAttention.forward`.

        Returns:
            Variable (B, L, size).
        """
        options = {"mask": mask, "is_causal": is_causal, "cache": cache}
        x = self._residual(x, self.norm1, lambda h: self.attention(h, **options))
        return self._residual(x, self.norm2, self._feed_forward)


class TransformerDecoderLayer(_TransformerLayer):
    """Transformer decoder layer: causal self-attention, cross-attention, feed-forward network.

        >>> layer = L.TransformerDecoderLayer(8, n_heads=2)
        >>> y, source = np.ones((3, 5, 8), np.float32), np.ones((3, 7, 8), np.float32)
        >>> layer(y, source).shape
        (3, 5, 8)

    Args:
        size, n_heads, hidden_size, dropout, activation, pre_norm, normalization: see
            :class:`TransformerEncoderLayer`.

    Attributes:
        self_attention, source_attention (MultiHeadAttention): self-attention, and cross-attention
            to the source sequence.
        linear1, linear2 (Linear): the feed-forward network: weights (hidden_size, size) and
            (size, hidden_size).
        norm1, norm2, norm3: the normalizations of the two attentions and the feed-forward network.

    See A. Vaswani et al., Attention is all you need, NIPS 2017.
    """

    def __init__(
        self,
        size: int,
        n_heads: int,
        hidden_size: int | None = None,
        dropout: float = 0.1,
        *,
        activation: Callable[[Variable], Variable] = F.relu,
        pre_norm: bool = False,
        normalization: Callable[[int], Link] = LayerNormalization,
    ) -> None:
        super().__init__(size, hidden_size, dropout, activation, pre_norm)
        with self.init_scope():
            self.self_attention = MultiHeadAttention(size, n_heads, dropout)
            self.source_attention = MultiHeadAttention(size, n_heads, dropout)
            self.norm1 = normalization(size)
            self.norm2 = normalization(size)
            self.norm3 = normalization(size)

    def forward(
        self,
        x: Input,
        source: Input,
        *,
        mask: Array | None = None,
        source_mask: Array | None = None,
        is_causal: bool = True,
        cache: dict[str, Any] | None = None,
    ) -> Variable:
        """Applies the layer.

        Args:
            x: Variable or array (B, L, size).
            source: Variable or array (B, S, size): the output of the encoder.
            mask: array of bool that broadcasts to (B, n_heads, L, L), for the self-attention; with
                ``cache``, the last size is the number of positions in all calls so far.
            source_mask: array of bool that broadcasts to (B, n_heads, L, S).
            is_causal: whether to mask later positions in the self-attention.
            cache: a dict, initially empty, for passing a sequence in several calls; see
                :meth:`MultiHeadAttention.forward`.

        Returns:
            Variable (B, L, size).
        """
        own = None if cache is None else cache.setdefault("self", {})
        others = None if cache is None else cache.setdefault("source", {})
        options = {"mask": mask, "is_causal": is_causal, "cache": own}
        x = self._residual(x, self.norm1, lambda h: self.self_attention(h, **options))
        options = {"mask": source_mask, "cache": others}
        x = self._residual(x, self.norm2, lambda h: self.source_attention(h, source, **options))
        return self._residual(x, self.norm3, self._feed_forward)
