"""Tests the doctor and two ranks in real containers of Podman, whose root is a copy of this
machine's."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from launch import mpirun
from launch.processes import ask

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
# If this machine is itself a container, it allows neither quotas nor more files.
PODMAN = ["podman", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime", "runc"]
RUN = [*PODMAN, "run", "--rm", "--network", "host", "--security-opt", "seccomp=unconfined"]
RUN += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]


def why_not():
    missing = [name for name in ("podman", "runc") if not shutil.which(name)]
    if missing:
        return f"needs {' and '.join(missing)}: apt-get install podman runc"
    if importlib.util.find_spec("mpi4py") is None or mpirun.find() is None:
        return "needs mpchain[mpi]"
    said = ask([*RUN, "--rootfs", "/:O", "echo", "works"])
    return "" if said.endswith("works\n") else f"podman does not run here: {said}"


def in_container(folder, options):
    words = " ".join([*RUN, *options, "--rootfs", "/:O", sys.executable])
    answer = subprocess.run(
        [sys.executable, "-m", "launch", "doctor", "--json", "--container", words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = json.loads(answer.stdout)
    return {each["item"]: each for each in found if each["host"] == "container"}


@pytest.mark.nightly
def test_podman(tmp_path):
    if reason := why_not():
        pytest.skip(reason)
    found = in_container(tmp_path, [])
    assert found["container"]["found"] == "Podman"
    assert found["shared memory"]["verdict"] == "WARN"  # Podman provides 63 MiB
    assert found["own /dev/shm"]["hint"].endswith("podman run --ipc=host")
    assert found["binds"]["hint"] == f"podman run -v {tmp_path}:{tmp_path} ..."
    assert found["ranks inside"]["hint"].startswith("each of two ranks is alone")

    # With the options that this hint suggests, ranks connect to each other.
    asked = found["ranks inside"]["hint"].rpartition("or podman run ")[2].removesuffix(" ...")
    options = [word for word in asked.split() if not word.startswith("--network")]
    found = in_container(tmp_path, [*options, "-v", f"{tmp_path}:{tmp_path}"])
    assert not {"binds", "own /dev/shm"} & set(found)
    assert found["ranks inside"]["verdict"] == "ok"
