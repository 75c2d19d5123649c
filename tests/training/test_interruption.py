"""Tests programs that get a signal to end: what they leave, and how they end."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from mpchain import links as L, optimizers, training
from mpchain.iterators import SerialIterator
from mpchain.training import extensions
import numpy as np

class Updater(training.StandardUpdater):
    def update_core(self):
        print("in", self.iteration, flush=True)
        sys.stdin.readline()
        super().update_core()

data = np.random.RandomState(0).normal(size=(12, 3)).astype(np.float32)
model = L.Linear(3, 1)
optimizer = optimizers.SGD().setup(model)
updater = Updater(SerialIterator(data, 3), optimizer, loss_func=lambda x: (model(x) ** 2).T[0][0])
trainer = training.Trainer(updater, (3, "iteration"), out=sys.argv[1])
trainer.extend(extensions.snapshot(autoload=True, on_interrupt=True), trigger=(100, "epoch"))
trainer.run()
print("trained", flush=True)
"""


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts the program, waits until it prints a line, and returns its
    process."""
    processes = []

    def start(line):
        pipe = subprocess.PIPE
        command = [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path)]
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        processes.append(process)
        while (read := process.stdout.readline()) != line:
            assert read, process.stderr.read()
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_ends_the_program_cleanly(start, tmp_path, number, code):
    process = start("in 0\n")
    process.send_signal(number)
    notice = process.stderr.readline()
    out, err = process.communicate("\n" * 10, timeout=60)
    name = signal.Signals(number).name
    assert (
        notice == f"{name}: finishing this iteration; send the signal again to stop immediately\n"
    )
    assert (out, err, process.returncode) == ("", "", code)
    assert os.listdir(tmp_path) == ["snapshot_iter_1"]

    process = start("in 1\n")
    out, err = process.communicate("\n" * 10, timeout=60)
    assert (out, err, process.returncode) == ("in 2\ntrained\n", "", 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)]
)
def test_the_second_signal_ends_the_program_at_once(start, tmp_path, number, code):
    process = start("in 0\n")
    process.send_signal(signal.SIGINT)
    process.stderr.readline()
    process.send_signal(number)
    process.stdout.read()  # the program gets no line that would let it continue
    assert process.wait(60) == code
    assert os.listdir(tmp_path) == []
