"""Tests background writers: no snapshot is lost, and errors are reported."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from mpchain.serializers import load_npz, save_npz
from mpchain.training import extensions
from mpchain.training.extensions import snapshot_writers
from mpchain.training.extensions.snapshot_writers import (
    ProcessQueueWriter,
    ProcessWriter,
    QueueWriter,
    SimpleWriter,
    StandardWriter,
    ThreadQueueWriter,
    ThreadWriter,
    Writer,
)

pytestmark = pytest.mark.slow

THREADS = [StandardWriter, ThreadWriter, QueueWriter, ThreadQueueWriter]
PROCESSES = [ProcessWriter, ProcessQueueWriter]


class Values:
    """An object that saves an array, which changes, and a None."""

    def __init__(self):
        self.array = np.zeros(3, np.float32)

    def serialize(self, serializer):
        child = serializer["child"]
        child("none", None)
        child("array", self.array)


def read(path):
    with np.load(path) as arrays:
        return arrays["child/array"].tolist()


def save_unless_told_not_to(path, target, forbidden=(), deadly=(), once=None):
    number = int(os.path.basename(path).split("_")[-1])
    if number in forbidden:
        raise OSError(f"no space for {number}")
    if number in deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    if once is not None and not os.path.exists(once):
        open(once, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    save_npz(path, target)


@pytest.fixture
def no_process_is_left():
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) == before


def write_all(writer, out, n=6):
    values = Values()
    for i in range(n):
        values.array[:] = i
        writer(f"at_{i}", out, values)
        values.array[:] = -1  # the writer must save the earlier values
    writer.finalize()


@pytest.mark.parametrize("writer_class", [SimpleWriter, *THREADS, *PROCESSES])
def test_every_snapshot_is_written_as_it_was(writer_class, tmp_path, no_process_is_left):
    n_threads = threading.active_count()
    write_all(writer_class(), tmp_path)
    assert sorted(os.listdir(tmp_path)) == [f"at_{i}" for i in range(6)]
    assert [read(tmp_path / f"at_{i}") for i in range(6)] == [[i] * 3 for i in range(6)]
    load_npz(tmp_path / "at_4", loaded := Values())
    assert loaded.array.tolist() == [4] * 3
    assert threading.active_count() == n_threads


@pytest.mark.parametrize("writer_class", [StandardWriter, ThreadWriter])
def test_arguments_of_savefun(writer_class, tmp_path):
    writer = writer_class(save_npz, compression=True)
    writer("a", tmp_path, values := Values())
    values.array = np.zeros(3000, np.float32)
    writer("b", tmp_path, values)
    writer.finalize()
    assert (tmp_path / "b").stat().st_size < 1000 + (tmp_path / "a").stat().st_size


@pytest.mark.parametrize("writer_class", [QueueWriter, ThreadQueueWriter, ProcessQueueWriter])
def test_task_in_place_of_savefun(writer_class, tmp_path, no_process_is_left):
    write_all(writer_class(task=SimpleWriter(save_npz, compression=True)), tmp_path)
    assert read(tmp_path / "at_5") == [5] * 3


class Gate:
    """A savefun that waits until the test opens the gate."""

    def __init__(self):
        self.is_open = threading.Event()
        self.entered = []

    def __call__(self, path, target):
        self.entered.append(os.path.basename(path).split(".")[-1])
        assert self.is_open.wait(60)
        save_npz(path, target)


def test_training_goes_on_while_a_thread_writes_and_finalize_waits(tmp_path):
    gate = Gate()
    writer = ThreadQueueWriter(gate)
    for i in range(writer.max_waiting):
        writer(f"at_{i}", tmp_path, Values())
    assert not any(name.startswith("at_") for name in os.listdir(tmp_path))
    threading.Thread(target=gate.is_open.set).start()
    # The queue is full, so the call waits for the oldest snapshot.
    writer(f"at_{writer.max_waiting}", tmp_path, Values())
    assert (tmp_path / "at_0").exists()
    writer.finalize()
    assert sorted(os.listdir(tmp_path)) == gate.entered == [f"at_{i}" for i in range(5)]


def test_a_standard_writer_waits_for_the_one_before(tmp_path):
    gate = Gate()
    writer = ThreadWriter(gate)
    writer("at_0", tmp_path, Values())
    threading.Thread(target=gate.is_open.set).start()
    writer("at_1", tmp_path, Values())
    assert (tmp_path / "at_0").exists()
    writer.finalize()
    assert gate.entered == ["at_0", "at_1"]


@pytest.mark.parametrize(
    ("writer_class", "error", "message"),
    [
        (ThreadWriter, OSError, "no space for 0"),
        (ProcessWriter, RuntimeError, "(?s)at_0 was not written; the process .* raised:.*in save_"
         "unless.*no space for 0"),
    ],
)  # fmt: skip
def test_an_error_is_raised_by_the_next_call_which_takes_its_snapshot_first(
    writer_class, error, message, tmp_path, no_process_is_left
):
    writer = writer_class(save_unless_told_not_to, forbidden=[0, 2])
    writer("at_0", tmp_path, Values())
    with pytest.raises(error, match=message) as caught:
        writer("at_1", tmp_path, Values())
    assert caught.value.__notes__ == ["raised while the snapshot at_0 was written"]
    writer("at_2", tmp_path, Values())
    with pytest.raises(error, match="no space for 2"):
        writer.finalize()
    writer.finalize()
    assert os.listdir(tmp_path) == ["at_1"]


def test_finalize_writes_all_others_and_tells_of_every_error(tmp_path):
    gate = Gate()

    def savefun(path, target):
        gate(path, target)
        save_unless_told_not_to(path, target, forbidden=[0, 2])

    writer = ThreadQueueWriter(savefun)
    for i in range(4):
        writer(f"at_{i}", tmp_path, Values())
    gate.is_open.set()
    with pytest.raises(OSError, match="no space for 0") as caught:
        writer.finalize()
    assert caught.value.__notes__ == [
        "raised while the snapshot at_0 was written",
        "another snapshot also failed: OSError('no space for 2'), "
        "raised while the snapshot at_2 was written",
    ]
    assert sorted(os.listdir(tmp_path)) == ["at_1", "at_3"]


@pytest.mark.long
def test_after_a_process_was_killed_another_one_writes(tmp_path, no_process_is_left):
    once = tmp_path / "killed"
    out = tmp_path / "out"
    out.mkdir()
    writer = ProcessWriter(save_unless_told_not_to, once=once)
    with pytest.warns(UserWarning, match=r"died \(exit code -9\) before at_0 was written; another"):
        write_all(writer, out)
    assert sorted(name for name in os.listdir(out) if not name.startswith(".")) == [
        f"at_{i}" for i in range(6)
    ]


@pytest.mark.long
def test_a_snapshot_that_kills_every_process_is_an_error_and_the_others_are_written(
    tmp_path, no_process_is_left
):
    writer = ProcessWriter(save_unless_told_not_to, deadly=[1])
    with pytest.warns(UserWarning, match="another process tries again"):
        writer("at_0", tmp_path, Values())
        writer("at_1", tmp_path, Values())
        with pytest.raises(RuntimeError, match=r"died \(exit code -9\) before at_1 was written"):
            writer("at_2", tmp_path, Values())
        writer.finalize()
    names = sorted(name for name in os.listdir(tmp_path) if not name.startswith("."))
    assert names == ["at_0", "at_2"]


@pytest.mark.parametrize("writer_class", PROCESSES)
def test_a_process_needs_a_function_of_a_module(writer_class):
    with pytest.raises(TypeError, match=r"the writer, with its savefun .* must be picklable"):
        writer_class(lambda path, target: None)


@pytest.mark.parametrize("writer_class", [ThreadWriter, ProcessQueueWriter])
def test_in_a_trainer(make_trainer, writer_class, no_process_is_left):
    trainer = make_trainer((12, "iteration"))
    writer = writer_class()
    trainer.extend(extensions.snapshot(writer=writer, n_retains=2), trigger=(1, "iteration"))
    trainer.run()
    names = sorted(name for name in os.listdir(trainer.out) if name[0] != ".")
    assert names == ["snapshot_iter_11", "snapshot_iter_12"]
    other = make_trainer((13, "iteration"))
    other.extend(extensions.snapshot(autoload=True, n_retains=2))
    other.run()
    assert other.updater.iteration == 13


def test_the_snapshot_of_an_interruption_is_waited_for(make_trainer, capfd):
    def on_update(updater):
        if updater.iteration == 1:
            signal.raise_signal(signal.SIGTERM)

    trainer = make_trainer(on_update=on_update)
    trainer.extend(extensions.snapshot(writer=ThreadWriter(), on_interrupt=True))
    with pytest.raises(SystemExit):
        trainer.run()
    assert os.listdir(trainer.out) == ["snapshot_iter_2"]


def test_an_error_in_a_thread_ends_training(make_trainer):
    trainer = make_trainer((12, "iteration"))
    writer = ThreadWriter(save_unless_told_not_to, forbidden=[3])
    trainer.extend(extensions.snapshot(writer=writer), trigger=(1, "iteration"))
    with pytest.raises(OSError, match="no space for 3"):
        trainer.run(show_loop_exception_msg=False)
    assert trainer.updater.iteration == 4
    assert (trainer.out / "snapshot_iter_4").exists()


def test_an_error_of_the_last_snapshot_is_raised_at_the_end(make_trainer):
    trainer = make_trainer((3, "iteration"))
    writer = ThreadWriter(save_unless_told_not_to, forbidden=[3])
    trainer.extend(extensions.snapshot(writer=writer), trigger=(1, "iteration"))
    with pytest.raises(OSError, match="no space for 3"):
        trainer.run(show_loop_exception_msg=False)
    assert trainer.updater.is_finalized


PROGRAM = """
import os, signal, sys, threading
from mpchain.training.extensions.snapshot_writers import ProcessWriter
class Value:
    def serialize(self, serializer):
        serializer("value", 5)
if __name__ == "__main__":
    writer = ProcessWriter()
    writer("a", sys.argv[1], Value())
    writer._futures[0][1].result()
    print(writer._task._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_the_process_ends_with_its_parent(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, str(program), str(out)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    # The child has the same standard output, so reading it to its end shows that the child has
    # ended.
    assert int(done.stdout) > 0
    assert os.listdir(out) == ["a"]


def test_the_process_does_not_hear_ctrl_c(tmp_path, no_process_is_left):
    writer = ProcessWriter()
    write = writer._task
    write("at_0", tmp_path, Values())
    (process,) = multiprocessing.active_children()
    os.kill(process.pid, signal.SIGINT)
    write("at_1", tmp_path, Values())
    writer.finalize()
    assert sorted(os.listdir(tmp_path)) == ["at_0", "at_1"]


def test_base_writer_saves_but_is_not_called(tmp_path):
    Writer().save("a", tmp_path, Values(), save_npz)
    assert read(tmp_path / "a") == [0] * 3
    assert snapshot_writers.StandardWriter.max_waiting == 1
