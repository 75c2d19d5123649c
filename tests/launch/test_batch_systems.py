"""Tests the scripts for PBS and LSF, on imitations of both on two hosts (batch_systems.py)."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

from launch import cli, mpirun
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMITATION = pathlib.Path(__file__).with_name("batch_systems.py")
PROGRAM = """
    import os, socket
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    print(socket.gethostname(), world.rank, world.allreduce(1), os.environ["MPCHAIN_SETUP"])
"""


@pytest.fixture(scope="module")
def hosts():
    with Hosts("a", "b") as hosts:
        yield hosts


@pytest.fixture
def submit(hosts, script, tmp_path, capsys, monkeypatch):
    """Returns a function that submits the script for a program, and returns the printed text and
    the output."""

    def submit(scheduler, command, variables=()):
        path = script(PROGRAM)
        arguments = ["-n", "4", "--nodes", "2", "--name", "job", "--time", "0:10:00"]
        arguments += ["--setup", "export MPCHAIN_SETUP=done", str(path)]
        assert cli.main(["--scheduler", scheduler, *arguments]) == 0
        text = capsys.readouterr().out
        monkeypatch.chdir(tmp_path)
        answer = subprocess.run(
            hosts.command(sys.executable, str(IMITATION), command, "a,b"),
            env={**os.environ, "PYTHONPATH": str(ROOT), **hosts.environment(), **dict(variables)},
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        (output,) = [*tmp_path.glob("job.o*"), *tmp_path.glob("job.*.log")]
        return answer.stdout.strip(), output.read_text()

    return submit


def lines_of_ranks(output):
    return sorted(line for line in output.splitlines() if re.match(r"\[\d+\] ", line))


EXPECTED = [f"[{rank}] {host} {rank} 4 done" for rank, host in enumerate("aabb")]


def test_pbs(submit):
    printed, output = submit("pbs", "qsub")
    assert printed == "1.a"
    assert lines_of_ranks(output) == EXPECTED, output


@pytest.mark.skipif(
    getattr(mpirun.find(), "flavour", None) != mpirun.OpenMpi.flavour, reason="needs Open MPI"
)
def test_lsf_where_ssh_is_refused(submit, hosts, tmp_path):
    """LSF's blaunch replaces ssh, for the launcher and for mpirun."""
    folder = tmp_path / "bin"
    folder.mkdir()
    plant(folder / "ssh", "#!/bin/sh\necho 'Permission denied (publickey).' >&2\nexit 255\n")
    plant(folder / "blaunch", f'#!/bin/sh\nexec {sys.executable} {IMITATION} blaunch "$@"\n')
    path = f"{folder}:{hosts.environment()['PATH']}"
    variables = {"PATH": path, "IMITATED_REMOTE_SHELL": f"{hosts.folder}/bin/ssh"}
    printed, output = submit("lsf", "bsub", variables)
    assert printed == "Job <1> is submitted to default queue <normal>."
    assert lines_of_ranks(output) == EXPECTED, output


def plant(path, text):
    path.write_text(text)
    path.chmod(0o755)
