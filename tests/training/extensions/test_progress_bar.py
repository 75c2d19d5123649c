import contextlib
import io
import sys

import pytest

from mpchain.training import extensions, progress


def run(make_trainer, bar, length, on_update=lambda updater: None):
    trainer = make_trainer(length, on_update)
    trainer.extend(bar)
    trainer.run()


@pytest.fixture
def pass_time(clock):
    """Returns a function that lets each iteration take some seconds."""

    def pass_time(seconds):
        return lambda updater: clock.sleep(seconds)

    return pass_time


def test_lines(make_trainer, capsys, pass_time):
    bar = extensions.ProgressBar(update_interval=20)
    run(make_trainer, bar, (100, "iteration"), pass_time(0.1))
    assert capsys.readouterr().out.splitlines() == [
        " 21% epoch 8.40, 21 it, 10.00 it/s, 0:00:08 left",
        " 41% epoch 16.40, 41 it, 10.00 it/s, 0:00:06 left",
        " 61% epoch 24.40, 61 it, 10.00 it/s, 0:00:04 left",
        " 81% epoch 32.40, 81 it, 10.00 it/s, 0:00:02 left",
        "100% epoch 40.00, 100 it, 10.00 it/s, 0:00:00 left",
    ]


def test_lines_are_few(make_trainer):
    out = io.StringIO()
    run(make_trainer, extensions.ProgressBar(update_interval=1, out=out), (1000, "iteration"))
    lines = out.getvalue().splitlines()
    assert [line[:4] for line in lines] == [f"{percent:3}%" for percent in range(5, 101, 5)]


def test_length_in_epochs(make_trainer):
    out = io.StringIO()
    run(make_trainer, extensions.ProgressBar(update_interval=1, out=out), (4, "epoch"))
    assert [line.split(",")[0] for line in out.getvalue().splitlines()] == [
        f" {10 * i}% epoch {0.4 * i:.2f}" for i in range(1, 10)
    ] + ["100% epoch 4.00"]


def test_own_length(make_trainer):
    out = io.StringIO()
    bar = extensions.ProgressBar(training_length=(8, "iteration"), update_interval=1, out=out)
    run(make_trainer, bar, (2, "iteration"))
    assert [line[:4] for line in out.getvalue().splitlines()] == [" 12%", " 25%"]


def test_unknown_length_gives_a_line_a_minute(make_trainer, pass_time):
    out = io.StringIO()
    trainer = make_trainer(lambda trainer: trainer.updater.iteration == 8, pass_time(25))
    trainer.extend(extensions.ProgressBar(update_interval=1, out=out))
    trainer.run()
    assert out.getvalue().splitlines() == [
        "epoch 1.60, 4 it, 0.04 it/s",
        "epoch 2.80, 7 it, 0.04 it/s",
    ]


def test_bar_on_a_terminal(make_trainer, open_terminal, pass_time):
    pytest.importorskip("tqdm")
    terminal = open_terminal()
    bar = extensions.ProgressBar(update_interval=5, bar_length=10, out=terminal)
    run(make_trainer, bar, (20, "iteration"), pass_time(0.4))
    frames = [frame.rstrip() for frame in terminal.getvalue().split("\r")]
    assert " 55% |█████▌    | epoch 4.40, 11 it, 2.50 it/s, 0:00:04 left" in frames
    assert frames[-1].startswith("100% |██████████| epoch 8.00, 20 it")
    assert terminal.getvalue().endswith("\n")


def test_bar_without_a_length(make_trainer, open_terminal, pass_time):
    pytest.importorskip("tqdm")
    terminal = open_terminal()
    trainer = make_trainer(lambda trainer: trainer.updater.iteration == 3, pass_time(2))
    trainer.extend(extensions.ProgressBar(update_interval=1, out=terminal))
    trainer.run()
    assert terminal.getvalue().split("\r")[-1].rstrip() == ("epoch 1.20, 3 it, 0.50 it/s")


def test_table_is_printed_above_the_bar(run_with_values, open_terminal):
    pytest.importorskip("tqdm")
    terminal = open_terminal()
    bar = extensions.ProgressBar(update_interval=1)
    log = extensions.LogReport(trigger=(1, "iteration"))
    table = extensions.PrintReport(["iteration", "loss"])
    with contextlib.redirect_stdout(terminal):
        run_with_values([1.0, 2.0], [bar, log, table])
    lines = [line.split("\r")[-1].rstrip() for line in terminal.getvalue().split("\n")]
    assert lines[:3] == ["iteration   loss", "1           1", "2           2"]
    assert lines[3].startswith("100% |")


@pytest.mark.parametrize("stream", ["no terminal", "no tqdm", "standard error is a pipe"])
def test_degrades_to_lines(monkeypatch, open_terminal, stream):
    terminal = open_terminal()
    out = io.StringIO() if stream == "no terminal" else terminal
    if stream == "no tqdm":
        monkeypatch.setitem(sys.modules, "tqdm", None)
    errors = io.StringIO() if "pipe" in stream else terminal
    with contextlib.redirect_stderr(errors):
        display = progress.open_display(10, out)
    assert isinstance(display, progress.ProgressLines)
    display.show(5, "half")
    display.close()
    assert out.getvalue() == " 50% half\n"


def test_no_thread_is_left(make_trainer, open_terminal):
    terminal = open_terminal()
    tqdm = pytest.importorskip("tqdm")
    tqdm.tqdm.monitor = None
    run(make_trainer, extensions.ProgressBar(update_interval=1, out=terminal), (3, "iteration"))
    assert tqdm.tqdm.monitor is None


def test_bar_ends_at_its_end(make_trainer, open_terminal):
    pytest.importorskip("tqdm")
    terminal = open_terminal()
    bar = extensions.ProgressBar(update_interval=1, bar_length=10, out=terminal)
    run(make_trainer, bar, (1, "epoch"))  # an epoch is three batches of 10 from 25 samples
    assert "100% |██████████| epoch 1.20, 3 it" in terminal.getvalue()


@pytest.mark.parametrize(("columns", "length"), [("200", 50), ("80", 20), ("40", 10)])
def test_bar_leaves_room_for_the_text(monkeypatch, open_terminal, columns, length):
    pytest.importorskip("tqdm")
    terminal = open_terminal()
    monkeypatch.setenv("COLUMNS", columns)
    display = progress.open_display(10, terminal)
    display.show(10, "text")
    display.close()
    assert f"100% |{'█' * length}| text" in terminal.getvalue()
