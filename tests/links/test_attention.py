"""Tests attention and transformer layers against PyTorch's modules: masks, and step by step."""

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain.utils.type_check import InvalidType
from tests.links.table import checks_of, row
from tests.reference import torch

pytestmark = pytest.mark.slow

B, N, S, SIZE, HEADS = 2, 3, 5, 4, 2
X, SOURCE = (B, N, SIZE), (B, S, SIZE)
PADDING = np.array([[1, 1, 1], [1, 1, 0]], bool)  # true marks keys that count
SOURCE_PADDING = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
CAUSAL = np.tri(N, dtype=bool)


def projections(path="", key_size=SIZE, value_size=SIZE):
    sizes = {"query": SIZE, "key": key_size, "value": value_size, "out": SIZE}
    shapes = {f"{path}{name}/W": (SIZE, n) for name, n in sizes.items()}
    return shapes | {f"{path}{name}/b": (SIZE,) for name in sizes}


def layer_params(attentions, hidden_size=7, has_beta=True):
    shapes = {k: v for path in attentions for k, v in projections(f"{path}/").items()}
    shapes |= {"linear1/W": (hidden_size, SIZE), "linear1/b": (hidden_size,)}
    shapes |= {"linear2/W": (SIZE, hidden_size), "linear2/b": (SIZE,)}
    for k in range(len(attentions) + 1):
        for name in ("gamma", "beta") if has_beta else ("gamma",):
            shapes[f"norm{k + 1}/{name}"] = (SIZE,)
    return shapes


def torch_attention_weights(w, path, name):
    """Returns mpchain's parameters under PyTorch's names."""
    parts = [w[f"{path}{p}/W"] for p in ("query", "key", "value")]
    if parts[0].shape == parts[1].shape == parts[2].shape:
        weights = {"in_proj_weight": torch.cat(parts)}
    else:
        weights = dict(zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), parts))
    weights["in_proj_bias"] = torch.cat([w[f"{path}{p}/b"] for p in ("query", "key", "value")])
    weights |= {"out_proj.weight": w[f"{path}out/W"], "out_proj.bias": w[f"{path}out/b"]}
    return {name + k: v for k, v in weights.items()}


def torch_multi_head_attention(mask=None, padding=None, **sizes):
    def reference(w, query, key=None, value=None):
        key = query if key is None else key
        value = key if value is None else value
        module = torch.nn.MultiheadAttention(SIZE, HEADS, batch_first=True, **sizes).double()
        options = {"attn_mask": forbidden(mask), "key_padding_mask": forbidden(padding)}
        arguments = (query, key, value)
        weights = torch_attention_weights(w, "", "")
        return torch.func.functional_call(module, weights, arguments, options)[0]

    return reference


def forbidden(allowed):
    """Returns PyTorch's mask, which marks hidden positions."""
    return None if allowed is None else torch.tensor(~allowed)


def torch_layer(module_class, attentions, options=None, **settings):
    """Returns a reference; ``attentions`` are pairs of names in mpchain and PyTorch."""

    def reference(w, *xs):
        module = module_class(
            SIZE, HEADS, 7, dropout=0.0, layer_norm_eps=1e-6, batch_first=True, **settings
        ).double()
        weights = {}
        for ours, theirs in attentions:
            weights |= torch_attention_weights(w, f"{ours}/", f"{theirs}.")
        for name in ("linear1", "linear2"):
            weights |= {f"{name}.weight": w[f"{name}/W"], f"{name}.bias": w[f"{name}/b"]}
        for k in range(len(attentions) + 1):
            norm = f"norm{k + 1}"
            weights |= {f"{norm}.weight": w[f"{norm}/gamma"], f"{norm}.bias": w[f"{norm}/beta"]}
        return torch.func.functional_call(module, weights, xs, options or {})

    return reference


ENCODER = torch.nn.TransformerEncoderLayer, [("attention", "self_attn")]
DECODER = (
    torch.nn.TransformerDecoderLayer,
    [("self_attention", "self_attn"), ("source_attention", "multihead_attn")],
)


def encoder(**options):
    return lambda: L.TransformerEncoderLayer(SIZE, HEADS, 7, dropout=0.0, **options)


def decoder(**options):
    return lambda: L.TransformerDecoderLayer(SIZE, HEADS, 7, dropout=0.0, **options)


ENCODER_PARAMS = layer_params(["attention"])
DECODER_PARAMS = layer_params(["self_attention", "source_attention"])

TABLE = [
    row(
        "MultiHeadAttention to itself",
        lambda: L.MultiHeadAttention(SIZE, HEADS),
        X,
        params=projections(),
        reference=torch_multi_head_attention(),
    ),
    row(
        "MultiHeadAttention causal",
        lambda: L.MultiHeadAttention(SIZE, HEADS),
        X,
        params=projections(),
        call=lambda link, x: link(x, is_causal=True),
        reference=torch_multi_head_attention(CAUSAL),
    ),
    row(
        "MultiHeadAttention to others with a mask",
        lambda: L.MultiHeadAttention(SIZE, HEADS, key_size=3, value_size=5),
        X,
        (B, S, 3),
        (B, S, 5),
        params=projections(key_size=3, value_size=5),
        call=lambda link, *xs: link(*xs, mask=link.device.send(SOURCE_PADDING)[:, None, None]),
        reference=torch_multi_head_attention(padding=SOURCE_PADDING, kdim=3, vdim=5),
    ),
    row(
        "MultiHeadAttention with dropout and without bias",
        lambda: L.MultiHeadAttention(SIZE, HEADS, 0.5, nobias=True),
        X,
        SOURCE,
        params={k: v for k, v in projections().items() if k.endswith("W")},
    ),
    row(
        "TransformerEncoderLayer",
        encoder(),
        X,
        params=ENCODER_PARAMS,
        reference=torch_layer(*ENCODER),
        orders=0,  # finite differences would cross the kinks of relu
    ),
    row(
        "TransformerEncoderLayer normalized before",
        encoder(pre_norm=True, activation=F.tanh),
        X,
        params=ENCODER_PARAMS,
        call=lambda link, x: link(x, is_causal=True, mask=link.device.send(PADDING)[:, None, None]),
        reference=torch_layer(
            *ENCODER,
            {
                "src_mask": torch.tensor(~CAUSAL),
                "src_key_padding_mask": torch.tensor(~PADDING),
            },
            norm_first=True,
            activation=torch.tanh,
        ),
    ),
    row(
        "TransformerEncoderLayer with another normalization",
        encoder(normalization=L.RMSNormalization, activation=F.tanh),
        X,
        params=layer_params(["attention"], has_beta=False),
    ),
    row(
        "TransformerDecoderLayer",
        decoder(),
        X,
        SOURCE,
        params=DECODER_PARAMS,
        reference=torch_layer(*DECODER, {"tgt_mask": torch.tensor(~CAUSAL)}),
        orders=0,
    ),
    row(
        "TransformerDecoderLayer normalized before",
        decoder(pre_norm=True, activation=F.tanh),
        X,
        SOURCE,
        params=DECODER_PARAMS,
        call=lambda link, x, source: link(
            x,
            source,
            is_causal=False,
            mask=link.device.send(PADDING)[:, None, None],
            source_mask=link.device.send(SOURCE_PADDING)[:, None, None],
        ),
        reference=torch_layer(
            *DECODER,
            {
                "tgt_key_padding_mask": torch.tensor(~PADDING),
                "memory_key_padding_mask": torch.tensor(~SOURCE_PADDING),
            },
            norm_first=True,
            activation=torch.tanh,
        ),
        eps=1e-4,  # three nested normalizations have large curvature
    ),
]
globals().update(checks_of(TABLE))


def f(*shape):
    return np.random.randn(*shape).astype(np.float32)


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1, 1, 1, 1, 1), (3, 2, 1), (6,)])
def test_a_sequence_given_in_parts(pre_norm, lengths):
    x, source = f(2, 6, SIZE), f(2, S, SIZE)
    layer = L.TransformerDecoderLayer(SIZE, HEADS, dropout=0.0, pre_norm=pre_norm)
    stack = [L.TransformerEncoderLayer(SIZE, HEADS, dropout=0.0) for _ in range(2)]

    def run(x, caches):
        y = layer(x, source, cache=caches[0])
        for inner, cache in zip(stack, caches[1:]):
            y = inner(y, is_causal=True, cache=cache)
        return y.array

    whole, caches = run(x, [None] * 3), [{}, {}, {}]
    bounds = np.cumsum(lengths)[:-1]
    parts = [run(part, caches) for part in np.split(x, bounds, axis=1)]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, 1e-4, 1e-5)
    assert caches[0]["self"]["key"].shape == (2, HEADS, 6, SIZE // HEADS)
    assert caches[0]["source"]["value"].shape == (2, HEADS, S, SIZE // HEADS)


def test_a_mask_beside_the_cache():
    attention, x = L.MultiHeadAttention(SIZE, HEADS), f(2, 3, SIZE)
    mask = PADDING[:, None, None]
    whole = attention(x, is_causal=True, mask=mask).array
    cache = {}
    first = attention(x[:, :2], is_causal=True, mask=mask[..., :2], cache=cache).array
    last = attention(x[:, 2:], is_causal=True, mask=mask, cache=cache).array
    np.testing.assert_allclose(np.concatenate([first, last], 1), whole, 1e-4, 1e-5)


def test_keys_of_others_are_computed_once():
    attention, x, source, cache = L.MultiHeadAttention(SIZE, HEADS), f(*X), f(*SOURCE), {}
    first = attention(x, source, cache=cache).array
    again = attention(x, np.full_like(source, np.nan), cache=cache).array
    np.testing.assert_array_equal(first, again)


def test_no_gradient_comes_from_later_places():
    layer = L.TransformerDecoderLayer(SIZE, HEADS, dropout=0.0)
    x = mpchain.Variable(f(1, 4, SIZE))
    y = layer(x, f(1, 2, SIZE))
    F.sum(y[:, 1] ** 2).backward()
    reached = np.abs(x.grad).sum((0, 2)) > 0
    assert reached.tolist() == [True, True, False, False]


@pytest.mark.parametrize("pre_norm", [False, True])
def test_dropout_in_training_only(pre_norm):
    layer, x = L.TransformerEncoderLayer(SIZE, HEADS, dropout=0.5, pre_norm=pre_norm), f(*X)
    assert (layer(x).array != layer(x).array).any()
    with mpchain.using_config("train", False):
        np.testing.assert_array_equal(layer(x).array, layer(x).array)
    assert layer.attention.dropout == 0.5


class _Doubling(mpchain.LinkHook):
    """A hook that doubles the weights of a link while it computes."""

    def forward_preprocess(self, args):
        args.link.W.array *= 2

    def forward_postprocess(self, args):
        args.link.W.array /= 2


class _Doubled(mpchain.Chain):
    def __init__(self, link):
        super().__init__()
        with self.init_scope():
            self.link = link

    def forward(self, x, n_batch_axes):
        return 2 * self.link(x, n_batch_axes)


def test_projections_of_self_attention_may_be_replaced_and_hooked(device):
    """Replaced and hooked projections are called, though one product could compute all three."""
    x = mpchain.get_device(device).send(f(*X))
    results = []
    for change in ("hook", "link", "weights"):
        attention = L.MultiHeadAttention(SIZE, HEADS, initialW=np.tri(SIZE, dtype=np.float32))
        attention.to_device(device)
        if change == "hook":
            attention.key.add_hook(_Doubling())
        elif change == "link":
            attention.key = _Doubled(attention.key)
        else:
            attention.key.W.array *= 2
        results.append(mpchain.cuda.to_cpu(attention(x).array))
    np.testing.assert_allclose(results[0], results[2], 1e-5)
    np.testing.assert_allclose(results[1], results[2], 1e-5)


def test_sizes_by_default():
    layer = L.TransformerDecoderLayer(8, 2)
    assert layer.linear1.W.shape == (32, 8) and layer.dropout == 0.1
    assert isinstance(layer.norm3, L.LayerNormalization) and layer.norm3.eps == 1e-6


def test_as_the_function():
    link, x, source = L.MultiHeadAttention(SIZE, HEADS), f(*X), f(*SOURCE)
    parts = [link.query, link.key, link.value, link.out]
    Ws, bs = [part.W for part in parts], [part.b for part in parts]
    expected = F.multi_head_attention(x, source, source, *Ws, *bs, n_heads=HEADS)
    np.testing.assert_allclose(link(x, source).array, expected.array, 1e-6)


@pytest.mark.parametrize(
    "error, message, call",
    [
        (
            ValueError,
            "MultiHeadAttention: n_heads=3 must divide size=4",
            lambda: L.MultiHeadAttention(4, 3),
        ),
        (
            ValueError,
            "MultiHeadAttention: n_heads=0 must divide size=4",
            lambda: L.TransformerEncoderLayer(4, 0),
        ),
        (
            InvalidType,
            "MultiHeadAttention: query must have 3 axes",
            lambda: L.MultiHeadAttention(4, 2)(f(3, 4)),
        ),
        (
            InvalidType,
            "MultiHeadAttention: value must have 3 axes",
            lambda: L.MultiHeadAttention(4, 2)(f(*X), f(*SOURCE), f(3, 4)),
        ),
        (
            InvalidType,
            "linear: W must have as many columns",
            lambda: L.MultiHeadAttention(4, 2)(f(2, 3, 5)),
        ),
        (
            InvalidType,
            "scaled_dot_product_attention: mask must be bool",
            lambda: L.MultiHeadAttention(4, 2)(f(*X), mask=np.ones((2, 3), bool)),
        ),
        (
            InvalidType,
            "scaled_dot_product_attention: query, key and value must",
            lambda: L.MultiHeadAttention(4, 2)(f(*X), f(*SOURCE), f(2, 4, 4)),
        ),
    ],
)
def test_wrong_input(error, message, call):
    with pytest.raises(error, match=message):
        call()
