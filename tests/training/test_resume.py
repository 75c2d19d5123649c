"""Tests that a small training that is interrupted and resumed equals the uninterrupted training."""

import os
import signal

import numpy as np
import pytest

from mpchain import links as L
from mpchain import optimizers, training
from mpchain.datasets import TupleDataset
from mpchain.iterators import SerialIterator
from mpchain.serializers import load_npz
from mpchain.training import extensions, triggers
from tests.models import MLP

pytestmark = pytest.mark.slow


def make_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 5)).astype(np.float32)
    return TupleDataset(x, x[:, :3].argmax(axis=1).astype(np.int32))


def make_trainer(out, n_epochs, seed):
    np.random.seed(seed)
    train = validation = make_data()
    model = L.Classifier(MLP(None, 0.2, 8, 3))
    optimizer = optimizers.Adam(0.01).setup(model)
    iterator = SerialIterator(train, 8)
    trainer = training.Trainer(
        training.StandardUpdater(iterator, optimizer), (n_epochs, "epoch"), out
    )
    trainer.extend(
        extensions.Evaluator(SerialIterator(validation, 20, repeat=False, shuffle=False), model)
    )
    trainer.extend(extensions.LogReport(trigger=(3, "iteration")))
    trainer.extend(extensions.snapshot(), trigger=(1, "iteration"))
    trainer.extend(
        extensions.snapshot_object(model, "best"),
        trigger=triggers.MinValueTrigger("main/loss", (5, "iteration")),
    )
    trainer.extend(extensions.FailOnNonNumber())
    return trainer


def outcome(trainer):
    """Returns the log of the training without times, and its parameters."""
    log = [
        {key: value for key, value in entry.items() if key != "elapsed_time"}
        for entry in trainer.get_extension("LogReport").log
    ]
    model = trainer.updater.get_optimizer("main").target
    return log, {name: param.array.copy() for name, param in model.namedparams()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    trainer = make_trainer(tmp_path_factory.mktemp("uninterrupted"), 3, seed=0)
    trainer.run()
    return trainer


@pytest.mark.parametrize("iteration", [1, 6, 7, 8, 13, 18])
def test_resumed_training_is_the_uninterrupted_one(uninterrupted, tmp_path, iteration):
    resumed = make_trainer(tmp_path, 3, seed=1)
    load_npz(uninterrupted.out / f"snapshot_iter_{iteration}", resumed)
    assert resumed.updater.iteration == iteration
    resumed.run()
    log, params = outcome(resumed)
    expected_log, expected_params = outcome(uninterrupted)
    assert log == expected_log
    assert params.keys() == expected_params.keys()
    for name, param in params.items():
        np.testing.assert_array_equal(param, expected_params[name], strict=True)


@pytest.mark.long
@pytest.mark.parametrize("iteration", [1, 4, 9, 13])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("period", [2, 1000])
def test_training_goes_on_after_a_signal(uninterrupted, tmp_path, iteration, number, period, capfd):
    def make(seed):
        trainer = make_trainer(tmp_path, 3, seed)
        trainer.extend(
            extensions.snapshot(filename="at_{.updater.iteration}", on_interrupt=True,
                                autoload=True), trigger=(period, "iteration"))  # fmt: skip
        return trainer

    first = make(0)
    update = first.updater.update_core

    def update_and_interrupt():
        update()
        if first.updater.iteration + 1 == iteration:
            signal.raise_signal(number)

    first.updater.update_core = update_and_interrupt
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        first.run()
    assert first.updater.iteration == iteration
    assert f"at_{iteration}" in os.listdir(tmp_path)
    second = make(1)
    second.run()
    log, params = outcome(second)
    expected_log, expected_params = outcome(uninterrupted)
    assert log == expected_log
    for name, param in params.items():
        np.testing.assert_array_equal(param, expected_params[name], strict=True)
    assert f"resuming from {tmp_path}/at_{iteration}" in capfd.readouterr().out


def test_training_learns(uninterrupted):
    log, _ = outcome(uninterrupted)
    assert log[-1]["main/loss"] < log[0]["main/loss"]
    assert [entry["iteration"] for entry in log] == [3, 6, 9, 12, 15, 18]
    assert [entry["epoch"] for entry in log if "validation/main/loss" in entry] == [1, 2]


def test_fail_on_non_number(tmp_path):
    trainer = make_trainer(tmp_path, 3, seed=0)
    optimizer = trainer.updater.get_optimizer("main")

    @training.make_extension(trigger=(4, "iteration"), priority=training.PRIORITY_WRITER)
    def spoil(trainer):
        optimizer.target.predictor.l2.b.array[1] = np.inf

    trainer.extend(spoil)
    with pytest.raises(
        RuntimeError,
        match=r"parameter /predictor/l2/b of optimizer 'main' has .* infinite after iteration 4",
    ):
        trainer.run()


def test_unreadable_snapshot_names_the_file(uninterrupted, tmp_path):
    content = (uninterrupted.out / "snapshot_iter_7").read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="cut"):
        load_npz(path, make_trainer(tmp_path, 3, seed=0))


def test_snapshot_of_another_model_names_the_array(uninterrupted, tmp_path):
    trainer = make_trainer(tmp_path, 3, seed=0)
    trainer.extend(extensions.PlotReport("main/loss"))
    with pytest.raises(KeyError, match="PlotReport"):
        load_npz(uninterrupted.out / "snapshot_iter_7", trainer)
