"""Tests that each kind of link computes the same as PyTorch's module with its weights, and that
weights return unchanged."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain.interop import load_state_dict, rule, state_dict
from tests.reference import torch

nn = torch.nn
IMAGE = (2, 4, 6, 5)


def _call(link, *xs):
    with mpchain.using_config("train", False):
        return link(*xs)


def _attend(link, x):
    return link(x, is_causal=True)


def _attend_torch(module, x):
    mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
    return module(x, x, x, attn_mask=mask)[0]


def _run_layers(link, x):
    return F.stack(link(*[None] * link.n_cells, list(x))[-1])


def _first(module, x):
    return module(x)[0]


def _run_cell(link, x):
    return [link(x), link(x + 1)][-1]


def _run_cell_torch(module, x):
    return module(x + 1, module(x))[0]


def _recurrent(kind, **options):
    return lambda: getattr(nn, kind)(3, 5, 2, batch_first=True, **options)


# For each name: the link, the module, the shape of the input, and, unless both are just applied to
# the input, how they are called.
CASES = {
    "Linear": (lambda: L.Linear(3, 2), lambda: nn.Linear(3, 2), (4, 3)),
    "Linear, lazy": (lambda: L.Linear(None, 2), lambda: nn.Linear(3, 2), (4, 3)),
    "Linear without bias": (
        lambda: L.Linear(3, 2, nobias=True),
        lambda: nn.Linear(3, 2, bias=False),
        (4, 3),
    ),
    "Convolution1D": (lambda: L.Convolution1D(3, 4, 2), lambda: nn.Conv1d(3, 4, 2), (2, 3, 6)),
    "Convolution2D, grouped": (
        lambda: L.Convolution2D(4, 6, (3, 2), 2, 1, groups=2),
        lambda: nn.Conv2d(4, 6, (3, 2), 2, 1, groups=2),
        IMAGE,
    ),
    "DilatedConvolution2D": (
        lambda: L.DilatedConvolution2D(4, 6, 2, dilate=2),
        lambda: nn.Conv2d(4, 6, 2, dilation=2),
        IMAGE,
    ),
    "Convolution3D": (
        lambda: L.Convolution3D(2, 3, 2),
        lambda: nn.Conv3d(2, 3, 2),
        (1, 2, 3, 4, 3),
    ),
    "Deconvolution2D, grouped": (
        lambda: L.Deconvolution2D(4, 6, (3, 2), 2, 1, groups=2),
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), 2, 1, groups=2),
        IMAGE,
    ),
    "Deconvolution1D": (
        lambda: L.Deconvolution1D(3, 4, 3, 2),
        lambda: nn.ConvTranspose1d(3, 4, 3, 2),
        (2, 3, 6),
    ),
    "DepthwiseConvolution2D": (
        lambda: L.DepthwiseConvolution2D(4, 3, 2),
        lambda: nn.Conv2d(4, 12, 2, groups=4),
        IMAGE,
    ),
    "EmbedID": (lambda: L.EmbedID(7, 3), lambda: nn.Embedding(7, 3), None),
    "PReLU": (L.PReLU, nn.PReLU, IMAGE),
    "PReLU of channels": (lambda: L.PReLU((4,)), lambda: nn.PReLU(4), (2, 4)),
    "BatchNormalization": (
        lambda: L.BatchNormalization(4, eps=1e-5),
        lambda: nn.BatchNorm2d(4),
        IMAGE,
    ),
    "BatchNormalization without scale": (
        lambda: L.BatchNormalization(4, eps=1e-5, use_gamma=False, use_beta=False),
        lambda: nn.BatchNorm2d(4, affine=False),
        IMAGE,
    ),
    "LayerNormalization": (
        lambda: L.LayerNormalization(5, 1e-5),
        lambda: nn.LayerNorm(5),
        IMAGE,
    ),
    "GroupNormalization": (lambda: L.GroupNormalization(2, 4), lambda: nn.GroupNorm(2, 4), IMAGE),
    "InstanceNormalization": (
        lambda: L.InstanceNormalization(4),
        lambda: nn.InstanceNorm2d(4, affine=True),
        IMAGE,
    ),
    "RMSNormalization": (
        lambda: L.RMSNormalization(5, 1e-5),
        lambda: nn.RMSNorm(5, 1e-5),
        IMAGE,
    ),
    "LSTM": (lambda: L.NStepLSTM(2, 3, 5, 0.0), _recurrent("LSTM"), (2, 4, 3), _run_layers, _first),
    "bidirectional LSTM": (
        lambda: L.NStepBiLSTM(2, 3, 5, 0.0),
        _recurrent("LSTM", bidirectional=True),
        (2, 4, 3),
        _run_layers,
        _first,
    ),
    "GRU": (lambda: L.NStepGRU(2, 3, 5, 0.0), _recurrent("GRU"), (2, 4, 3), _run_layers, _first),
    "bidirectional GRU": (
        lambda: L.NStepBiGRU(2, 3, 5, 0.0),
        _recurrent("GRU", bidirectional=True),
        (2, 4, 3),
        _run_layers,
        _first,
    ),
    "simple recurrent layers": (
        lambda: L.NStepRNNReLU(2, 3, 5, 0.0),
        _recurrent("RNN", nonlinearity="relu"),
        (2, 4, 3),
        _run_layers,
        _first,
    ),
    "LSTM cell": (
        lambda: L.LSTM(3, 5),
        lambda: nn.LSTMCell(3, 5),
        (2, 3),
        _run_cell,
        _run_cell_torch,
    ),
    "MultiHeadAttention": (
        lambda: L.MultiHeadAttention(8, 2),
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        (2, 4, 8),
        _attend,
        _attend_torch,
    ),
    "MultiHeadAttention of other sizes": (
        lambda: L.MultiHeadAttention(8, 2, key_size=3, value_size=6, nobias=True),
        lambda: nn.MultiheadAttention(8, 2, bias=False, kdim=3, vdim=6, batch_first=True),
        (2, 4, 8),
        lambda link, x: link(x, x[..., :3], x[..., :6]),
        lambda module, x: module(x, x[..., :3], x[..., :6])[0],
    ),
    "TransformerEncoderLayer": (
        lambda: L.TransformerEncoderLayer(8, 2, 16, normalization=_norm),
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        (2, 4, 8),
    ),
    "TransformerDecoderLayer": (
        lambda: L.TransformerDecoderLayer(8, 2, 16, normalization=_norm, pre_norm=True),
        lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, norm_first=True),
        (2, 4, 8),
        lambda link, x: link(x, x * 2, is_causal=False),
        lambda module, x: module(x, x * 2),
    ),
    "Sequential": (
        lambda: mpchain.Sequential(L.Linear(3, 4), F.relu, mpchain.Sequential(L.Linear(4, 2))),
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 2))),
        (4, 3),
    ),
}


def _norm(size):
    return L.LayerNormalization(size, 1e-5)


def randomized(module):
    """Sets all parameters and averages to random values, and switches to inference mode."""
    torch.manual_seed(0)
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            low, high = (0.5, 1.5) if "var" in name or value.ndim < 2 else (-0.3, 0.3)
            value.uniform_(low, high)
    return module.eval()


def assert_same(mine, others):
    np.testing.assert_allclose(mine.array, others.detach().numpy(), 1e-5, 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_equal_after_loading_and_after_saving(name):
    make_link, make_module, shape, *calls = CASES[name]
    run, run_module = calls or (_call, lambda module, x: module(x))
    random = np.random.RandomState(0)
    x = random.randn(*shape).astype(np.float32) if shape else random.randint(0, 7, (2, 3))
    link, module = make_link(), randomized(make_module())
    load_state_dict(link, module.state_dict())
    with mpchain.using_config("train", False):
        y = run(link, x)
    assert_same(y, run_module(module, torch.from_numpy(x)))

    back = make_module().eval()
    back.load_state_dict({k: torch.from_numpy(v) for k, v in state_dict(link).items()})
    assert_same(y, run_module(back, torch.from_numpy(x)))


def test_users_rules_and_names_are_used():
    class Affine(mpchain.Link):
        def __init__(self):
            super().__init__(scale=(2,), shift=(2,))

    class Plain(Affine):
        pass

    model = mpchain.Chain(a=Affine(), b=Plain())
    rule(Affine)(lambda link: {"weight": link.scale, "bias": link.shift})
    assert sorted(state_dict(model)) == ["a.bias", "a.weight", "b.bias", "b.weight"]
    rule(Plain)(lambda link: {"scale": link.scale, "shift": None})
    assert sorted(state_dict(model)) == ["a.bias", "a.weight", "b.scale"]


class Own(mpchain.Chain):
    def __init__(self):
        super().__init__(l1=L.Linear(3, 2))
        with self.init_scope():
            self.scale = mpchain.Parameter(1.0, (2,))
        self.add_persistent("mean", np.zeros(2, np.float32))
        self.add_persistent("n", 3)


def test_users_chains_have_their_own_names():
    assert sorted(state_dict(Own())) == ["l1.bias", "l1.weight", "mean", "scale"]


@pytest.mark.parametrize(
    "link, reason",
    [
        (L.GRU(3, 5), "GRU at /l has no counterpart in PyTorch: .*NStepGRU does so too"),
        (L.Highway(3), None),
        (L.Bilinear(3, 4, 2), "Bilinear at /l has no counterpart .* mpchain.interop.rule adds one"),
    ],
)
def test_links_without_counterpart_are_refused(link, reason):
    if reason is None:  # a chain contains only known links
        assert len(state_dict(link)) == 4
        return
    with pytest.raises(NotImplementedError, match=reason):
        state_dict(mpchain.Chain(l=link))


@pytest.mark.parametrize(
    "link", [L.BatchNormalization(), L.NStepLSTM(1, None, 3, 0.0), L.LSTM(None, 2)]
)
def test_what_has_no_arrays_yet_is_refused(link):
    with pytest.raises(ValueError, match="has no arrays yet: give the size of its input"):
        state_dict(mpchain.Chain(l=link))


def test_an_uninitialized_weight_is_refused():
    with pytest.raises(ValueError, match="state_dict: the parameter of weight is not initialized"):
        state_dict(L.Linear(None, 2))
