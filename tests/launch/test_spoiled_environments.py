"""Tests that jobs that fail at their start in really spoiled environments are explained."""

import importlib.util
import os

import pytest

from launch import mpirun
from launch.processes import ask
from tests.launch.hosts import may_mount

FOUND = mpirun.find()
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("mpi4py") is None
        or getattr(FOUND, "flavour", None) != mpirun.OpenMpi.flavour,
        reason="needs mpchain[mpi] and Open MPI",
    ),
]

PROGRAM = "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
# A full file system of one page replaces a folder.
FULL = "mount -t tmpfs -o size=4k tmpfs {0}; dd if=/dev/zero of={0}/x bs=4k count=1 2>&-; "


def has_ucx():
    folder = [os.path.dirname(getattr(FOUND, "path", None) or "")]
    program = mpirun.find_program(["ompi_info"], folder)
    return bool(program) and "MCA pml: ucx" in ask([program])


needs_mounts = pytest.mark.skipif(not may_mount(), reason="needs unshare and the right to mount")


def explanation(result):
    code, _, errors = result
    assert code != 0
    lines = [line for line in errors.splitlines() if line.startswith("mpchain-launch: ")]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OMPI_MCA_pml": "ucx", name: value}, words)
        for name, value, words in (
            ("UCX_NET_DEVICES", "mlx5_9:1", "unset UCX_NET_DEVICES"),
            ("UCX_TLS", "rc", "unset UCX_TLS, or let it include"),
        )
    ]
    + [
        ({"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self"}, "unset OMPI_MCA_btl and OMPI_MCA_pml"),
        ({"OMPI_MCA_pml": "nosuch"}, "unset OMPI_MCA_pml and OMPI_MCA_btl; ompi_info"),
    ],
)
def test_transports(run, script, variables, words):
    if variables["OMPI_MCA_pml"] == "ucx" and not has_ucx():
        pytest.skip("needs an Open MPI with UCX")
    assert words in explanation(run("-n", 2, script(PROGRAM), env=variables))


@needs_mounts
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (FULL, "free /tmp, or set TMPDIR to a local folder with space"),
        ("mount -t tmpfs -o ro tmpfs {0}; ", "set TMPDIR to a local folder that you can write"),
        ("mount -t tmpfs -o size=1m tmpfs /dev/shm; ", "docker run --shm-size=8g"),
    ],
    ids=["full", "read-only", "small /dev/shm"],
)
def test_file_systems(run, script, tmp_path, spoil, words):
    place = tmp_path / "scratch"
    place.mkdir()
    variables = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}
    if "shm" not in spoil:
        variables = {"TMPDIR": str(place)}
    before = ["unshare", "--mount", "sh", "-c", spoil.format(place) + 'exec "$@"', "sh"]
    assert words in explanation(run("-n", 2, script(PROGRAM), env=variables, before=before))


def test_few_files(run, script):
    before = ["sh", "-c", 'ulimit -n 24; exec "$@"', "sh"]
    assert "set ulimit -n 4096" in explanation(run("-n", 2, script(PROGRAM), before=before))
