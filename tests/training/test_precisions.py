"""Tests that training reports the same, to rounding, in each precision: log, table, plot, early
stopping, evaluator, statistics and snapshots."""

import json
import warnings

import numpy as np
import pytest

import mpchain
from mpchain import iterators, mixed16, mixed_bf16, optimizers, training, using_config
from mpchain import links as L
from mpchain.serializers import load_npz
from mpchain.training import extensions, triggers, updaters

# For each policy, the allowed difference of mean losses and accuracies from float64. The means are
# sums of a few products, each rounded to 53, 24, 11 or 8 bits; a wrong class changes the accuracy.
TOLERANCES = {
    "float64": 1e-12,
    "float32": 1e-5,
    "mixed16": 1e-2,
    "mixed_bf16": 5e-2,
    "float16": 1e-2,
    "bfloat16": 5e-2,
}
POLICIES = {"mixed16": mixed16, "mixed_bf16": mixed_bf16, "bfloat16": mixed_bf16.dtype}


class Wide(mpchain.Chain):
    """A classifier that also reports NumPy scalars of its dtype, such as sums of arrays."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.fc = L.Linear(6, 3, initialW=np.linspace(-1, 1, 18).reshape(3, 6))

    def forward(self, x, t):
        y = self.fc(x)
        loss = mpchain.functions.softmax_cross_entropy(y, t)
        accuracy = mpchain.functions.accuracy(y, t)
        mpchain.report({"loss": loss, "accuracy": accuracy, "largest": y.array.max()}, self)
        return loss


def train(folder, name, n_epochs=3):
    with using_config("dtype", POLICIES.get(name) or np.dtype(name)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # plain policies warn that they have no float32 copies
        dtype = mpchain.get_dtype()
        random = np.random.RandomState(0)
        labels = random.randint(0, 3, 32).astype(np.int32)
        x = random.uniform(-1, 1, (32, 6))
        x[np.arange(32), labels] += 2
        data = [(row.astype(dtype), label) for row, label in zip(x, labels)]
        model = Wide()
        optimizer = optimizers.SGD(0.125).setup(model)
        if name.startswith("mixed"):
            optimizer.use_fp32_update()
        if name == "mixed16":
            optimizer.set_loss_scale(8.0)
        updater = updaters.StandardUpdater(
            iterators.SerialIterator(data, 8, shuffle=False), optimizer
        )
        stop = triggers.EarlyStoppingTrigger(
            monitor="validation/main/loss", patience=1, mode="max", max_trigger=(n_epochs, "epoch")
        )
        trainer = training.Trainer(updater, stop, out=folder)
        valid = iterators.SerialIterator(data, 8, repeat=False, shuffle=False)
        trainer.extend(extensions.Evaluator(valid, model))
        trainer.extend(extensions.LogReport())
        trainer.extend(extensions.PrintReport(["epoch", "main/loss", "validation/main/loss"]))
        trainer.extend(extensions.PlotReport(["main/loss"], trigger=(1, "epoch"), filename="l.png"))
        trainer.extend(extensions.snapshot(filename="saved"), trigger=(1, "epoch"))
        trainer.extend(extensions.ParameterStatistics(model), trigger=(1, "iteration"))
        trainer.run()
        with open(folder / "log") as file:
            return trainer, json.load(file)


KEYS = ["accuracy", "largest", "loss"]


@pytest.mark.parametrize("name", TOLERANCES)
def test_each_precision_reports_its_values(name, tmp_path, capsys):
    """``mode="max"`` stops training at the second epoch, because the loss falls, so it does not
    improve."""
    trainer, log = train(tmp_path / "here", name)
    lines = capsys.readouterr().out.splitlines()
    _, expected = train(tmp_path / "there", "float64")
    names = [f"{where}main/{key}" for where in ("", "validation/") for key in KEYS]
    names += [key for key in expected[0] if "/fc/W/data/m" in key]
    assert len(names) == 9 and len(log) == len(expected) == 2
    for entry, wanted in zip(log, expected, strict=True):
        for key in names:
            assert entry[key] == pytest.approx(wanted[key], abs=TOLERANCES[name] * 4), key
    assert log[1]["main/loss"] < log[0]["main/loss"]
    table = [line.split() for line in lines if line[:1] in "12"]
    assert [len(row) for row in table] == [3, 3] and float(table[0][1]) > float(table[1][1])
    assert (tmp_path / "here" / "l.png").stat().st_size > 1000
    assert trainer.updater.epoch == 2


@pytest.mark.parametrize("name", TOLERANCES)
def test_a_snapshot_of_each_precision_resumes(name, tmp_path):
    trainer, _ = train(tmp_path / "here", name)
    fresh, _ = train(tmp_path / "there", name, n_epochs=1)
    load_npz(tmp_path / "here" / "saved", fresh)
    was, now = (t.updater.get_optimizer("main").target.fc.W.array for t in (trainer, fresh))
    assert was.dtype == now.dtype and was.tobytes() == now.tobytes()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_debug_mode_sees_nan_in_each_precision(name):
    dtype = POLICIES.get(name) or np.dtype(name)
    x = mpchain.Variable(np.array([np.nan], np.float32).astype(dtype))
    with using_config("debug", True), pytest.raises(RuntimeError, match="NaN"):
        x * 1
