"""Tests networks of torchvision and Hugging Face, against PyTorch modules with their names and
random weights."""

import numpy as np
import pytest

import mpchain
import mpchain.links as L
from mpchain.interop import BERT, GPT2, ResNet, load_state_dict, state_dict
from tests.interop.test_rules import assert_same, randomized
from tests.reference import torch

nn = torch.nn
_random = np.random.RandomState(0)


class Block(nn.Module):
    """torchvision's BasicBlock (two convolution sizes) or Bottleneck (three)."""

    def __init__(self, n_in, sizes, stride):
        super().__init__()
        kernels = {2: (3, 3), 3: (1, 3, 1)}[len(sizes)]
        strides = {2: (stride, 1), 3: (1, stride, 1)}[len(sizes)]
        n = n_in
        for i, (n_out, k, s) in enumerate(zip(sizes, kernels, strides), 1):
            setattr(self, f"conv{i}", nn.Conv2d(n, n_out, k, s, k // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(n_out))
            n = n_out
        self.n = len(sizes)
        self.downsample = None
        if stride > 1 or n_in != n:
            self.downsample = nn.Sequential(
                nn.Conv2d(n_in, n, 1, stride, bias=False), nn.BatchNorm2d(n)
            )

    def forward(self, x):
        h = x
        for i in range(1, self.n + 1):
            h = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(h))
            h = torch.relu(h) if i < self.n else h
        return torch.relu(h + (x if self.downsample is None else self.downsample(x)))


class TorchResNet(nn.Module):
    def __init__(self, depths, is_bottleneck):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        n_in = 64
        for i, depth in enumerate(depths):
            blocks, n = [], 64 << i
            for k in range(depth):
                sizes = (n, n, 4 * n) if is_bottleneck else (n, n)
                blocks.append(Block(n_in, sizes, 2 if i and not k else 1))
                n_in = sizes[-1]
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(n_in, 1000)

    def forward(self, x):
        h = torch.relu(self.bn1(self.conv1(x)))
        h = nn.functional.max_pool2d(h, 3, 2, 1)
        for i in range(1, 5):
            h = getattr(self, f"layer{i}")(h)
        return self.fc(h.mean((2, 3)))


class TorchVGG16(nn.Module):
    def __init__(self):
        super().__init__()
        layers, n_in = [], 3
        for n, depth in (64, 2), (128, 2), (256, 3), (512, 3), (512, 3):
            for _ in range(depth):
                layers += [nn.Conv2d(n_in, n, 3, 1, 1), nn.ReLU()]
                n_in = n
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        hidden = [nn.Linear(25088, 4096), nn.ReLU(), nn.Dropout()]
        hidden += [nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()]
        self.classifier = nn.Sequential(*hidden, nn.Linear(4096, 1000))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class Conv1D(nn.Module):
    """A linear map with transposed weights, under Hugging Face's name."""

    def __init__(self, n_out, n_in):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return x @ self.weight + self.bias


def _attend(q, k, v, n_heads, **options):
    q, k, v = (x.unflatten(2, (n_heads, -1)).transpose(1, 2) for x in (q, k, v))
    y = nn.functional.scaled_dot_product_attention(q, k, v, **options)
    return y.transpose(1, 2).flatten(2)


class TorchGPT2(nn.Module):
    def __init__(self, n_layers, size, n_heads, n_words, n_positions):
        super().__init__()
        self.n_heads = n_heads
        self.wte, self.wpe = nn.Embedding(n_words, size), nn.Embedding(n_positions, size)
        self.h = nn.ModuleList()
        for _ in range(n_layers):
            attn = {"c_attn": Conv1D(3 * size, size), "c_proj": Conv1D(size, size)}
            mlp = {"c_fc": Conv1D(4 * size, size), "c_proj": Conv1D(size, 4 * size)}
            parts = {"ln_1": nn.LayerNorm(size), "attn": nn.ModuleDict(attn)}
            parts |= {"ln_2": nn.LayerNorm(size), "mlp": nn.ModuleDict(mlp)}
            self.h.append(nn.ModuleDict(parts))
        self.ln_f = nn.LayerNorm(size)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for h in self.h:
            q, k, v = h["attn"]["c_attn"](h["ln_1"](x)).chunk(3, 2)
            x = x + h["attn"]["c_proj"](_attend(q, k, v, self.n_heads, is_causal=True))
            hidden = h["mlp"]["c_fc"](h["ln_2"](x))
            x = x + h["mlp"]["c_proj"](nn.functional.gelu(hidden, approximate="tanh"))
        return self.ln_f(x)


class TorchBERT(nn.Module):
    def __init__(self, n_layers, size, n_heads, n_words, n_positions):
        super().__init__()
        self.n_heads = n_heads

        def output(n_in):
            norm = nn.LayerNorm(size, 1e-12)
            return nn.ModuleDict({"dense": nn.Linear(n_in, size), "LayerNorm": norm})

        tables = {"word": n_words, "position": n_positions, "token_type": 2}
        tables = {f"{k}_embeddings": nn.Embedding(n, size) for k, n in tables.items()}
        norm = {"LayerNorm": nn.LayerNorm(size, 1e-12)}
        self.embeddings = nn.ModuleDict(tables | norm)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList()})
        for _ in range(n_layers):
            own = {name: nn.Linear(size, size) for name in ("query", "key", "value")}
            attention = {"self": nn.ModuleDict(own), "output": output(size)}
            parts = {"attention": nn.ModuleDict(attention), "output": output(4 * size)}
            parts["intermediate"] = nn.ModuleDict({"dense": nn.Linear(size, 4 * size)})
            self.encoder["layer"].append(nn.ModuleDict(parts))
        self.pooler = nn.ModuleDict({"dense": nn.Linear(size, size)})

    def forward(self, ids, types, mask):
        e = self.embeddings
        x = e["word_embeddings"](ids) + e["token_type_embeddings"](types)
        x = e["LayerNorm"](x + e["position_embeddings"](torch.arange(ids.shape[1])))
        for layer in self.encoder["layer"]:
            own, out = layer["attention"]["self"], layer["attention"]["output"]
            q, k, v = (own[name](x) for name in ("query", "key", "value"))
            y = _attend(q, k, v, self.n_heads, attn_mask=mask[:, None, None].bool())
            x = out["LayerNorm"](x + out["dense"](y))
            y = nn.functional.gelu(layer["intermediate"]["dense"](x))
            x = layer["output"]["LayerNorm"](x + layer["output"]["dense"](y))
        return x, torch.tanh(self.pooler["dense"](x[:, 0]))


def _exchange(model, module, *, initial=True):
    """Loads the module's weights into the model, then the model's weights into a module of
    zeros."""
    randomized(module) if initial else module.eval()
    weights = module.state_dict()
    load_state_dict(model, weights)
    saved = state_dict(model)
    assert saved.keys() == weights.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(saved[name], value)
    module.load_state_dict({k: torch.from_numpy(v) for k, v in saved.items()})


def _check_resnet(n_layers, depths, size):
    model, module = ResNet(n_layers), TorchResNet(depths, n_layers >= 50)
    torch.manual_seed(0)
    for name, value in module.state_dict().items():
        if "running_var" in name:
            value.uniform_(0.5, 1.5)
        elif "running_mean" in name:
            value.uniform_(-0.5, 0.5)
    _exchange(model, module, initial=False)
    x = _random.randn(1, 3, size, size).astype(np.float32)
    with mpchain.using_config("train", False), mpchain.no_backprop_mode(), torch.no_grad():
        assert_same(model(x), module(torch.from_numpy(x)))


@pytest.mark.slow
def test_resnet18():
    _check_resnet(18, (2, 2, 2, 2), 64)


@pytest.mark.slow
def test_resnet50():
    _check_resnet(50, (3, 4, 6, 3), 97)


@pytest.mark.nightly  # the model has 138 million parameters, which takes half a minute
def test_vgg16():
    model, module = L.VGG16Layers(None), TorchVGG16()
    _exchange(model, module, initial=False)
    x = _random.randn(1, 3, 224, 224).astype(np.float32)
    with mpchain.using_config("train", False), mpchain.no_backprop_mode(), torch.no_grad():
        assert_same(model(x, layers=["fc8"])["fc8"], module(torch.from_numpy(x)))


SIZES = {"n_layers": 2, "size": 12, "n_heads": 3, "n_words": 20, "n_positions": 8}
IDS = _random.randint(0, 20, (2, 6))


def test_gpt2():
    model, module = GPT2(**SIZES), TorchGPT2(**SIZES)
    _exchange(model, module)
    with mpchain.using_config("train", False):
        y, scores = model(IDS), model.scores(IDS)
    expected = module(torch.from_numpy(IDS))
    assert_same(y, expected)
    assert_same(scores, expected @ module.wte.weight.T)


def test_gpt2_of_a_language_model_with_masks():
    model, module = GPT2(**SIZES), TorchGPT2(**SIZES)
    weights = {f"transformer.{k}": v for k, v in randomized(module).state_dict().items()}
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 8, 8) for i in range(2)}
    load_state_dict(model, {**weights, **masks, "lm_head.weight": None}, prefix="transformer.")
    np.testing.assert_array_equal(model.words.W.array, module.wte.weight.detach())


def test_bert():
    model, module = BERT(**SIZES), TorchBERT(**SIZES)
    _exchange(model, module)
    types, mask = _random.randint(0, 2, (2, 6)), np.arange(6) < [[6], [4]]
    expected, pooled = module(*map(torch.from_numpy, (IDS, types, mask)))
    with mpchain.using_config("train", False):
        y = model(IDS, types, mask)
        assert_same(model.pooled(y), pooled)
    np.testing.assert_allclose(y.array[mask], expected.detach().numpy()[mask], 1e-5, 1e-5)
    with mpchain.using_config("train", False):
        same = model(IDS), model(IDS, np.zeros_like(IDS), np.ones_like(IDS))
    np.testing.assert_array_equal(same[0].array, same[1].array)


def test_bert_without_pooler():
    names = state_dict(BERT(**SIZES, has_pooler=False))
    assert not [name for name in names if "pooler" in name]


def test_an_unknown_depth_is_refused():
    with pytest.raises(ValueError, match="must be one of 18, 34, 50, 101, 152, not 19"):
        ResNet(19)
