"""Tests real trainings that are disturbed, in the short form of tests.tools.random_kills."""

import importlib.util
import os
import random

import pytest

from launch import mpirun
from tests.tools.random_kills import TrainingJob, check_kill, check_restart

pytestmark = [
    pytest.mark.skipif(
        mpirun.find() is None or importlib.util.find_spec("mpi4py") is None,
        reason="needs mpchain[mpi]",
    ),
    pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs mpchain[data]"),
    pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs Linux"),
]


@pytest.mark.long
def test_restart_in_the_middle_of_an_epoch(tmp_path):
    job = TrainingJob(tmp_path, 2, 1)
    try:
        assert job.wait_for_end() == 0, job.errors
        expected = job.log()
    finally:
        job.close()
    job = TrainingJob(tmp_path, 2, 1, ["--restarts", "2", "--backoff", "0.1"])
    try:
        line = check_restart(job, "rank", random.Random(0), 0.0, expected)
        assert "restart 1 of 2 in 0.1 s, from " in line
    finally:
        job.close()


@pytest.mark.long
def test_killed_launcher_of_training(tmp_path):
    job = TrainingJob(tmp_path, 2, 20)
    try:
        assert "launcher killed: exit code -9" in check_kill(job, "launcher", random.Random(0), 0.0)
    finally:
        job.close()
