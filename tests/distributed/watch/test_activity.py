"""Tests whether a process works, according to the operating system."""

import itertools
import os
import subprocess
import sys
import threading
import time

import pytest

from mpchain.distributed.watch.activity import BYTES, Activity


def is_seen(work):
    """Returns whether the process is seen at work within half a second of the test's clock."""
    seen = Activity()
    for now in (0.0, 0.5):
        seen.last(now)
    work()
    return seen.last(1.0) == 1.0


def compute():
    end = time.process_time() + 0.05

    def spin():
        while time.process_time() < end:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    thread.join()


def write():
    with open(os.devnull, "wb") as file:
        file.write(bytes(BYTES))


def test_a_process_that_does_nothing_does_not_work():
    assert not is_seen(lambda: None)


def test_a_process_that_computes_works():
    assert is_seen(compute)


def test_a_process_that_writes_works():
    if not os.path.exists("/proc/self/io"):
        pytest.skip("needs /proc")
    assert is_seen(write)


def test_a_process_whose_child_computes_works():
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        pytest.skip("needs /proc")
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        seen = Activity()
        # The system counts the child's processor time in ticks, and the next tick comes sooner or
        # later.
        assert any(seen.last(now) == now for now in itertools.count())
        child.kill()


def test_measurements_are_half_a_second_apart():
    seen = Activity()
    for now in (0.0, 0.5):
        seen.last(now)
    compute()
    assert seen.last(0.9) < 0.9
    assert seen.last(1.1) == 1.1
