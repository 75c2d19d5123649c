"""Tests the counts of launches, bytes and operations for estimates, without computing."""

import math

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import optimizers
from tests.benchmarks.paper import card, least
from tests.gpu.test_budgets import CASES

pytestmark = pytest.mark.gpu


def _counted(double, model, batch, computes):
    model.to_device("@cupy:0")
    optimizer = optimizers.Adam().setup(model)
    send = mpchain.get_device("@cupy:0").send
    double.computes = computes
    try:
        for _ in range(2):
            double.reset()
            optimizer.update(model, *map(send, batch))
    finally:
        double.computes = True
    return list(double.work)


@pytest.mark.parametrize("name", ["perceptron", "transformer"])
def test_what_is_not_computed_is_counted_alike(name, double):
    make, _, batch, _ = CASES[name]
    assert _counted(double, make(), batch, False) == _counted(double, make(), batch, True)


def test_operations_of_a_convolution_and_what_it_copies(double, library):
    """The input needs no gradient, so two of three convolutions remain. cuDNN copies arrays in half
    precision whose channels come first."""
    x = mpchain.get_device("@cupy:0").send(np.ones((2, 3, 32, 32), "e"))
    with mpchain.using_config("dtype", mpchain.mixed16):
        layer = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
    layer.to_device("@cupy:0")
    double.reset()
    F.sum(layer(x)).backward()
    work = [each for each in double.work if each.name.startswith("cudnn")]
    assert [each.flops for each in work] == [2.0 * 2 * 32 * 32 * 8 * 3 * 9] * 2
    assert [each.copied for each in work] == [0, 0]  # mpchain has moved the channels to the end

    # Importing this module also imports the double.
    from tests.gpu.doubles.cudnn_double.nodes import describe_work

    graph = {"tensors": [], "nodes": [{"tag": "CONV_FPROP", "inputs": {}, "outputs": {}}]}
    shapes = {"X": (2, 3, 4, 5), "W": (8, 3, 1, 1), "Y": (2, 8, 4, 5)}
    for uid, (port, shape) in enumerate(shapes.items()):
        strides = [math.prod(shape[i + 1 :]) for i in range(4)]
        kind = {"data_type": "HALF", "is_virtual": False}
        graph["tensors"].append({"uid": uid, "dim": shape, "stride": strides, **kind})
        graph["nodes"][0]["outputs" if port == "Y" else "inputs"][port] = uid
    # With one element per channel, the memory order of the filter is as if the channels were last.
    assert describe_work(graph)["copied"] == 2 * 2 * 2 * 4 * 5 * (3 + 8)


def test_time_of_a_kernel():
    """The memory's bandwidth limits a sum, and narrow loads reach only a part of it."""
    wide, narrow = (card.Kernel("sum", 3e9, grain=grain).seconds() for grain in (0, 2))
    assert wide == 3e9 / (0.9 * card.BANDWIDTH)
    assert 2 < narrow / wide < 4
    assert card.Kernel("product", 1.0, flops=1e12).seconds() == 1e12 / (0.6 * card.HALF)


def test_time_of_a_step():
    kernels = [card.Kernel("small", 1e3)] * 100
    step = card.Step(kernels, card.OURS)
    assert step.seconds() == pytest.approx(100 * card.OURS)
    assert step.seconds(is_captured=True) < 0.2 * step.seconds()


def test_the_least_of_gpt2_has_its_parameters():
    assert least.of("GPT-2")["optimizer"] == least.ADAM * 124_439_808
    # A bias of 1000 elements is missing.
    assert least.of("ResNet-50")["optimizer"] == least.SGD * 25_556_032


def test_operations_of_pytorch():
    pytest.importorskip("torch")
    from tests.benchmarks.paper import theirs

    step = theirs.count("MLP")
    names = [kernel.name for kernel in step.kernels]
    assert names.count("product") == 8
    flops = sum(kernel.flops for kernel in step.kernels)
    assert flops == 2 * 64 * (2 * 784 * 256 + 3 * 256 * 256 + 3 * 256 * 10)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name, most", [("ResNet-50", 1.3), ("GPT-2", 1.3), ("GPT-2 with dropout", 1.3)]
)
def test_a_step_of_full_size_moves_little_more_than_it_must(name, most, double, library):
    from tests.benchmarks.paper import ours

    assert ours.count(name).n_bytes <= most * least.of(name).total()
