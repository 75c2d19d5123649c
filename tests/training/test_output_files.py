"""Tests that only one job at a time writes the files of a folder, and that no result of an earlier
run is lost."""

import errno
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from mpchain import testing
from mpchain.serializers import load_npz
from mpchain.training import extensions, output_files

pytestmark = pytest.mark.slow

JOB = pathlib.Path(__file__).with_name("one_job.py")


def start(folder, *options, **environment):
    launched = ("MPCHAIN_JOB", "PMIX_NAMESPACE", "SLURM_STEP_NUM_TASKS", "PMI_JOBID", "PMI_SIZE")
    variables = {name: value for name, value in os.environ.items() if name not in launched}
    return subprocess.Popen(
        [sys.executable, str(JOB), str(folder), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables | environment,
    )


@pytest.fixture
def running(tmp_path):
    """Yields a function that starts a job that waits in the middle of its second snapshot; the jobs
    end after the test."""
    processes = []

    def run(*options, **environment):
        process = start(tmp_path, "--wait", *options, **environment)
        processes.append(process)
        line = process.stdout.readline()
        assert line == "inside\n", process.communicate(timeout=60)
        return process

    yield run
    for process in processes:
        with process:
            process.kill()


def finish(process, answer=""):
    out, errors = process.communicate(answer, timeout=120)
    return process.returncode, out, errors


def names(folder):
    return sorted(path.name for path in pathlib.Path(folder).iterdir())


def test_a_second_job_is_refused_and_the_first_goes_on(tmp_path, running):
    first = running()
    before = names(tmp_path)
    code, _, errors = finish(start(tmp_path))
    assert code == 1
    last = errors.splitlines()[-1]
    assert f"RuntimeError: LogReport: {tmp_path}/log is being written by another job (host " in last
    assert f"host {socket.gethostname()}, process {first.pid}, since 20" in last
    assert f"{JOB} {tmp_path} --wait" in last
    assert names(tmp_path) == before
    code, out, errors = finish(first, "go on\n")
    assert (code, out) == (0, f"done {first.pid}\n"), errors
    assert names(tmp_path) == ["at_1", "at_2", "at_3", "at_4", "log"]
    assert (tmp_path / "at_2").read_text() == "half and half"


@pytest.mark.long
def test_a_killed_job_keeps_nobody_out_and_leaves_nothing(tmp_path, running):
    first = running()
    (tmp_path / ".0123abcd.tmp.log").touch()
    first.kill()
    first.wait()
    assert any(name.endswith(".tmp.at_2") for name in names(tmp_path))
    code, out, errors = finish(start(tmp_path))
    assert code == 0, errors
    kept = ["at_1.old1", "log.old1"]
    assert names(tmp_path) == sorted(["at_1", "at_2", "at_3", "at_4", "log", *kept])
    assert "at_1 to " in out


@pytest.mark.long
@pytest.mark.parametrize("variable", ["MPCHAIN_JOB", "PMIX_NAMESPACE", "PMI_JOBID"])
def test_ranks_of_one_job_may_write_the_same_files(tmp_path, running, variable):
    job = {variable: "job 1"}
    first = running("--rank", "0", **job)
    code, _, errors = finish(start(tmp_path, "--rank", "1", **job))
    assert code == 0, errors
    assert {"at_4.1", "log"} <= set(names(tmp_path))
    assert not any(".old" in name for name in names(tmp_path))
    assert any(name.endswith(".tmp.at_2.0") for name in names(tmp_path))
    code, _, errors = finish(start(tmp_path, "--rank", "1", **{variable: "job 2"}))
    assert "is being written by another job" in errors
    assert finish(first, "go on\n")[0] == 0


def test_jobs_that_write_other_files_are_let_in(make_trainer, tmp_path):
    with_lock(tmp_path, "log_1")
    trainer = make_trainer(out=tmp_path)
    trainer.extend(extensions.LogReport(trigger=(1, "iteration"), filename="log_2"))
    trainer.run()
    assert "log_2" in names(tmp_path)


def with_lock(folder, name):
    files = output_files.OutputFiles("test", name)
    files.claim(type("Trainer", (), {"out": folder, "is_resumed": False}))
    return files


def test_a_forked_process_does_not_keep_the_lock(tmp_path):
    read, write = os.pipe()
    files = with_lock(tmp_path, "log")
    child = os.fork()
    if child == 0:  # the child outlives its parent's lock
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    try:
        files.release()
        assert names(tmp_path) == []
        path = tmp_path / ".log.lock"
        with_lock(tmp_path, "log").release()
        assert not path.exists()
    finally:
        os.close(write)
        os.close(read)
        assert os.waitpid(child, 0)[1] == 0


def test_a_forked_process_is_refused(tmp_path):
    files = with_lock(tmp_path, "log")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with_lock(tmp_path, "log")
        except RuntimeError as error:
            code = 0 if f"process {os.getppid()}" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    files.release()


def test_trainers_of_one_process(make_trainer, tmp_path):
    """One trainer runs within another; the lock lasts as long as the outer trainer."""
    inner_names = []

    def train_once_more(trainer):
        if trainer.updater.iteration == 2:
            inner = make_trainer((2, "iteration"), out=tmp_path)
            inner.extend(extensions.LogReport(trigger=(1, "iteration")))
            inner.run()
            inner_names.extend(names(tmp_path))

    trainer = make_trainer(out=tmp_path)
    trainer.extend(extensions.LogReport(trigger=(3, "iteration")))
    trainer.extend(train_once_more)
    trainer.run()
    assert ".log.lock" in inner_names
    assert ".log.lock" not in names(tmp_path)


def test_where_the_file_system_has_no_locks_there_is_a_warning(make_trainer, tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(output_files.fcntl, "flock", flock)
    (tmp_path / ".0123abcd.tmp.log").touch()  # another job may be writing this file
    trainer = make_trainer(out=tmp_path)
    trainer.extend(extensions.LogReport(trigger=(2, "iteration")))
    with pytest.warns(RuntimeWarning, match=f"{tmp_path} is on a file system without locks"):
        trainer.run()
    assert names(tmp_path) == [".0123abcd.tmp.log", "log"]


def test_a_lock_ends_with_a_training_that_fails(make_trainer, tmp_path):
    def fail(updater):
        raise ZeroDivisionError

    trainer = make_trainer(out=tmp_path, on_update=fail)
    trainer.extend(extensions.LogReport())
    trainer.extend(extensions.snapshot(n_retains=1))
    with pytest.raises(ZeroDivisionError):
        trainer.run()
    assert names(tmp_path) == []


# The following tests begin with files of earlier runs.

EXTENSIONS = {
    "log": lambda: extensions.LogReport(trigger=(1, "iteration")),
    "log.jsonl": lambda: extensions.JsonLinesReport(
        log_report=extensions.LogReport(trigger=(1, "iteration"), filename=None)
    ),
    "plot.png": lambda: extensions.PlotReport("value", trigger=(1, "iteration")),
}


def train(make_trainer, folder, make_extension, n=2, resume=None):
    trainer = make_trainer((n, "iteration"), out=folder)
    trainer.extend(lambda t: t.observation.update(value=1.0), "value", priority=300)
    trainer.extend(make_extension())
    trainer.extend(extensions.snapshot(filename="snapshot"), trigger=(1, "iteration"))
    if resume is not None:
        load_npz(resume, trainer)
    trainer.run()


@pytest.mark.parametrize("name", EXTENSIONS)
def test_the_file_of_an_earlier_run_is_kept(make_trainer, tmp_path, name, capsys):
    if name == "plot.png":
        pytest.importorskip("matplotlib")
    contents = []
    for n in (2, 3, 4):
        train(make_trainer, tmp_path, EXTENSIONS[name], n)
        contents.append((tmp_path / name).read_bytes())
    root, extension = os.path.splitext(name)
    assert (tmp_path / f"{root}.old1{extension}").read_bytes() == contents[0]
    assert (tmp_path / f"{root}.old2{extension}").read_bytes() == contents[1]
    assert (tmp_path / name).read_bytes() == contents[2]
    line = f"renamed existing {tmp_path / name} to {tmp_path}/{root}.old1{extension}\n"
    assert capsys.readouterr().out.count(line) == 1


@pytest.mark.parametrize("name", EXTENSIONS)
def test_the_file_of_the_run_that_is_resumed_is_replaced(make_trainer, tmp_path, name):
    if name == "plot.png":
        pytest.importorskip("matplotlib")
    train(make_trainer, tmp_path, EXTENSIONS[name])
    train(make_trainer, tmp_path, EXTENSIONS[name], 4, resume=tmp_path / "snapshot")
    assert names(tmp_path) == sorted([name, "snapshot"])


def test_messages_about_earlier_files_come_after_the_table(make_trainer, capsys):
    def train():
        trainer = make_trainer((9, "iteration"))
        trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
        trainer.extend(extensions.PrintReport(["iteration"]))
        trainer.extend(extensions.snapshot(), trigger=(1, "iteration"))
        trainer.run()
        return trainer.out, capsys.readouterr().out.splitlines()

    _, before = train()
    out, lines = train()
    assert lines[: len(before)] == before
    names = ["log", *(f"snapshot_iter_{i}" for i in (1, 2, 3))]
    assert lines[len(before) :] == [
        *(f"renamed existing {out}/{name} to {out}/{name}.old1" for name in names),
        "and 6 more files",
    ]


def test_a_log_of_many_files(make_trainer, tmp_path):
    def make():
        return extensions.LogReport(trigger=(1, "iteration"), filename="log_{iteration}.json")

    train(make_trainer, tmp_path, make, 2)
    (tmp_path / ".0123abcd.tmp.log_7.json").touch()
    train(make_trainer, tmp_path, make, 3)
    logs = [name for name in names(tmp_path) if "log" in name]
    assert logs == ["log_1.json", "log_1.old1.json", "log_2.json", "log_2.old1.json", "log_3.json"]
    assert len(json.loads((tmp_path / "log_3.json").read_text())) == 3


# Training that is over


@pytest.mark.parametrize(
    ("stop", "text"),
    [((2, "iteration"), "2 of 2 iterations are done: there is nothing left to train\n"),
     ((1, "iteration"), "1 of 1 iterations are done: "),
     ((0.5, "epoch"), "0.5 of 0.5 epochs are done: "),
     (lambda trainer: True, "the stop trigger fires after 2 iterations: ")],
)  # fmt: skip
def test_a_training_that_is_over_says_so(make_trainer, tmp_path, stop, text, capsys):
    train(make_trainer, tmp_path, EXTENSIONS["log"])
    assert "done" not in capsys.readouterr().out
    updates = []
    trainer = make_trainer(stop, out=tmp_path, on_update=updates.append)
    trainer.extend(lambda trainer: None, "value")
    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    load_npz(tmp_path / "snapshot", trainer, strict=False)
    trainer.run()
    assert capsys.readouterr().out.startswith(text)
    assert not updates


def test_a_training_that_is_interrupted_at_once_is_not_over(make_trainer, tmp_path, capfd):
    train(make_trainer, tmp_path, EXTENSIONS["log"])
    trainer = make_trainer((4, "iteration"), out=tmp_path)
    trainer.extend(lambda trainer: signal.raise_signal(signal.SIGINT), "value",
                   call_before_training=True)  # fmt: skip
    load_npz(tmp_path / "snapshot", trainer, strict=False)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert "nothing left" not in capfd.readouterr().out


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_file_that_another_rank_has_just_replaced_is_left_alone(tmp_path, monkeypatch, is_kept):
    """Both ranks have found the earlier file; this rank continues when the other has replaced
    it."""
    path, kept = tmp_path / "log", tmp_path / "log.old1"
    path.write_text("earlier")
    trainer = testing.get_trainer_with_mock_updater()
    trainer.out = str(tmp_path)
    files = output_files.OutputFiles("Mine", "log")
    files.claim(trainer)
    os.link(path, tmp_path / "elsewhere")  # the link keeps the file with this identity
    identity, identities = output_files._identity, [output_files._identity(path)]
    if is_kept:
        os.link(path, kept)
    os.unlink(path)
    path.write_text("of the other rank")
    monkeypatch.setattr(
        output_files, "_identity", lambda file: identities.pop() if identities else identity(file)
    )
    files.keep_earlier(str(path))
    files.release()
    assert path.read_text() == "of the other rank"
    assert [p.read_text() for p in tmp_path.glob("log.old*")] == ["earlier"] * is_kept
