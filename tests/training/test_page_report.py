import contextlib
import importlib.util
import io
import json
import os
import signal
import types

import numpy as np
import pytest

import mpchain
from mpchain import iterators, links, optimizers, testing, training
from mpchain.training import extensions, page_facts, page_report
from mpchain.training.page_report import Connection, PageReport


@pytest.fixture
def at_once(monkeypatch):
    """Sends reports without a pause between them."""
    monkeypatch.setattr(page_report, "INTERVAL", 0.0)


@pytest.fixture
def pipe(monkeypatch, at_once):
    """Replaces the pipe that the launcher gives to a rank; yields a function that reads the
    reports."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    status = os.fstat(writer)
    place = f"{writer}:{status.st_dev}:{status.st_ino}"
    monkeypatch.setenv(page_report.VARIABLE, place)

    def read():
        data = b""
        try:
            while piece := os.read(reader, 1 << 16):
                data += piece
        except BlockingIOError:
            pass
        return [json.loads(line) for line in data.splitlines()]

    yield read
    os.close(reader)
    os.close(writer)


def make_trainer(out, n=4):
    np.random.seed(0)
    model = links.Classifier(links.Linear(3, 2))
    data = [(np.ones(3, np.float32), np.int32(i % 2)) for i in range(8)]
    updater = training.StandardUpdater(
        iterators.SerialIterator(data, 4, shuffle=False), optimizers.SGD().setup(model)
    )
    return training.Trainer(updater, (n, "iteration"), out=out)


def test_trainer_reports_to_the_launcher_by_itself(pipe, tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.extend(extensions.LogReport(trigger=(2, "iteration")))
    trainer.run()
    reports = pipe()
    assert [report["facts"]["step"] for report in reports] == [1, 2, 3, 4, 4]
    assert [report["job"]["done"] for report in reports] == [0.25, 0.5, 0.75, 1, 1]
    assert all(report["facts"]["memory"] > 2**20 for report in reports)
    values = [value for report in reports for value in report["values"]]
    logged = [value for value in values if value["kind"] == "log"]
    log = trainer.get_extension("LogReport").log
    assert [value["values"]["main/loss"] for value in logged] == [e["main/loss"] for e in log]
    assert [value["at"][:2] for value in logged] == [[2, 1.0], [4, 2.0]]
    live = [value for value in values if value["kind"] == "live"]
    assert len(live) == 5
    assert all("main/loss" in value["values"] for value in live)
    assert live[1]["values"]["samples/s"] > 0


def test_settings_folder_and_learning_rate(pipe, tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.extend(extensions.Hyperparameters({"units": 5, "model": "cnn", "resume": None}))
    trainer.extend(extensions.ExponentialShift("lr", 0.5), trigger=(1, "iteration"))
    trainer.run()
    first, *others = pipe()
    settings = {"units": "5", "model": "cnn", "optimizer": "SGD(lr=0.01)"}
    assert first["about"] == {"folder": str(tmp_path), "settings": settings}
    assert not any("about" in report for report in others)
    reports = [first, *others]
    rates = [each["values"][-1]["values"]["learning rate"] for each in reports]
    assert rates[:4] == [0.01, 0.005, 0.0025, 0.00125]


def test_learning_rates_of_two_optimizers():
    model = links.Classifier(links.Linear(3, 2))
    data = iterators.SerialIterator([(np.ones(3, np.float32), np.int32(0))] * 8, 4)
    two = {
        "main": optimizers.Adam(0.5, beta1=0.8).setup(model),
        "d": optimizers.SGD(0.25).setup(model),
    }
    trainer = training.Trainer(training.StandardUpdater(data, two), (1, "iteration"))
    found = page_facts.learning_rates(trainer)
    assert found == {"main/learning rate": 0.5, "d/learning rate": 0.25}
    expected = {"optimizer": "Adam(alpha=0.5, beta1=0.8)", "optimizer d": "SGD(lr=0.25)"}
    assert page_facts.about(trainer)["settings"] == expected


def test_rates_are_means_over_ten_seconds_and_over_all():
    rates = page_facts.Rates((0.0, 0, 0.0))
    assert rates.lately is rates.mean is None
    # Fast and slow half seconds alternate, as at ends of epochs.
    for i in range(1, 101):
        rates.add((i / 2, 20 * (i // 2), 2.0 * (i // 2)))
        if i > 20:
            assert rates.lately == pytest.approx((20, 2), rel=0.06)
    assert rates.mean == (20, 2)
    rates.add((60.0, 500, 50.0))  # the iteration goes back
    assert rates.lately is None
    assert rates.mean == (1000 / 60, 100 / 60)
    rates.add((64.0, 580, 58.0))
    assert rates.lately == (20, 2)
    assert rates.mean == (1080 / 64, 108 / 64)


def test_ranks_tell_the_mean_rates_too(pipe, tmp_path, clock):
    clock.step = 2.0
    make_trainer(tmp_path).run()
    last = pipe()[-1]
    assert last["job"]["mean_samples"] == pytest.approx(4 * last["facts"]["mean_rate"])
    assert 0 < last["job"]["mean_samples"] < 4


def test_training_that_goes_back_logs_again(pipe, tmp_path):
    trainer = make_trainer(tmp_path, 4)
    report = extensions.LogReport(trigger=(1, "iteration"), filename=None)
    trainer.extend(report)

    def go_back(trainer):
        if trainer.updater.iteration == 3:
            del report.log[1:]

    trainer.extend(go_back, priority=-1)
    trainer.run()
    reports = pipe()
    values = [value for said in reports for value in said["values"] if value["kind"] == "log"]
    assert [value["at"][0] for value in values] == [1, 2, 4]


def test_ranks_that_write_no_reports_send_facts_only(pipe, tmp_path):
    trainer = make_trainer(tmp_path, 1)
    trainer.writes_reports = False
    trainer.run()
    assert {tuple(report) for report in pipe()} == {("facts",)}


def test_time_spent_waiting(pipe, tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.updater.get_optimizer("main").communicator = types.SimpleNamespace(
        rank=1, is_elastic=False
    )
    trainer.writes_reports = False
    steps = [[[9, 3], [9, 1]], [[9, 3], [9, 1]], [[9, 4], [9, 4]], [[9, 0], [9, 0]]]
    times = iter(np.array([*steps, steps[0]], float))
    trainer.updater.rank_times = lambda: next(times)
    trainer.run()
    shares = [(report["facts"]["work"], report["facts"]["wait"]) for report in pipe()]
    # The second report has nothing new, and the fourth comes after the ranks have changed.
    assert shares == [(0.75, 0.25)] * 2 + [(0.25, 0.75)] * 2 + [(0.75, 0.25)]


def test_snapshots_are_those_of_a_training_without_page(pipe, tmp_path, monkeypatch):
    files = []
    for name in ("with", "without"):
        trainer = make_trainer(tmp_path / name)
        trainer.extend(extensions.snapshot(filename="s"), trigger=(2, "iteration"))
        trainer.run()
        files.append(np.load(tmp_path / name / "s"))
        monkeypatch.delenv(page_report.VARIABLE, raising=False)
    assert set(files[0]) == set(files[1])
    different = {key for key in files[0] if str(files[0][key]) != str(files[1][key])}
    assert different <= {"_snapshot_elapsed_time", "extensions/_Snapshot/run"}
    for file in files:
        file.close()


def test_an_explicit_report_is_not_doubled(pipe, tmp_path):
    trainer = make_trainer(tmp_path, 1)
    trainer.extend(PageReport())
    trainer.run()
    assert list(trainer.extensions) == ["PageReport"]


@pytest.mark.parametrize("value", ["", "view", "1:2", "987654:1:1", "1:1:1"])
def test_processes_without_the_pipe_report_nothing(tmp_path, monkeypatch, value):
    monkeypatch.setenv(page_report.VARIABLE, value)
    trainer = make_trainer(tmp_path, 1)
    trainer.run()
    assert trainer.extensions == {}


def test_reports_never_wait_and_lose_no_part_of_a_line():
    reader, writer = os.pipe()
    connection = Connection(writer)
    for i in range(500):
        connection.send({"number": i, "text": "x" * 1000})
    data = b""
    while len(data) < 1 << 18:
        data += os.read(reader, 1 << 16)
        connection.send({"number": -1})
    numbers = [json.loads(line)["number"] for line in data.split(b"\n")[:-1]]
    assert numbers[:250] == list(range(250))  # the pipe holds 64 KiB, and the sender keeps 256 KiB
    os.close(reader)
    connection.send({"number": 0})  # no process reads
    os.close(writer)


def test_observations_that_are_no_numbers(pipe, tmp_path):
    trainer = make_trainer(tmp_path, 1)
    values = {
        "ranks/slowest": 1,
        "text": "a",
        "vector": np.ones(3),
        "nan": np.nan,
        "pair": (2.0, 8),
    }

    def observe(trainer):
        trainer.observation = {**values, "variable": mpchain.Variable(np.array(3.0))}

    trainer.extend(observe, priority=np.inf, name="observe")
    trainer.run()
    seen = pipe()[-1]["values"][-1]["values"]
    seen.pop("samples/s", None)
    assert seen.pop("learning rate") == 0.01
    assert np.isnan(seen.pop("nan"))
    assert seen == {"pair": 2.0, "variable": 3.0}


class Page:
    """Replaces the process of the page."""

    def __init__(self):
        self.events, self.requests, self.closed = [], [], False

    def send(self, event):
        self.events.append(event)

    def receive(self):
        return self.requests.pop() if self.requests else b""

    def close(self):
        self.closed = True


@pytest.fixture
def page(monkeypatch, at_once):
    page = Page()
    monkeypatch.setattr(page_report, "start_page", lambda control: page)
    return page


def test_one_process(page, tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.extend(extensions.LogReport(trigger=(2, "iteration")))
    trainer.extend(PageReport())
    trainer.run()
    first, last = page.events[0]["job"], page.events[-1]["job"]
    assert (first["state"], first["n"], last) == ("runs", 1, {"state": "finished"})
    lines = [event["output"] for event in page.events if "output" in event]
    assert [line.startswith("main/loss 0.") for line in lines] == [True, True]
    assert {event["rank"] for event in page.events if "rank" in event} == {0}
    assert page.closed


def test_one_process_that_fails(page, tmp_path):
    trainer = make_trainer(tmp_path)

    def fail(trainer):
        raise ValueError("no more data")

    trainer.extend(fail)
    trainer.extend(PageReport())
    with pytest.raises(ValueError, match="no more data"):
        trainer.run(show_loop_exception_msg=False)
    expected = {"state": "failed", "text": "ValueError: no more data"}
    assert page.events[-1]["job"] == expected
    assert page.events[-2]["facts"] == expected
    assert page.closed


def test_browser_stops_training_after_an_iteration(page, tmp_path):
    trainer = make_trainer(tmp_path, 1000)
    trainer.extend(PageReport(control=True))
    page.requests = [b"stop\n"]
    with pytest.raises(SystemExit) as stopped:
        trainer.run()
    assert stopped.value.code == 128 + signal.SIGTERM
    assert trainer.updater.iteration == 1
    assert page.events[-1]["job"]["state"] == "stopped"


def test_signal_that_nobody_handles_is_not_raised(page):
    trainer = testing.get_trainer_with_mock_updater((1, "iteration"))
    report = PageReport(control=True)
    report.initialize(trainer)
    page.requests = [b"stop\n"]
    report(trainer)  # the call is outside of the trainer's loop
    report.finalize()


@pytest.mark.annex("page")
@pytest.mark.parametrize("is_terminal", [False, True])
def test_token_is_shown_on_terminals_only(monkeypatch, open_terminal, is_terminal):
    ready = types.SimpleNamespace(
        readline=lambda: b"http://127.0.0.1/?token=secret\t/runs/address\n"
    )
    ready.fileno = (file := open(os.devnull, "rb")).fileno
    process = types.SimpleNamespace(stdout=ready, stdin=file)
    monkeypatch.setattr(page_report.subprocess, "Popen", lambda *args, **options: process)
    with contextlib.redirect_stderr(open_terminal() if is_terminal else io.StringIO()) as errors:
        page_report.start_page()
    file.close()
    shown = errors.getvalue()
    assert "/runs/address" in shown
    assert ("secret" in shown) == is_terminal


@pytest.mark.slow
def test_page_that_does_not_start(tmp_path, python_at, capfd):
    python_at("/bin/false")
    trainer = make_trainer(tmp_path, 1)
    trainer.extend(PageReport())
    with pytest.raises(RuntimeError, match=r"PageReport: .* did not start \(exit code 1\)"):
        trainer.run(show_loop_exception_msg=False)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tornado") is None, reason="needs mpchain[page]")
def test_page_of_one_process_ends_with_the_training(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    trainer = make_trainer(tmp_path / "result", 1)
    trainer.extend(PageReport())
    trainer.run()
    line = capfd.readouterr().err
    assert line.startswith("page: its address is in ")
    assert not os.path.exists(line.split()[-1])
