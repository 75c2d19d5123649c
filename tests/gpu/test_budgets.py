"""Tests how many kernels training steps launch on a GPU, and how often the host waits, on the
double.

The limits are today's numbers; a change that needs more must give a reason.
"""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import optimizers
from mpchain.links.model.vision.resnet import ResNet50Layers

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


class _Mlp(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.layers = mpchain.Sequential(L.Linear(8, 6), F.relu, L.Linear(6, 6), F.relu)
            self.out = L.Linear(6, 4)

    def forward(self, x, t):
        return F.softmax_cross_entropy(self.out(self.layers(x)), t)


class _ResNet(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.net = ResNet50Layers(pretrained_model=None)

    def forward(self, x, t):
        return F.softmax_cross_entropy(self.net(x, layers=["fc6"])["fc6"], t)


class _Transformer(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embedding = L.EmbedID(20, 8)
            self.layers = mpchain.Sequential(
                *(L.TransformerEncoderLayer(8, 2, 16) for _ in range(6))
            )
            self.out = L.Linear(8, 20)

    def forward(self, x):
        y = self.out(self.layers(self.embedding(x)), n_batch_axes=2)
        return F.softmax_cross_entropy(y.reshape(-1, 20), x.ravel())


class _LanguageModel(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embedding = L.EmbedID(20, 8)
            self.layers = L.NStepLSTM(1, 8, 8, 0.0)
            self.out = L.Linear(8, 20)

    def forward(self, xs):
        _, _, ys = self.layers(None, None, [self.embedding(x) for x in xs])
        return F.softmax_cross_entropy(self.out(F.concat(ys, 0)), xs.ravel())


def _step(double, model, optimizer, *batch):
    """Returns the launches, the waits and the moved bytes of the second training step."""
    model.to_device("@cupy:0")
    optimizer.setup(model)
    for _ in range(2):
        send = mpchain.get_device("@cupy:0").send
        arrays = [send(array) for array in batch]
        double.reset()
        optimizer.update(model, *arrays)
    return double.launches.copy(), double.synchronizations.copy(), double.moved.copy()


_PIXELS = np.random.RandomState(0).rand(2, 3, 32, 32).astype(np.float32)
_LABELS = np.arange(2, dtype=np.int32)
_WORDS = np.arange(70, dtype=np.int32).reshape(2, 35) % 20
CASES = {
    "perceptron": (_Mlp, optimizers.Adam, (_PIXELS[:, 0, 0, :8].copy(), _LABELS), 23),
    "ResNet-50": (_ResNet, optimizers.MomentumSGD, (_PIXELS, _LABELS), 721),
    "transformer": (_Transformer, optimizers.Adam, (_WORDS[:, :8].copy(),), 326),
    "language model": (_LanguageModel, optimizers.SGD, (_WORDS,), 379),
}

BYTES = {
    "perceptron": 4912,
    "ResNet-50": 671_748_752,
    "transformer": 610_136,
    "language model": 528_876,
}
"""The bytes that the kernels of a step read and write; each array counts once per kernel."""


@pytest.mark.parametrize("name", CASES)
def test_a_step(name, double):
    make_model, make_optimizer, batch, most = CASES[name]
    launches, waits, moved = _step(double, make_model(), make_optimizer(), *batch)
    assert not waits, f"the host waits for the GPU: {waits}"
    steps = {place: n for place, n in launches.items() if place[0] == "mpchain_step"}
    assert sum(steps.values()) == 1
    assert launches.total() <= most, launches.most_common(30)
    assert moved.total() <= BYTES[name], moved.most_common(30)


_HALF = [
    ("mixed16", 26, 1.0),
    ("mixed16", 26, 128.0),
    ("mixed16", 34, None),
    ("mixed_bf16", 66, 1.0),
]


@pytest.mark.parametrize("name, most, scale", _HALF)
def test_a_step_of_mixed_precision(name, most, scale, double):
    """The optimizer, with its float32 copies, needs one launch, which also removes the loss scale.

    A dynamic scale takes some more launches.
    """
    make_model, make_optimizer, (x, t), _ = CASES["perceptron"]
    with mpchain.using_config("dtype", getattr(mpchain, name)):
        model, optimizer = make_model(), make_optimizer()
    optimizer.use_fp32_update()
    optimizer.loss_scaling(scale=scale)
    launches, waits, _ = _step(double, model, optimizer, x.astype(model.out.W.dtype), t)
    assert not waits, f"the host waits for the GPU: {waits}"
    assert sum(n for (kernel, _), n in launches.items() if kernel == "mpchain_step") == 1
    assert launches.total() <= most, launches.most_common(30)


def test_layer_normalization_reads_half_precision_as_it_is(double):
    """Each cast would be a pass over the array, and a launch."""
    x, g = np.random.RandomState(0).randn(2, 6, 40).astype(np.float16)
    gamma, beta = np.random.RandomState(1).randn(2, 40).astype(np.float32)
    results = {}
    for name in ("@numpy", "@cupy:0"):
        send = mpchain.get_device(name).send
        inputs = [mpchain.Variable(send(array)) for array in (x, gamma, beta)]
        double.reset()
        y = F.layer_normalization(*inputs)
        y.grad = send(g)
        y.backward()
        results[name] = [mpchain.cuda.to_cpu(v) for v in (y.array, *(v.grad for v in inputs))]
    for actual, expected in zip(results["@cupy:0"], results["@numpy"], strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, 4e-3, 4e-3)
    names = [name for name, _ in double.launches if name.startswith("mpchain") or name == "astype"]
    assert "astype" not in names and len(names) == 3


def test_dropout_of_nothing_launches_nothing(double):
    x = mpchain.Variable(mpchain.get_device("@cupy:0").send(np.ones(8, np.float16)))
    double.reset()
    F.dropout(x, 0.0)
    assert not double.launches
    F.noise.add_dropout(x, x, 0.0)
    assert [name for name, _ in double.launches] == ["mpchain_add_forward"]


def test_causal_attention_masks_once(double):
    """In backward, the weights of later keys are zero, so no mask is needed."""
    arrays = np.random.RandomState(0).randn(3, 2, 2, 5, 8).astype(np.float16)
    results = {}
    for name in ("@numpy", "@cupy:0"):
        send = mpchain.get_device(name).send
        inputs = [mpchain.Variable(send(x)) for x in arrays]
        double.reset()
        with mpchain.using_config("use_cudnn", "never"):
            y = F.scaled_dot_product_attention(*inputs, is_causal=True)
        y.grad = y.array
        y.backward()
        results[name] = [mpchain.cuda.to_cpu(v) for v in (y.array, *(v.grad for v in inputs))]
    for actual, expected in zip(results["@cupy:0"], results["@numpy"], strict=True):
        np.testing.assert_allclose(actual, expected, 1e-2, 4e-3)
    assert [name for name, _ in double.launches.elements()].count("where") == 1
