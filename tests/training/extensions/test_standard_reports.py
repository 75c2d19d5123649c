import argparse
import csv
import io
import json
import os
import pathlib
import shutil
import signal

import numpy as np
import pytest

from mpchain.serializers import load_npz
from mpchain.training import extensions
from mpchain.training.extensions.closing_report import COMMAND_VARIABLE


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    monkeypatch.delenv(COMMAND_VARIABLE, raising=False)


def observe(trainer):
    trainer.observation |= {"main/loss": 0.5, "validation/main/accuracy": 0.25}


observe.priority = 300


def interrupt_after(n, number=signal.SIGINT):
    """Returns a function that a trainer calls in updates; the n-th call sends a signal."""

    def update(updater):
        if updater.iteration == n - 1:
            os.kill(os.getpid(), number)

    return update


def test_standard_reports(make_trainer, capsys):
    trainer = make_trainer((2, "epoch"))
    trainer.extend(observe)
    extensions.standard_reports(trainer, arguments={"lr": 0.1}, snapshots=(1, "epoch"))
    trainer.run()
    head, *rows, summary, place = capsys.readouterr().out.splitlines()
    names = ["epoch", "iteration", "main/loss", "validation/main/accuracy", "elapsed_time"]
    assert head.split() == names
    assert [row.split()[:4] for row in rows] == [
        ["1", "3", "0.5", "0.25"],
        ["2", "5", "0.5", "0.25"],
    ]
    assert summary == (
        "2 epochs (5 iterations) in 0:00:00: main/loss 0.5, validation/main/accuracy 0.25"
    )
    assert place == f"results are in {trainer.out}"
    names = {path.name for path in trainer.out.iterdir() if path.name[0] != "."}
    assert names == {"log", "hyperparameters.json", "snapshot_iter_3", "snapshot_iter_5"}
    assert len(json.loads((trainer.out / "log").read_text())) == 2


def test_first_run_names_the_next_steps(make_trainer, capsys, monkeypatch):
    def train(argument):
        trainer = make_trainer((2, "epoch"))
        trainer.extend(observe)
        options = {"snapshots": (1, "epoch"), "arguments": {"resume": argument}}
        extensions.standard_reports(trainer, **options)
        trainer.run()
        lines = capsys.readouterr().out.splitlines()
        return trainer.out, [line for line in lines if line.startswith("next: ")]

    guide = "guide: docs/guides/training.md"
    page = "mpchain-launch --page to watch a run live"
    out, lines = train(None)
    assert lines == [
        f"next: add --resume {out}/snapshot_iter_5 and more epochs to train longer, {page}; {guide}"
    ]
    _, lines = train(None)  # the folder contains results of an earlier run
    assert lines == []
    shutil.rmtree(out)
    monkeypatch.setenv(COMMAND_VARIABLE, "mpchain-launch --page train.py")
    _, lines = train(False)
    assert lines == [f"next: add --resume and more epochs to train longer; {guide}"]


def test_next_steps_show_the_plots(make_trainer, capsys):
    pytest.importorskip("matplotlib")
    trainer = make_trainer((2, "epoch"))
    trainer.extend(observe)
    trainer.extend(extensions.PlotReport("main/loss", filename="loss.png"))
    options = {"snapshots": (1, "epoch"), "arguments": {"resume": None}}
    extensions.standard_reports(trainer, **options)
    trainer.run()
    assert f"\nnext: see {trainer.out}/loss.png, add --resume" in capsys.readouterr().out


def test_other_ranks_of_standard_reports_are_silent(make_trainer, capsys):
    trainer = make_trainer((2, "epoch"), rank=1)
    extensions.standard_reports(trainer, ["epoch"], snapshots=(1, "epoch"), arguments={})
    trainer.run()
    assert capsys.readouterr().out == ""
    assert list(trainer.out.iterdir()) == []


def test_columns_follow_what_is_logged(run_with_values, capsys):
    def see(trainer):
        if trainer.updater.iteration > 1:
            trainer.observation |= {"new": 1, "text": np.float32(2)}

    log = extensions.LogReport(trigger=(1, "iteration"))
    trainer = run_with_values([1.0, 2.0, 3.0], [see, log, extensions.PrintReport(None)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[::2]] == [
        ["epoch", "iteration", "loss", "elapsed_time"],
        ["epoch", "iteration", "loss", "new", "text", "elapsed_time"],
        lines[4].split(),
    ]
    assert trainer.get_extension("PrintReport").entries == lines[2].split()


def print_table(monkeypatch, run_with_values, terminal, columns, names, entries=None):
    monkeypatch.setenv("COLUMNS", str(columns))

    def see(trainer):
        trainer.observation |= dict.fromkeys(names, 0.125)

    log = extensions.LogReport(trigger=(1, "iteration"))
    run_with_values([1.0], [see, log, extensions.PrintReport(entries, out=terminal)])
    return terminal.getvalue().splitlines()


def test_head_of_a_table_that_is_wider_than_the_terminal(
    monkeypatch, run_with_values, open_terminal
):
    names = ["main/a_rather_long_name", "validation/main/accuracy", "validation/x"]
    entries = ["epoch", "loss", *names]
    assert print_table(monkeypatch, run_with_values, open_terminal(), 60, names, entries) == [
        "epoch   loss        main/a      validation  validation",
        "                    _rather     /main       /x",
        "                    _long_name  /accuracy",
        "0       1           0.125       0.125       0.125",
    ]
    names = " ".join(
        print_table(monkeypatch, run_with_values, open_terminal(), 120, names, entries)[0].split()
    )
    assert names == " ".join(entries)


def test_columns_without_room_are_left_out(monkeypatch, run_with_values, open_terminal):
    names = [f"validation/main/value_{i}" for i in range(9)]
    *head, row = print_table(monkeypatch, run_with_values, open_terminal(), 80, names)
    assert [len(line) <= 80 for line in head] == [True] * len(head)
    assert head[0].split()[:3] == ["epoch", "iteration", "loss"]
    assert head[0].split()[-1] == "elapsed" and len(row.split()) == 7


def test_csv(run_with_values):
    def see(trainer):
        if trainer.updater.iteration == 2:
            trainer.observation["other, one"] = 7

    log = extensions.LogReport(trigger=(1, "iteration"))
    trainer = run_with_values([1.0, 2.0, None], [see, log, extensions.CsvReport()])
    with open(trainer.out / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["loss"], row["other, one"], row["iteration"]) for row in rows] == [
        ("1.0", "", "1"),
        ("2.0", "7.0", "2"),
        ("", "", "3"),
    ]


def test_csv_of_a_resumed_run_has_the_earlier_entries(make_trainer):
    def make(stop):
        trainer = make_trainer((stop, "iteration"))
        trainer.extend(observe)
        trainer.extend(extensions.snapshot(), trigger=(2, "iteration"))
        trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
        trainer.extend(extensions.CsvReport())
        return trainer

    make(3).run()
    resumed = make(4)
    load_npz(resumed.out / "snapshot_iter_2", resumed)
    resumed.run()
    rows = list(csv.DictReader(io.StringIO((resumed.out / "log.csv").read_text())))
    assert [row["iteration"] for row in rows] == ["1", "2", "3", "4"]
    assert not (resumed.out / "log.old1.csv").exists()


def test_hyperparameters(make_trainer):
    values = {
        "path": pathlib.Path("data"),
        "lr": np.float32(0.5),
        "sizes": [1, 2],
        "none": None,
        "shape": (np.int64(3), 4),
    }
    for arguments in (values, argparse.Namespace(**values)):
        trainer = make_trainer((1, "iteration"))
        trainer.extend(extensions.Hyperparameters(arguments))
        trainer.run()
        assert json.loads((trainer.out / "hyperparameters.json").read_text()) == {
            "path": "data",
            "lr": 0.5,
            "sizes": [1, 2],
            "none": None,
            "shape": [3, 4],
        }
    assert (trainer.out / "hyperparameters.old1.json").exists()


def close(make_trainer, savers, arguments=None, number=signal.SIGINT, **options):
    """Interrupts a training; returns its closing lines and the trainer."""
    out = io.StringIO()
    trainer = make_trainer((9, "iteration"), interrupt_after(3, number), **options)
    for saver in savers:
        trainer.extend(saver, trigger=(2, "iteration"))
    trainer.extend(extensions.ClosingReport(arguments, out))
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        trainer.run()
    return out.getvalue().splitlines(), trainer


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_after_an_interruption(make_trainer, command_line, number):
    words = ["train.py", "--lr", "1", "--resume", "old", "a b"]
    command_line(*words, python="/usr/bin/python3")
    savers = [extensions.snapshot(on_interrupt=True)]
    lines, trainer = close(make_trainer, savers, argparse.Namespace(resume="old"), number)
    assert lines == [
        "interrupted after 1.2 epochs (3 iterations) in 0:00:00",
        f"results are in {trainer.out}",
        f"to continue: python3 train.py --lr 1 'a b' --resume {trainer.out}/snapshot_iter_3",
    ]


def test_command_under_the_launcher(make_trainer, monkeypatch, command_line):
    command_line("/x/train.py", "--resume=old", "-v")
    monkeypatch.setenv(COMMAND_VARIABLE, "mpchain-launch -n 2 --resume train.py --resume=old -v")
    lines, trainer = close(make_trainer, [extensions.snapshot()], {"resume": None})
    assert lines[-1] == (
        "to continue: mpchain-launch -n 2 --resume train.py -v "
        f"--resume {trainer.out}/snapshot_iter_2"
    )
    command_line("/x/train.py", "--resume=old", "-v")
    lines, trainer = close(make_trainer, [extensions.snapshot()], {"resume": False})
    assert lines[-1] == "to continue: mpchain-launch -n 2 --resume train.py -v --resume"
    lines, _ = close(make_trainer, [extensions.snapshot(autoload=True)], rank=0)
    assert lines[-1] == "to continue: mpchain-launch -n 2 --resume train.py --resume=old -v"


def test_command_of_ranks_that_another_launcher_started(make_trainer, command_line):
    command_line("train.py")
    lines, trainer = close(make_trainer, [extensions.snapshot()], {"resume": None}, rank=0)
    assert lines[-1] == (
        f"to continue on 4 ranks: python3 train.py --resume {trainer.out}/snapshot_iter_2"
    )


def test_no_command_without_the_option_or_a_snapshot(make_trainer):
    lines, trainer = close(make_trainer, [extensions.snapshot()], {"epoch": 3})
    assert lines[2:] == [f"the latest snapshot is {trainer.out}/snapshot_iter_2"]
    lines, trainer = close(make_trainer, [], {"resume": None})
    assert len(lines) == 2
    model = extensions.snapshot_object(trainer.updater, "model_{.updater.iteration}")
    lines, trainer = close(make_trainer, [model], {"resume": None})
    assert len(lines) == 2  # the file is not a snapshot of the training


def test_no_closing_lines_after_a_failure(make_trainer):
    def fail(updater):
        raise OSError

    out = io.StringIO()
    trainer = make_trainer((9, "iteration"), fail)
    trainer.extend(extensions.ClosingReport(out=out))
    with pytest.raises(OSError):
        trainer.run(show_loop_exception_msg=False)
    assert out.getvalue() == ""


def test_the_last_batch_may_reach_into_the_next_epoch(make_trainer, capsys):
    trainer = make_trainer((1, "epoch"))
    trainer.extend(extensions.ClosingReport())
    trainer.run()
    assert trainer.updater.epoch_detail == 1.2
    assert capsys.readouterr().out.startswith("1 epoch (3 iterations) in 0:00:00\n")


def test_lines_are_only_cut_for_a_terminal(make_trainer, monkeypatch, open_terminal):
    terminal = open_terminal()
    monkeypatch.setenv("COLUMNS", "30")
    for out in (io.StringIO(), terminal):
        trainer = make_trainer((3, "iteration"))
        trainer.extend(observe)
        trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
        trainer.extend(extensions.ClosingReport(out=out))
        trainer.run()
        lines = out.getvalue().splitlines()
        assert (max(map(len, lines[:-2])) if len(lines) > 2 else 0) <= 30
        assert (len(lines) > 2) == (out is terminal)


def test_no_progress_lines_between_the_rows_of_a_table(make_trainer, capsys):
    trainer = make_trainer((4, "epoch"))
    trainer.extend(extensions.LogReport())
    trainer.extend(extensions.PrintReport(["epoch"]))
    trainer.extend(extensions.ProgressBar(update_interval=1))
    trainer.run()
    assert capsys.readouterr().out.split() == ["epoch", "1", "2", "3", "4"]


def test_bar_in_the_terminal_of_the_launcher(make_trainer, monkeypatch):
    pytest.importorskip("tqdm")
    reader, writer = os.pipe()
    monkeypatch.setenv("MPCHAIN_COLUMNS", "76")
    with (
        open(writer, "w", encoding="utf-8") as out,
        open(reader, encoding="utf-8", newline="") as pipe,
    ):
        trainer = make_trainer((3, "iteration"))
        trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
        trainer.extend(extensions.PrintReport(["iteration"], out=out))
        trainer.extend(extensions.ProgressBar(update_interval=1, out=out))
        trainer.run()
        out.close()
        text = pipe.read()
    *lines, rest = text.split("\n")
    assert rest == ""
    # Rows begin again after a carriage return, with which frames end.
    assert [line.rsplit("\r", 1)[-1] for line in lines[1:-1]] == ["1", "2", "3"]
    assert lines[-1].endswith("\r") and "100% |" in lines[-1].split("\r")[-2]
    assert max(len(frame) for line in lines for frame in line.split("\r")) <= 75


def test_a_finished_run_that_is_resumed_prints_no_empty_table(make_trainer):
    def run(out):
        trainer = make_trainer((2, "iteration"))
        trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
        trainer.extend(extensions.PrintReport(["iteration"], out=out))
        trainer.extend(extensions.snapshot(autoload=True), trigger=(2, "iteration"))
        trainer.run()
        return out.getvalue().split()

    assert run(io.StringIO()) == ["iteration", "1", "2"]
    assert run(io.StringIO()) == []
