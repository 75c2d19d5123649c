"""Tests WeightStandardization."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable
from mpchain.link_hooks import WeightStandardization
from tests.functions.harness import check_orders

LINKS = {
    "linear": (L.Linear, (4, 3), (2, 3)),
    "convolution": (L.Convolution2D, (4, 3, 2, 2), (2, 3, 5, 5)),
    "deconvolution": (L.Deconvolution2D, (3, 4, 2, 2), (2, 3, 5, 5)),
}


@pytest.fixture(autouse=True)
def _double_precision():
    with mpchain.using_config("dtype", np.dtype(np.float64)):
        yield


def _standardized(W, eps):
    axes = tuple(range(1, W.ndim))
    return (W - W.mean(axes, keepdims=True)) / np.sqrt(W.var(axes, keepdims=True) + eps)


def _made(kind):
    link, w_shape, x_shape = LINKS[kind]
    random = np.random.RandomState(0)
    return link, random.randn(*w_shape) + 1, random.randn(*x_shape)


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_values(kind, eps):
    link, W, x = _made(kind)
    layer = link.from_params(W.copy()).add_hook(WeightStandardization(eps=eps))
    expected = link.from_params(_standardized(W, eps))(x)
    np.testing.assert_allclose(layer(x).array, expected.array, rtol=1e-10)
    np.testing.assert_array_equal(layer.W.array, W)


@pytest.mark.parametrize("kind", LINKS)
def test_every_order_by_input_and_weight(kind):
    link, W, x = _made(kind)
    layer = link.from_params(W).add_hook(WeightStandardization())

    def function(x, W):
        layer.W = W
        return F.sum(F.tanh(layer(x)))

    check_orders(function, [x, W], orders=2)


def test_gradient_reaches_the_parameter():
    link, W, x = _made("linear")
    layer = link.from_params(W).add_hook(WeightStandardization())
    weight = layer.W
    F.sum(layer(x)).backward()
    assert layer.W is weight
    # The standardized weight does not change if a constant is added to W.
    np.testing.assert_allclose(weight.grad.sum(axis=1), 0, atol=1e-10)


def test_a_link_whose_weight_has_no_shape_yet():
    layer = L.Linear(None, 4).add_hook(WeightStandardization())
    x = np.ones((2, 3))
    y = layer(x)
    np.testing.assert_allclose(y.array, x @ _standardized(layer.W.array, 1e-5).T, atol=1e-12)


def test_the_shape_is_found_without_effects():
    class Late(L.Linear):
        def forward(self, x):
            calls.append((mpchain.config.in_recomputing, mpchain.config.enable_backprop))
            return super().forward(x)

    calls = []
    layer = Late(None, 4).add_hook(WeightStandardization())
    for _ in range(2):
        layer(np.ones((2, 3)))
    assert calls == [(True, False), (False, True), (False, True)]


def test_device_and_dtype(device):
    layer = L.Linear(3, 4).to_device(device).add_hook(WeightStandardization())
    y = layer(layer.device.send(np.ones((2, 3))))
    assert y.dtype == np.float64 and y.device == layer.device


def test_name_and_weight_name():
    layer = L.Linear(3, 4)
    with pytest.raises(
        ValueError, match="WeightStandardization: weight 'V' does not exist in Linear"
    ):
        layer.add_hook(WeightStandardization(weight_name="V"))
    layer = L.Linear(3, 4).add_hook(WeightStandardization(name="mine"))
    assert list(layer.local_link_hooks) == ["mine"]
    with pytest.raises(
        NotImplementedError, match="WeightStandardization cannot be used in a with statement"
    ):
        with WeightStandardization():
            pass


def test_other_hooks_can_be_there():
    class Seen(mpchain.LinkHook):
        name = "seen"

        def forward_postprocess(self, args):
            self.weight = args.link.W

    layer, seen = L.Linear(3, 4), Seen()
    weight = layer.W
    layer.add_hook(seen).add_hook(WeightStandardization())
    layer(np.ones((2, 3)))
    assert layer.W is weight and isinstance(seen.weight, Variable)
