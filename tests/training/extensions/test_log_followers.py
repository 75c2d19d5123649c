"""Tests logs for other programs."""

import json
import sys

import pytest

from mpchain.serializers import load_npz
from mpchain.training import extensions
from mpchain.training.extensions import JsonLinesReport, LogFollower, TensorBoardReport


def train(make_trainer, follower, n=5, log_report=True):
    def observe(trainer):
        trainer.observation["loss"] = 1 / trainer.updater.iteration

    def postprocess(entry):
        entry["text"] = "é"

    trainer = make_trainer((n, "iteration"))
    trainer.extend(observe, priority=300)
    if log_report:
        trainer.extend(extensions.LogReport(trigger=(1, "iteration"), postprocess=postprocess))
    trainer.extend(follower)
    trainer.extend(extensions.snapshot(filename="at_{.updater.iteration}"),
                   trigger=(1, "iteration"))  # fmt: skip
    return trainer


def lines(trainer, name="log.jsonl"):
    return [json.loads(line) for line in (trainer.out / name).read_text("utf-8").splitlines()]


def test_json_lines_are_the_log(make_trainer):
    trainer = train(make_trainer, JsonLinesReport())
    n_lines = []
    trainer.extend(lambda trainer: n_lines.append(len(lines(trainer))), "count")
    trainer.run()
    assert lines(trainer) == json.loads((trainer.out / "log").read_text())
    assert [entry["loss"] for entry in lines(trainer)] == [1 / i for i in range(1, 6)]
    assert n_lines == [1, 2, 3, 4, 5]


def test_json_lines_with_a_log_report_of_its_own_and_nothing_lost(make_trainer):
    log_report = extensions.LogReport(trigger=(2, "iteration"), filename=None)
    trainer = train(make_trainer, JsonLinesReport("a.jsonl", log_report), log_report=False)
    trainer.run()
    assert [entry["iteration"] for entry in lines(trainer, "a.jsonl")] == [2, 4]


def test_json_lines_are_cut_back_on_resume(make_trainer):
    trainer = train(make_trainer, JsonLinesReport())
    trainer.run()
    expected = lines(trainer)
    with open(trainer.out / "log.jsonl", "a") as file:
        file.write('{"half of a li')
    resumed = train(make_trainer, JsonLinesReport(), 7)
    load_npz(trainer.out / "at_3", resumed)
    resumed.run()
    assert lines(resumed)[:3] == expected[:3]
    assert [entry["iteration"] for entry in lines(resumed)] == [1, 2, 3, 4, 5, 6, 7]


def test_follower_that_comes_before_the_report_misses_nothing(make_trainer):
    written = []

    class Follower(LogFollower):
        priority = 1000

        def write(self, entries):
            written.extend(entry["iteration"] for entry in entries)

    train(make_trainer, Follower()).run()
    assert written == [1, 2, 3, 4, 5]
    with pytest.raises(NotImplementedError, match="LogFollower does not implement write"):
        LogFollower().write([])


def scalars(folder):
    """Returns the content of tensorboardX's files, as a reader shows it: name -> {step: value}."""
    tensorboardX = pytest.importorskip("tensorboardX")
    found = {}
    for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        content = path.read_bytes()
        while content:  # a record has a length, its checksum, data, and their checksum
            length = int.from_bytes(content[:8], "little")
            event = tensorboardX.proto.event_pb2.Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            if event.HasField("session_log"):
                for points in found.values():
                    for step in [step for step in points if step >= event.step]:
                        del points[step]
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def test_tensorboard(make_trainer):
    pytest.importorskip("tensorboardX")
    trainer = train(make_trainer, TensorBoardReport())
    trainer.run()
    found = scalars(trainer.out / "tensorboard")
    assert found.keys() == {"loss", "epoch", "elapsed_time"}
    assert found["loss"] == {i: pytest.approx(1 / i) for i in range(1, 6)}
    assert found["epoch"] == {1: 0, 2: 0, 3: 1, 4: 1, 5: 2}


def test_tensorboard_takes_points_beyond_the_snapshot_back(make_trainer):
    pytest.importorskip("tensorboardX")
    trainer = train(make_trainer, TensorBoardReport("a"), 5)
    trainer.run()
    resumed = train(make_trainer, TensorBoardReport("a"), 4)
    load_npz(trainer.out / "at_3", resumed)
    resumed.run()
    assert scalars(trainer.out / "a")["loss"].keys() == {1, 2, 3, 4}


def test_without_tensorboardx(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(RuntimeError, match=r"pip install 'mpchain\[tensorboard\]'"):
        TensorBoardReport()
