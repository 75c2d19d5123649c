import io
import json
import math

import numpy as np
import pytest

from mpchain.serializers import load_npz, save_npz
from mpchain.training import extensions


def read_log(trainer, name="log"):
    return json.loads((trainer.out / name).read_text())


LOSSES = [1.0, 2.0, 6.0, None, 8.0, 5.0, 7.0]


def test_log(run_with_values):
    log_report = extensions.LogReport()
    trainer = run_with_values(LOSSES, [log_report])
    log = read_log(trainer)
    assert log == log_report.log
    assert [list(entry) for entry in log] == [["loss", "epoch", "iteration", "elapsed_time"]] * 2
    assert [(entry["loss"], entry["epoch"], entry["iteration"]) for entry in log] == [
        (3.0, 1, 3),
        (8.0, 2, 5),
    ]
    assert 0 < log[0]["elapsed_time"] < log[1]["elapsed_time"] <= trainer.elapsed_time


def test_log_of_chosen_keys_and_an_interval_without_values(run_with_values):
    def observe(trainer):
        trainer.observation["other"] = 5

    report = extensions.LogReport(["loss", "absent"], trigger=(2, "iteration"))
    observe.priority = 500
    with pytest.warns(
        UserWarning,
        match=r"LogReport: .* never reported: 'absent'; reported were 'loss', ",
    ):
        trainer = run_with_values([1.0, 2.0, None, None], [observe, report])
    assert [{**entry, "elapsed_time": 0} for entry in read_log(trainer)] == [
        {"loss": 1.5, "epoch": 0, "iteration": 2, "elapsed_time": 0},
        {"epoch": 1, "iteration": 4, "elapsed_time": 0},
    ]


def test_log_holds_any_number_as_a_float(run_with_values):
    values = [np.float32(0.5), np.array(2), 3, math.inf, math.nan]
    trainer = run_with_values(values, [extensions.LogReport(trigger=(1, "iteration"))])
    losses = [entry["loss"] for entry in read_log(trainer)]
    assert losses[:4] == [0.5, 2.0, 3.0, math.inf]
    assert math.isnan(losses[4])


def test_postprocess_and_file_name(run_with_values):
    def double(entry):
        entry["double"] = np.float32(entry["loss"] * 2)

    report = extensions.LogReport(
        trigger=(2, "iteration"), postprocess=double, filename="log_{iteration}.json"
    )
    trainer = run_with_values([1.0, 2.0, 3.0, 4.0], [report])
    assert sorted(path.name for path in trainer.out.iterdir()) == ["log_2.json", "log_4.json"]
    assert [entry["double"] for entry in read_log(trainer, "log_4.json")] == [3.0, 7.0]


def test_no_log_file(run_with_values):
    report = extensions.LogReport(filename=None)
    trainer = run_with_values(LOSSES, [report])
    assert list(trainer.out.iterdir()) == []
    assert len(report.log) == 2


def test_table(run_with_values, capsys):
    table = extensions.PrintReport(["epoch", "loss", "absent", "a_name_of_15_ch", "text"])

    def postprocess(entry):
        entry["text"] = "abc"

    log_report = extensions.LogReport(postprocess=postprocess)
    with pytest.warns(
        UserWarning, match=r"PrintReport: .* never reported: 'absent', 'a_name_of_15"
    ):
        run_with_values(LOSSES, [log_report, table])
    assert capsys.readouterr().out.splitlines() == [
        "epoch       loss        absent      a_name_of_15_ch  text",
        "1           3                                        abc",
        "2           8                                        abc",
    ]


def test_no_warning_before_a_name_could_have_come(make_trainer, tmp_path):
    def fail(trainer):
        raise RuntimeError("on purpose")

    trainer = make_trainer()
    log_report = extensions.LogReport(["absent"])
    followers = [extensions.PrintReport(["absent"]), extensions.PlotReport(["absent"])]
    for extension in (log_report, *followers, fail):
        trainer.extend(extension, trigger=(1, "iteration"))
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.run(show_loop_exception_msg=False)


def test_table_misses_nothing_when_it_comes_before_the_log(run_with_values):
    out = io.StringIO()
    table = extensions.PrintReport(["iteration"], out=out)
    run_with_values([1.0, 2.0], [table, extensions.LogReport(trigger=(1, "iteration"))])
    assert out.getvalue().split() == ["iteration", "1", "2"]


def test_table_with_a_log_of_its_own(run_with_values, tmp_path):
    out = io.StringIO()
    log_report = extensions.LogReport(trigger=(2, "iteration"), filename=None)
    table = extensions.PrintReport(["loss"], log_report, out=out)
    trainer = run_with_values([1.0, 2.0, 3.0], [table])
    assert out.getvalue().split() == ["loss", "1.5"]
    save_npz(tmp_path / "state", trainer)
    resumed = extensions.LogReport(trigger=(2, "iteration"), filename=None)
    load_npz(tmp_path / "state", extensions.PrintReport(["loss"], resumed),
             path="extensions/PrintReport")  # fmt: skip
    assert resumed.log == log_report.log


def test_table_names_the_missing_log(run_with_values):
    with pytest.raises(ValueError, match="there is no extension named 'LogReport'; known: "):
        run_with_values([1.0], [extensions.PrintReport(["loss"])])


def test_observed_values(make_trainer):
    class Optimizer:
        lr = 0.25

    seen = []
    trainer = make_trainer((2, "epoch"))
    trainer.updater.get_optimizer = {"main": Optimizer, "gen": Optimizer}.__getitem__
    trainer.extend(extensions.observe_lr())
    trainer.extend(extensions.observe_lr("gen", "gen_lr"), trigger=(1, "iteration"))
    trainer.extend(extensions.observe_value("twice", lambda trainer: trainer.updater.iteration * 2))
    trainer.extend(lambda trainer: seen.append(trainer.observation), "seen")
    trainer.run()
    assert seen == [
        {"gen_lr": 0.25},
        {"gen_lr": 0.25},
        {"lr": 0.25, "gen_lr": 0.25, "twice": 6},
        {"gen_lr": 0.25},
        {"lr": 0.25, "gen_lr": 0.25, "twice": 10},
    ]
