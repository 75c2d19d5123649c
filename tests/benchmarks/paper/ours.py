"""Counts mpchain's steps at full size on the double of CuPy, whose kernels are counted, not run."""

import contextlib

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import optimizers
from mpchain.functions.noise import add_dropout
from mpchain.gpu_doctor import speed
from mpchain.random import SampleGenerator
from tests.benchmarks.paper.card import HALF, OURS, SINGLE, Kernel, Step

WORDS, WIDTH, HEADS, DEPTH, LENGTH, BATCH = 50257, 768, 12, 12, 1024, 8
"""The sizes of GPT-2 small (A. Radford et al., 2019)."""
UNITS, STEPS, SEQUENCES, VOCABULARY = 650, 35, 20, 10000
"""The sizes of the medium LSTM of W. Zaremba et al., 2014, with one layer."""


class _Block(mpchain.Chain):
    def __init__(self, ratio):
        super().__init__()
        self.ratio = ratio
        with self.init_scope():
            self.norm1, self.norm2 = L.LayerNormalization(WIDTH), L.LayerNormalization(WIDTH)
            self.attention = L.MultiHeadAttention(WIDTH, HEADS, ratio)
            self.linear1, self.linear2 = L.Linear(WIDTH, 4 * WIDTH), L.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = add_dropout(x, self.attention(self.norm1(x), is_causal=True), self.ratio)
        h = F.gelu(self.linear1(self.norm2(x), n_batch_axes=2), "tanh")
        return add_dropout(x, self.linear2(h, n_batch_axes=2), self.ratio)


class Gpt2(mpchain.Chain):
    """GPT-2 small, whose last product uses the weights of its embedding."""

    def __init__(self, ratio):
        super().__init__()
        self.ratio = ratio
        with self.init_scope():
            self.words, self.places = L.EmbedID(WORDS, WIDTH), L.EmbedID(LENGTH, WIDTH)
            self.blocks = mpchain.Sequential(*(_Block(ratio) for _ in range(DEPTH)))
            self.norm = L.LayerNormalization(WIDTH)

    def forward(self, x, t):
        places = self.places(self.xp.arange(LENGTH, dtype=np.int32))
        h = F.dropout(self.words(x) + places, self.ratio)
        h = F.reshape(self.norm(self.blocks(h)), (-1, WIDTH))
        return F.softmax_cross_entropy(F.linear(h, self.words.W), t)


class LanguageModel(mpchain.Chain):
    """An LSTM over sequences of one length."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.words = L.EmbedID(VOCABULARY, UNITS)
            self.layers = L.NStepLSTM(1, UNITS, UNITS, 0.0)
            self.out = L.Linear(UNITS, VOCABULARY)

    def forward(self, x, t):
        _, _, ys = self.layers(None, None, list(F.separate(self.words(x), 0)))
        return F.softmax_cross_entropy(self.out(F.concat(ys, 0)), t)


def _words(n, *shape):
    x = np.random.RandomState(0).randint(0, n, shape).astype(np.int32)
    return x, x.ravel()


def _step(model, optimizer, batch, is_half):
    model.to_device("@cupy:0")
    optimizer.setup(model)
    if is_half:
        optimizer.use_fp32_update()
        optimizer.set_loss_scale(128.0)
    arrays = [mpchain.get_device("@cupy:0").send(x) for x in batch]
    return lambda: optimizer.update(model, *arrays)


def _make(name):
    if name in ("ResNet-50", "MLP"):
        precision = "half" if name == "ResNet-50" else "single"
        return speed.OwnStep(name, precision, speed.SIZES[name], "@cupy:0")
    if name == "LSTM":
        words = _words(VOCABULARY, SEQUENCES, STEPS)
        return _step(LanguageModel(), optimizers.SGD(1.0), words, False)
    ratio = 0.1 if "dropout" in name else 0.0
    with mpchain.using_config("dtype", mpchain.mixed16):
        step = _step(Gpt2(ratio), optimizers.AdamW(), _words(WORDS, BATCH, LENGTH), True)

    generator = SampleGenerator((1, 2), step=0, first=0, n=BATCH)
    by_sample = "by sample" in name

    def run():
        draws = generator.in_use() if by_sample else contextlib.nullcontext()
        with mpchain.using_config("dtype", mpchain.mixed16), draws:
            step()

    return run


def count(name: str) -> Step:
    """Returns the launches of a step."""
    import cupy

    double = cupy.double
    double.computes = False
    try:
        step = _make(name)
        step()
        double.reset()
        step()
    finally:
        double.computes = True
    kernels = []
    for work in double.work:
        kind = {"SDPA": "attention", "CONV": "convolution"}.get(work.name[6:10], "product")
        peak = SINGLE if name in ("MLP", "LSTM") else HALF
        kernels.append(Kernel(work.name, work.n_bytes, work.flops, kind, work.grain, peak=peak))
        if work.copied:  # a kernel copies each array
            kernels.append(Kernel("cudnn: order of axes", work.copied, is_inside=True))
    return Step(kernels, OURS)
