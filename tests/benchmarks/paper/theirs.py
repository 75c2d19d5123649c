"""Counts PyTorch's steps from the operations that it dispatches, without a GPU and without data.

Fake tensors have only shapes. Differences of CUDA are added: autocast's casts to single precision,
dropout in one kernel, attention in one kernel forward, fused optimizers, and cuDNN's LSTM.
"""

import math

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mpchain.gpu_doctor import speed
from tests.benchmarks.paper import ours
from tests.benchmarks.paper.card import HALF, SINGLE, THEIRS, Kernel, Step

F = nn.functional
_SINGLE = {F.layer_norm, F.softmax, F.cross_entropy}
"""Functions that autocast computes in single precision on CUDA, but in half precision on CPUs."""
_FREE = set(
    "detach alias lift_fresh empty empty_strided empty_like new_empty t _unsafe_view".split()
) | set("new_empty_strided as_strided_ copy_".split())
"""Operations without a kernel. The last three copy gradients to the memory order of weights, which
have the channels last in real models, as do their gradients."""


def _tensors(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, (tuple, list)):
        return [x for item in tree for x in _tensors(item)]
    return []


def _size(x):
    steps = zip(x.shape, x.stride())
    return x.element_size() * math.prod(n for n, step in steps if step)


def _sizes(*xs):
    return sum(map(_size, xs))


class _Counts(TorchDispatchMode):
    """Records the kernels of each operation."""

    def __init__(self):
        super().__init__()
        self.kernels = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::")
        ins, outs = _tensors([args, list((kwargs or {}).values())]), _tensors(result)
        is_view = function.is_view or name in _FREE
        if not is_view and not name.startswith("prim::"):
            self.count_operation(name, ins, outs)
        return result

    def count_operation(self, name, ins, outs):
        """Records the kernels of an operation: by a rule for its name, or else one kernel."""
        rule = getattr(self, f"rule_{name}", None)
        if rule is not None:
            rule(ins, outs)
        else:
            self.note(name, ins, outs)

    def note(self, name, ins, outs, flops=0.0, kind="product", is_inside=False):
        """Records a kernel that reads and writes tensors."""
        n_bytes = _sizes(*{id(x): x for x in ins}.values()) + _sizes(*outs)
        self.kernels.append(Kernel(name, n_bytes, flops, kind, is_inside=is_inside))

    def rule_mm(self, ins, outs):
        a, b = ins[-2:]
        self.note("product", ins, outs, 2.0 * a.numel() * b.shape[-1])

    rule_addmm = rule_bmm = rule_mm

    def rule_convolution(self, ins, outs):
        flops = 2.0 * outs[0].numel() * math.prod(ins[1].shape[1:])
        self.note("convolution", ins, outs, flops, "convolution")

    def rule_convolution_backward(self, ins, outs):
        g, x, W = ins[:3]
        flops = 2.0 * g.numel() * math.prod(W.shape[1:])
        if len(outs) > 1:
            self.note("input of convolution", [g, W], [outs[0]], flops, "convolution")
        self.note("filter of convolution", [g, x], [outs[-1]], flops, "convolution")

    def rule_native_batch_norm(self, ins, outs):
        self.note("batch_norm: statistics", ins[:1], outs[1:])
        self.note("batch_norm", [*ins, *outs[1:]], outs[:1], is_inside=True)

    rule_cudnn_batch_norm = rule_native_batch_norm

    def rule_native_batch_norm_backward(self, ins, outs):
        self.note("batch_norm_backward: sums", ins[:2], outs[1:])
        self.note("batch_norm_backward", [*ins[:2], *outs[1:]], outs[:1], is_inside=True)

    def rule_native_layer_norm_backward(self, ins, outs):
        self.note("layer_norm_backward", ins, outs[:1])
        self.note("layer_norm_backward: parameters", ins, outs[1:], is_inside=True)

    def rule_max_pool2d_with_indices_backward(self, ins, outs):
        self.note("max_pool2d_backward", [ins[0], ins[-1]], outs)

    def rule_embedding(self, ins, outs):
        self.note("embedding", [ins[1], outs[0]], outs)

    def rule_embedding_dense_backward(self, ins, outs):
        self.note("embedding_backward: zeros", [], outs)
        for _ in range(5):  # the sort of the ids takes five kernels
            self.note("embedding_backward: order", ins[1:], ins[1:], is_inside=True)
        self.note("embedding_backward", ins, [ins[0]], is_inside=True)

    def rule_nll_loss_forward(self, ins, outs):
        self.note("nll_loss", ins[1:], outs)

    def rule_nll_loss_backward(self, ins, outs):
        self.note("nll_loss_backward: zeros", [], outs)
        self.note("nll_loss_backward", ins[2:3], [], is_inside=True)

    def rule__scaled_dot_product_flash_attention_for_cpu(self, ins, outs):
        q, k = ins[:2]
        flops = 2 * q.numel() * k.shape[2]  # A causal mask leaves half.
        self.note("attention", ins, outs, flops, "attention")

    def rule__scaled_dot_product_flash_attention_for_cpu_backward(self, ins, outs):
        g, q, k, _, y = ins[:5]
        self.note("attention_backward: dot", [g, y], [], is_inside=True)
        self.note("attention_backward", ins, outs, 5 * q.numel() * k.shape[2], "attention")
        # The gradients are cast from single precision.
        self.note("attention_backward: convert", [], [q, q, q], is_inside=True)


class _OnCuda(TorchFunctionMode):
    """Imitates what autocast and the functions do on CUDA."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function in _SINGLE:
            args = [x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
                    for x in args]  # fmt: skip
        if function is F.dropout:
            x, p = args[0], kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            return torch.native_dropout(x, p, True)[0] if p else x
        if function is F.scaled_dot_product_attention:
            kwargs["dropout_p"] = 0.0  # the same kernel includes dropout
        return function(*args, **kwargs)


class _Block(nn.Module):
    def __init__(self, ratio):
        super().__init__()
        n = ours.WIDTH
        self.ratio, self.norm1, self.norm2 = ratio, nn.LayerNorm(n), nn.LayerNorm(n)
        self.project, self.out = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.linear1, self.linear2 = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x):
        b, length, n = x.shape
        heads = self.project(self.norm1(x)).view(b, length, 3, ours.HEADS, n // ours.HEADS)
        q, k, v = (y.squeeze(2).transpose(1, 2) for y in heads.split(1, 2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.ratio, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(b, length, n)
        x = x + F.dropout(self.out(y), self.ratio)
        h = self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate="tanh"))
        return x + F.dropout(h, self.ratio)


class _Gpt2(nn.Module):
    def __init__(self, ratio):
        super().__init__()
        self.ratio = ratio
        self.words = nn.Embedding(ours.WORDS, ours.WIDTH)
        self.places = nn.Embedding(ours.LENGTH, ours.WIDTH)
        self.blocks = nn.Sequential(*(_Block(ratio) for _ in range(ours.DEPTH)))
        self.norm = nn.LayerNorm(ours.WIDTH)

    def forward(self, x):
        places = self.places(torch.arange(ours.LENGTH))
        h = F.dropout(self.words(x) + places, self.ratio)
        return F.linear(self.norm(self.blocks(h)), self.words.weight)


def _make(name):
    if name.startswith("GPT-2"):
        x = torch.zeros((ours.BATCH, ours.LENGTH), dtype=torch.long)
        return _Gpt2(0.1 if "dropout" in name else 0.0), x, True
    if name == "LSTM":
        return _LanguageModel(), torch.zeros((ours.SEQUENCES, ours.STEPS), dtype=torch.long), False
    net, x = speed._torch_network(torch, name, speed.SIZES[name]), None
    x = torch.zeros(speed.SIZES[name].batch)
    if name == "ResNet-50":
        last = {"memory_format": torch.channels_last}
        return net, x.to(**last), True
    return net, x, False


class _LanguageModel(nn.Module):
    """The language model without the LSTM, which :func:`_lstm` counts."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(ours.VOCABULARY, ours.UNITS)
        self.out = nn.Linear(ours.UNITS, ours.VOCABULARY)

    def forward(self, x):
        return self.out(self.words(x))


def _lstm():
    """Returns cuDNN's kernels for the layer: a product and a kernel of gates for each step, and
    single products for inputs and for weights of all steps."""
    n, b, steps = ours.UNITS, ours.SEQUENCES, ours.STEPS
    W, gates, state = 4 * n * n * 4, b * 4 * n * 4, b * n * 4
    flops = 2.0 * b * 4 * n * n
    product = Kernel("lstm: product", W + state + gates, flops, is_inside=True)
    cell = Kernel("lstm: cell", 2 * gates + 3 * state, is_inside=True)
    whole = Kernel("lstm: all steps", W + steps * (state + gates), steps * flops, is_inside=True)
    return [product, cell] * (2 * steps) + [whole] * 4


def _optimizer(name, n_parameters, n_arrays):
    """Returns the kernels of a fused optimizer and, for ResNet-50, of the scaler that searches for
    infinity."""
    n_states = 2 if name.startswith("GPT-2") else 1 if name == "ResNet-50" or name == "MLP" else 0
    n_bytes = 4 * n_parameters * (3 + 2 * n_states)
    n_launches = -(-n_arrays // 36)  # torch's multi_tensor_apply takes 36 tensors of four lists
    kernels = [Kernel("fused optimizer", n_bytes / n_launches, is_inside=True)] * n_launches
    if name == "ResNet-50":
        kernels += [Kernel("scaler", 8 * n_parameters / n_launches, is_inside=True)] * n_launches
    return kernels


def count(name: str) -> Step:
    """Returns the launches of a step."""
    with FakeTensorMode(allow_non_fake_inputs=True), _OnCuda(), _Counts() as counts:
        net, x, is_half = _make(name)
        counts.kernels.clear()
        t = torch.zeros((x.numel() if x.dtype == torch.long else len(x),), dtype=torch.long)
        counts.kernels.clear()
        with torch.autocast("cpu", torch.float16, enabled=is_half):
            y = net(x)
            loss = F.cross_entropy(y.reshape(-1, y.shape[-1]), t)
        loss.backward()
    parameters = list(net.parameters())
    kernels = [*counts.kernels]
    if name == "LSTM":
        kernels += _lstm()
        parameters += [nn.Parameter(torch.empty(4 * ours.UNITS, ours.UNITS)) for _ in range(2)]
    kernels += _optimizer(name, sum(p.numel() for p in parameters), len(parameters))
    peak = HALF if is_half else SINGLE
    return Step([k._replace(peak=peak) for k in kernels], THEIRS)
