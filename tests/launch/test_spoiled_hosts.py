"""Tests the doctor on two hosts (hosts.py), of which one has spoiled files, a firewall or a wrong
clock."""

import importlib.metadata
import importlib.util
import json
import pathlib
import re
import shutil
import subprocess

import pytest

from launch import mpirun
from tests.launch.conftest import ROOT
from tests.launch.hosts import Hosts, why_not

REFUSAL = why_not()
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL),
    pytest.mark.skipif(
        mpirun.find() is None or importlib.util.find_spec("mpi4py") is None,
        reason="needs mpchain[mpi]",
    ),
]

# The firewall drops new connections to host a, except those of ssh.
FIREWALL = """
nft add table inet spoiled
nft add chain inet spoiled input '{ type filter hook input priority 0; }'
nft add rule inet spoiled input iifname cable 'tcp flags & (syn | ack) == syn' tcp dport != 22 drop
"""


@pytest.fixture
def hosts():
    with Hosts("a", "b") as hosts:
        yield hosts


@pytest.fixture
def diagnose(hosts, run, monkeypatch, tmp_path):
    """Returns a function that spoils a host, and returns the doctor's findings by item: those about
    host b, and those that name no host."""
    for name, value in hosts.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def diagnose(name, line, **options):
        command = hosts.command("sh", "-ec", line, host=name)
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        words = ["doctor", "--json", "--hosts", "a:1,b:1"]
        _, output, errors = run(*words, before=hosts.command(), folder=tmp_path, **options)
        assert errors == ""
        return {each["item"]: each for each in json.loads(output) if each["host"] in ("b", "")}

    return diagnose


def test_files_and_versions(diagnose, tmp_path):
    """Host b has a small /dev/shm, a small folder of temporary files, read-only results, and
    another mpi4py."""
    described = pathlib.Path(importlib.metadata.distribution("mpi4py").locate_file("."))
    metadata = next(described.glob("mpi4py-*.dist-info")) / "METADATA"
    other = tmp_path / "METADATA"
    own = f"Version: {importlib.metadata.version('mpi4py')}\n"
    other.write_text(metadata.read_text("utf-8").replace(own, "Version: 3.1.6\n"), "utf-8")
    found = diagnose(
        "b",
        f"mount -o remount,size=64m /dev/shm; mount -o remount,size=1m /run; "
        f"mount --bind {other} {metadata}; mount --bind {tmp_path} {tmp_path}; "
        f"mount -o remount,ro,bind {tmp_path}",
    )
    assert found["shared memory"]["verdict"] == "WARN"
    assert found["shared memory"]["hint"].endswith("docker run --shm-size=8g")
    assert found["temporary files"]["verdict"] == "WARN"
    assert "set TMPDIR to a local folder with space" in found["temporary files"]["hint"]
    assert found["folders"]["verdict"] == "FAIL"
    assert found["folders"]["found"] == f"cannot write {tmp_path}"
    assert found["mpi4py differs"]["verdict"] == "FAIL"
    assert found["mpi4py differs"]["found"].endswith("b: 3.1.6")
    assert found["mpi4py differs"]["hint"] == "install the same mpi4py on all hosts"


@pytest.mark.skipif(not shutil.which("nft"), reason="needs nft: apt-get install nftables")
def test_firewall(diagnose):
    found = diagnose("a", FIREWALL)
    assert found["connection"]["verdict"] == "FAIL"
    assert "timed out" in found["connection"]["found"]
    assert "allow TCP between the hosts on all ports" in found["connection"]["hint"]


def test_a_clock_that_differs(diagnose, tmp_path):
    """On host b, Python's time is 400 seconds late."""
    late = "import time; own = time.time; time.time = lambda: own() - 400"
    (tmp_path / "sitecustomize.py").write_text(
        f"import socket\nif socket.gethostname() == 'b':\n    {late}\n"
    )
    found = diagnose("b", "true", env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})["clocks differ"]
    assert found["verdict"] == "WARN"
    assert re.fullmatch(r"by [34]\d\d s", found["found"])  # the hosts answer at different moments
    assert found["hint"].endswith("set the clocks by NTP")
