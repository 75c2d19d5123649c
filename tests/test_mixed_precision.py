"""Tests training under mixed16 and mixed_bf16, and updates of half-precision parameters by float32
copies."""

import warnings

import numpy as np
import pytest

import mpchain
from mpchain import (
    Chain,
    Sequential,
    mixed16,
    mixed_bf16,
    optimizers,
    update_rule,
    using_config,
)
from mpchain import functions as F
from mpchain import links as L
from mpchain.serializers import load_npz, save_npz
from tests.models import LanguageModel

BFLOAT16 = mixed_bf16.dtype


class ConvNet(Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(None, 6, 3, pad=1, nobias=True)
            self.norm = L.BatchNormalization(6)
            self.conv2 = L.Convolution2D(6, 8, 3, stride=2)
            self.norm2 = L.GroupNormalization(2, 8)
            self.fc = L.Linear(None, 3)

    def forward(self, x):
        h = F.relu(self.norm(self.conv(F.reshape(x, (-1, 1, 6, 6)))))
        return self.fc(F.relu(self.norm2(self.conv2(h))))


class Reader(LanguageModel):
    def forward(self, x):
        return F.concat(self.read(x), 0)


def images(dtype):
    random = np.random.RandomState(0)
    labels = random.randint(0, 3, 60).astype(np.int32)
    x = random.randn(60, 36) * 0.5
    x[np.arange(60), labels] += 2
    return x.astype(dtype), labels


def text(dtype):
    """Returns sequences in which each symbol is the previous symbol plus the step of the sequence,
    modulo 7; and the next symbols."""
    starts, steps = np.meshgrid(np.arange(7), np.arange(1, 4))
    x = (starts.reshape(-1, 1) + steps.reshape(-1, 1) * np.arange(8)) % 7
    return x[:, :-1].astype(np.int32), x[:, 1:].T.reshape(-1).astype(np.int32)


def mlp():
    return Sequential(L.Linear(None, 20), F.relu, L.LayerNormalization(20), L.Linear(20, 3))


MODELS = {"mlp": (mlp, images), "convnet": (ConvNet, images), "lstm": (lambda: Reader(7, 12), text)}


def trained(name, policy, scaling=None, steps=60):
    """Trains a model; returns the model and the losses."""
    make, data = MODELS[name]
    np.random.seed(0)
    with using_config("dtype", policy):
        model = make()
        x, t = data(mpchain.get_dtype(policy))
        optimizer = optimizers.Adam(0.01).setup(model)
        if policy in (mixed16, mixed_bf16):
            optimizer.use_fp32_update()
        if scaling is not None:
            optimizer.loss_scaling(**scaling)
        losses = []

        def loss():
            y = model(x)
            assert y.dtype == mpchain.get_dtype(policy)
            value = F.softmax_cross_entropy(y, t)
            losses.append(float(value.array))
            return value

        for _ in range(steps):
            optimizer.update(loss)
    return model, losses


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_training_in_half_precision_converges_as_in_single(name):
    _, expected = trained(name, np.dtype(np.float32))
    assert expected[-1] < 0.5 * expected[0]
    # The relative spacing of float16 is 1e-3, for weights and for the loss; for bfloat16 it is
    # 8e-3.
    for policy, scaling, rtol, atol in (
        (mixed16, {"scale": 128.0}, 0.05, 5e-3),
        (mixed_bf16, None, 0.15, 0.04),
    ):
        model, losses = trained(name, policy, scaling)
        np.testing.assert_allclose(losses, expected, rtol=rtol, atol=atol, err_msg=str(policy))
        assert policy.dtype in {p.dtype for p in model.params()}


@pytest.mark.slow
def test_a_dynamic_loss_scale_finds_its_range():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, losses = trained("convnet", mixed16, {}, steps=80)
    assert all("is skipped" in str(w.message) for w in caught) and len(caught) < 5
    _, expected = trained("convnet", np.dtype(np.float32), steps=80)
    assert losses[-1] < max(2 * expected[-1], 0.05)


def test_training_goes_on_from_a_file_as_if_it_had_not_stopped(tmp_path):
    def run(model, optimizer, steps):
        x, t = images(np.float16)
        for _ in range(steps):
            optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
        return [p.array for p in model.params()]

    def make():
        with using_config("dtype", mixed16):
            model = Sequential(L.Linear(36, 20), F.relu, L.Linear(20, 3))
        optimizer = optimizers.Adam(1e-4).setup(model)
        optimizer.use_fp32_update()
        optimizer.loss_scaling(scale=128.0)
        return model, optimizer

    model, optimizer = make()
    run(model, optimizer, 5)
    save_npz(tmp_path / "model.npz", model)
    save_npz(tmp_path / "optimizer.npz", optimizer)
    expected = run(model, optimizer, 5)
    model, optimizer = make()
    load_npz(tmp_path / "model.npz", model)
    load_npz(tmp_path / "optimizer.npz", optimizer)
    for array, other in zip(run(model, optimizer, 5), expected, strict=True):
        np.testing.assert_array_equal(array, other)


def test_a_file_without_float32_copies_loads(tmp_path):
    """Chainer's files have no float32 copies, so the copies start from the parameters."""
    link = L.Linear(2, 2, initialW=np.float16(0.5))
    for param in link.params():
        param.array = param.array.astype(np.float16)
    optimizer = optimizers.MomentumSGD(0).setup(link)
    optimizer.use_fp32_update()
    optimizer.loss_scaling(scale=1)
    optimizer.update(lambda: F.sum(link(np.ones((1, 2), np.float16))))
    save_npz(tmp_path / "optimizer.npz", optimizer)
    with np.load(tmp_path / "optimizer.npz") as file:
        assert file["W/fp32_param"].dtype == np.float32
        kept = {k: v for k, v in file.items() if "fp32" not in k}
    np.savez(tmp_path / "old.npz", **kept)
    load_npz(tmp_path / "old.npz", optimizer)
    assert optimizer.t == 1
    optimizer.update(lambda: F.sum(link(np.ones((1, 2), np.float16))))
    np.testing.assert_array_equal(link.W.array, np.full((2, 2), np.float16(0.5)))


def test_half_precision_loads_a_file_of_single_precision(tmp_path):
    model, _ = trained("convnet", np.dtype(np.float32), steps=2)
    save_npz(tmp_path / "model.npz", model)
    with using_config("dtype", mixed16):
        half = ConvNet()
        load_npz(tmp_path / "model.npz", half)
    assert half.conv.W.dtype == half.fc.W.dtype == np.float16
    assert half.norm.gamma.dtype == half.norm.avg_var.dtype == np.float32
    np.testing.assert_array_equal(half.conv.W.array, model.conv.W.array.astype(np.float16))
    np.testing.assert_array_equal(half.norm.avg_var, model.norm.avg_var)
    x = images(np.float32)[0]
    with using_config("train", False):
        half_y, y = half(x.astype(np.float16)), model(x)
    assert half_y.dtype == np.float16
    np.testing.assert_allclose(half_y.array, y.array, rtol=0.02, atol=0.01)


def test_float32_copies_of_bfloat16_take_the_steps_of_float32():
    """Both trainings compute gradients at rounded weights; the copies add up changes too small for
    bfloat16."""
    start = np.array([[1.0, -2.0]], np.float32)
    link, single = (L.Linear(2, 1, nobias=True, initialW=start) for _ in range(2))
    link.W.array = link.W.array.astype(BFLOAT16)
    optimizer, other = optimizers.MomentumSGD(1e-4).setup(link), optimizers.MomentumSGD(1e-4)
    optimizer.use_fp32_update()
    other.setup(single)
    x = np.array([[1.0, 0.5], [-0.25, 2.0]], BFLOAT16)
    for _ in range(20):
        optimizer.update(lambda: F.sum(link(x) ** 2))
        single.W.grad = link.W.grad.astype(np.float32)
        other.update()
        copy = link.W.update_rule.kept()["fp32_param"]
        np.testing.assert_array_equal(copy, single.W.array)
        np.testing.assert_array_equal(link.W.array, single.W.array.astype(BFLOAT16))
    assert not np.array_equal(link.W.array.astype(np.float32), start)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=str)
def test_float32_copies_follow_what_others_set(dtype):
    copy = np.array([1.001, -1e-9, np.nan, 3.0, np.inf, 0.0], np.float32)
    half = copy.astype(dtype)
    expected = copy.copy()
    update_rule._take_values_of_others(copy, half)
    # No parameter was set from outside, so no digit is lost.
    np.testing.assert_array_equal(copy, expected)
    half[3], half[5] = 5, -0.0
    expected[3] = 5
    update_rule._take_values_of_others(copy, half)
    np.testing.assert_array_equal(copy, expected)
    assert not np.signbit(copy[5]) and np.signbit(copy[1])
    half.reshape(2, 3).T[0, 1] = 7
    update_rule._take_values_of_others(copy.reshape(2, 3).T, half.reshape(2, 3).T)
    assert copy[3] == 7 and copy[0] == np.float32(1.001)


@pytest.mark.parametrize("make", [optimizers.SGD, optimizers.Adam, optimizers.RMSprop], ids=str)
def test_bfloat16_without_copies_loses_small_steps(make):
    link = L.Linear(2, 1, nobias=True, initialW=np.ones((1, 2), np.float32))
    link.W.array = link.W.array.astype(BFLOAT16)
    optimizer = make(1e-4).setup(link)
    x = np.ones((1, 2), BFLOAT16)
    with pytest.warns(UserWarning, match=r"parameters are bfloat16: call .* use_fp32_update\(\)"):
        optimizer.update(lambda: F.sum(link(x)))
    assert link.W.dtype == x.dtype and link.W.array.tolist() == [[1, 1]]


def test_bfloat16_needs_no_loss_scale(recwarn):
    with using_config("dtype", mixed_bf16):
        link = L.Linear(2, 1)
    optimizer = optimizers.SGD().setup(link)
    optimizer.use_fp32_update()
    optimizer.update(lambda: F.sum(link(np.full((1, 2), 1e-30, BFLOAT16))))
    assert link.W.grad.any() and not recwarn.list


def test_a_constant_loss_scale_of_bfloat16():
    link = L.Linear(2, 1, nobias=True, initialW=np.ones((1, 2), np.float32))
    link.W.array = link.W.array.astype(BFLOAT16)
    optimizer = optimizers.SGD(0.5).setup(link)
    optimizer.use_fp32_update(False)
    optimizer.set_loss_scale(4.0)
    optimizer.update(lambda: F.sum(link(np.ones((1, 2), BFLOAT16))))
    assert link.W.array.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("is_enabled", [False, True])
def test_an_update_without_gradient_keeps_values_that_others_set(is_enabled):
    param = mpchain.Parameter(np.ones(2, np.float16))
    rule = optimizers.SGD(0.5).create_update_rule()
    rule.use_fp32_update()
    param.grad = np.ones(2, np.float16)
    rule.update(param)
    param.cleargrad()
    param.array[...] = 3
    rule.enabled = is_enabled
    rule.update(param)
    assert (param.array == 3).all()
    rule.enabled, param.grad = True, np.ones(2, np.float16)
    rule.update(param)
    assert (param.array == 2.5).all()
