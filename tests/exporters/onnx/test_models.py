"""Tests that well-known models compute the same in onnxruntime as in mpchain, most of them for
other batch sizes, too."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Chain, Sequential
from mpchain.interop import BERT, GPT2, ResNet
from tests.exporters.onnx.runtime import run
from tests.models import LanguageModel

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


class Reader(LanguageModel):
    def forward(self, ids):
        return F.stack(self.read(ids), axis=1)


class Generator(Chain):
    """The generator of a DCGAN, which maps noise to images."""

    def __init__(self, n_noise=10, n=8):
        super().__init__()
        with self.init_scope():
            self.start = L.Linear(n_noise, 2 * n * 4 * 4, nobias=True)
            self.bn0 = L.BatchNormalization(2 * n)
            self.up1 = L.Deconvolution2D(2 * n, n, 4, 2, 1, nobias=True)
            self.bn1 = L.BatchNormalization(n)
            self.up2 = L.Deconvolution2D(n, 3, 4, 2, 1)

    def forward(self, z):
        h = F.reshape(self.start(z), (len(z), -1, 4, 4))
        h = F.relu(self.bn0(h))
        return F.tanh(self.up2(F.relu(self.bn1(self.up1(h)))))


def lenet5():
    return Sequential(
        L.Convolution2D(1, 6, 5, pad=2),
        F.tanh,
        lambda x: F.average_pooling_2d(x, 2),
        L.Convolution2D(6, 16, 5),
        F.tanh,
        lambda x: F.max_pooling_2d(x, 2),
        L.Linear(400, 120),
        F.tanh,
        L.Linear(120, 84),
        F.tanh,
        L.Linear(84, 10),
    )


def images(*shape):
    return lambda n, random: random.randn(n, *shape).astype(np.float32)


def words(n, random):
    return random.randint(0, 20, (n, 5))


class Layer(Chain):
    """A layer of a network for images."""

    def __init__(self, network, layer):
        super().__init__(network=network)
        self.layer = layer

    def forward(self, x):
        return self.network(x, layers=[self.layer])[self.layer]


class Sequences(Chain):
    """Bidirectional layers over sequences of three lengths, which are given as one array."""

    def __init__(self, kind):
        super().__init__(layers=kind(2, 3, 4, 0.0))

    def forward(self, x):
        *_, ys = self.layers(*[None] * self.layers.n_cells, [x[0], x[1, :3], x[2, :4]])
        return F.concat(ys, axis=0)


def small(kind):
    return lambda: kind(n_layers=2, size=12, n_heads=3, n_words=20, n_positions=8)


MODELS = {
    "LeNet-5": (lenet5, images(1, 28, 28)),
    "DCGAN generator": (Generator, images(10)),
    "LSTM language model": (lambda: Reader(20, 8), words),
    "transformer decoder": (small(GPT2), words),
    "transformer encoder": (small(BERT), words),
    "residual block": (
        lambda: L.model.vision.resnet.BuildingBlock(2, 4, 4, 16, 2),
        images(4, 8, 8),
    ),
    "groups": (
        lambda: Sequential(
            L.Convolution2D(4, 8, 3, groups=2, dilate=2),
            L.GroupNormalization(2, 8),
            F.gelu,
            L.DepthwiseConvolution2D(8, 2, 3),
            lambda x: F.resize_images(x, (7, 5)),
            lambda x: F.mean(x, axis=(2, 3)),
        ),
        images(4, 12, 12),
    ),
}
LARGE = {
    "ResNet-50": (lambda: ResNet(50), images(3, 64, 64)),
    "ResNet-50 of Caffe": (
        lambda: Layer(L.ResNet50Layers(None), "fc6"),
        images(3, 64, 64),
    ),
}
HUGE = {
    "VGG16": (
        lambda: Layer(L.VGG16Layers(None), "prob"),
        images(3, 224, 224),
    )
}


def randomized(model):
    """Replaces parameters that usually begin as zeros or ones by random values."""
    random = np.random.RandomState(1)
    for link in model.links() if isinstance(model, mpchain.Link) else ():
        for name in ("gamma", "beta", "b", "avg_mean", "avg_var"):
            value = vars(link).get(name)
            array = getattr(value, "array", value)
            if array is not None:
                array[...] = random.uniform(0.5, 1.0, array.shape)
    return model


def check(make, inputs, sizes=(1, 4), tolerance=1e-5):
    """Exports a model with a batch of 2, and runs it with other batch sizes."""
    random = np.random.RandomState(0)
    model = randomized(make())
    made = mpchain.onnx.export(model, inputs(2, random))
    onnx.checker.check_model(made, full_check=True)
    (name,) = (x.name for x in made.graph.input)
    for n in sizes:
        x = inputs(n, random)
        with mpchain.using_config("train", False), mpchain.no_backprop_mode():
            expected = model(mpchain.Variable(x)).array
        (y,) = run(made, {name: x})
        scale = max(1.0, float(abs(expected).max()))
        np.testing.assert_allclose(y, expected, tolerance, tolerance * scale)
    return made


@pytest.mark.parametrize("name", MODELS)
def test_model(name):
    check(*MODELS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_model(name):
    check(*LARGE[name])


@pytest.mark.nightly  # the model has 138 million parameters
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", HUGE)
def test_huge_model(name):
    check(*HUGE[name], sizes=[1])


@pytest.mark.parametrize("kind", [L.NStepBiLSTM, L.NStepGRU, L.NStepBiRNNTanh])
def test_recurrent_layers(kind):
    x = np.random.RandomState(0).randn(3, 5, 3).astype(np.float32)
    model = Sequences(kind)
    made = mpchain.onnx.export(model, x, batch_axis=None)
    np.testing.assert_allclose(run(made, {"x": x})[0], model(x).array, 1e-5, 1e-5)
