"""Tests ExponentialMovingAverage: values against plain loops, evaluation, and snapshots."""

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain.backends import cuda
from mpchain.configuration import using_config
from mpchain.datasets import TupleDataset
from mpchain.iterators import SerialIterator
from mpchain.link import Sequential
from mpchain.optimizers import SGD
from mpchain.serializers import load_npz, save_npz
from mpchain.training import Trainer
from mpchain.training.updaters import StandardUpdater
from tests.links.table import checks_of, row
from tests.reference import torch

TABLE = [
    row(
        "ExponentialMovingAverage",
        lambda: L.ExponentialMovingAverage(L.Linear(6, 4)),
        (5, 6),
        params={"average/W": (4, 6), "average/b": (4,)},
        persistents={"n_updates": 0},
        lazy=lambda: L.ExponentialMovingAverage(L.Linear(4)),
        reference=lambda w, x: torch.nn.functional.linear(x, w["average/W"], w["average/b"]),
    ),
]
globals().update(checks_of(TABLE))


def _walk(link, n, average):
    """Sets new values of the link n times, with an update of the average after each; returns the
    values."""
    values = []
    for _ in range(n):
        link.W.array = np.random.randn(*link.W.shape).astype(link.W.dtype)
        average.update()
        values.append(link.W.array.astype(np.float64))
    return values


def test_corrected_averages_are_weighted_means_of_what_there_was(device):
    link = L.Linear(3, 2).to_device(device)
    average = L.ExponentialMovingAverage(link, 0.9).to_device(device)
    with using_config("dtype", np.float32):
        values = [link.device.xp.random.randn(2, 3).astype(np.float32) for _ in range(20)]
    for value in values:
        link.W.array = value
        average.update()
    weights = 0.9 ** np.arange(20)[::-1]
    values = [cuda.to_cpu(value).astype(np.float64) for value in values]
    expected = sum(w * v for w, v in zip(weights, values)) / weights.sum()
    actual = average.to_cpu().average.W.array
    # 20 results are rounded to float32.
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert average.n_updates == 20


def test_averages_without_correction_begin_with_the_initial_values():
    link = L.Linear(3, 2)
    expected = link.W.array.astype(np.float64)
    average = L.ExponentialMovingAverage(link, 0.9, warm_up=False)
    for value in _walk(link, 20, average):
        expected = 0.9 * expected + 0.1 * value
    np.testing.assert_allclose(average.average.W.array, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("warm_up", [False, True])
def test_against_pytorch(warm_up):
    """PyTorch's AveragedModel copies the first values; then both averages move in the same way."""
    link, layer = L.Linear(3, 2, initialW=0), torch.nn.Linear(3, 2, bias=False)
    average = L.ExponentialMovingAverage(link, 0.0 if warm_up else 0.9, warm_up)
    decay = 0.0 if warm_up else 0.9
    ema = torch.optim.swa_utils.AveragedModel(
        layer, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay)
    )
    with torch.no_grad():
        layer.weight.zero_()
    ema.update_parameters(layer)
    for _ in range(5):
        link.W.array = np.random.randn(2, 3).astype(np.float32)
        average.update()
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(link.W.array))
        ema.update_parameters(layer)
    expected = ema.module.weight.detach().numpy()
    np.testing.assert_allclose(average.average.W.array, expected, rtol=1e-5, atol=1e-6)


def test_the_first_corrected_average_is_the_value_itself():
    link = L.Linear(3, 2)
    average = L.ExponentialMovingAverage(link, 0.999)
    (value,) = _walk(link, 1, average)
    np.testing.assert_array_equal(average.average.W.array, value.astype(np.float32))
    assert average.average.W.array is not link.W.array


def test_persistent_values_are_copied_and_the_link_is_left_alone():
    link = Sequential(L.Linear(3), L.BatchNormalization())
    average = L.ExponentialMovingAverage(link, 0.9)
    x = np.random.randn(4, 2).astype(np.float32)
    for _ in range(3):
        link(x)
        average.update()
    statistics = average.average[1]
    np.testing.assert_array_equal(statistics.avg_mean, link[1].avg_mean)
    assert statistics.avg_mean is not link[1].avg_mean
    with using_config("train", False):
        np.testing.assert_allclose(average(x).array, link(x).array, rtol=1e-5, atol=1e-6)


def test_parameters_that_come_later_are_followed():
    link = L.Linear(3)
    average = L.ExponentialMovingAverage(link, 0.9)
    average.update()
    assert not average.average.W.is_initialized
    link(np.ones((2, 4), np.float32))
    average.update()
    np.testing.assert_array_equal(average.average.W.array, link.W.array)
    assert average.average.W.array is not link.W.array


def test_an_optimizer_sees_the_model_alone():
    model = L.Linear(3, 2)
    average = L.ExponentialMovingAverage(model)
    optimizer = SGD().setup(model)
    assert {id(p) for p in model.params()}.isdisjoint({id(p) for p in average.params()})
    assert all(p.update_rule is None for p in average.params())
    assert optimizer.target is model


def _trainer(out, n):
    np.random.seed(0)
    model = L.Classifier(Sequential(L.Linear(4), F.tanh, L.Linear(2)))
    average = L.ExponentialMovingAverage(model, 0.5)
    x = np.random.RandomState(1).randn(12, 3).astype(np.float32)
    data = TupleDataset(x, np.arange(12, dtype=np.int32) % 2)
    iterator = SerialIterator(data, 4, shuffle=False)
    updater = StandardUpdater(iterator, SGD(0.5).setup(model))
    trainer = Trainer(updater, (n, "iteration"), out)
    trainer.extend(average.extension())
    return trainer, model, average


def test_a_snapshot_has_the_average_and_resumes_it(tmp_path):
    trainer, model, through = _trainer(tmp_path, 6)
    trainer.run()
    assert through.n_updates == 6
    distance = through.average.predictor[2].W.array - model.predictor[2].W.array
    assert abs(distance).max() > 0

    first, _, _ = _trainer(tmp_path, 3)
    first.run()
    save_npz(tmp_path / "snapshot.npz", first)
    second, _, resumed = _trainer(tmp_path, 6)
    load_npz(tmp_path / "snapshot.npz", second)
    assert resumed.n_updates == 3
    second.run()
    for p, q in zip(through.params(), resumed.params(), strict=True):
        np.testing.assert_array_equal(p.array, q.array)


def test_the_extension_has_a_name_and_comes_before_evaluators(tmp_path):
    trainer, _, average = _trainer(tmp_path, 1)
    extension = trainer.get_extension("ExponentialMovingAverage")
    assert extension.average is average and extension.priority > 300


def test_repr():
    assert repr(L.ExponentialMovingAverage(L.Linear(3, 2), 0.9)) == (
        "ExponentialMovingAverage(decay=0.9, warm_up=True,\n"
        "  (average): Linear(in_size=3, out_size=2, nobias=False),\n)"
    )


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_decays(decay):
    with pytest.raises(ValueError, match=f"decay must be at least 0 and below 1, but is {decay}"):
        L.ExponentialMovingAverage(L.Linear(3, 2), decay)


def test_a_link_that_has_changed_its_structure():
    model = Sequential(L.Linear(3, 2))
    average = L.ExponentialMovingAverage(model)
    model.pop()
    with pytest.raises(ValueError, match=r"update: link must have the same structure, but at /0"):
        average.update()
