"""Tests who may connect to the processes of a job on one host."""

import contextlib
import importlib.util
import os
import pathlib
import socket

import pytest

from launch import mpi_library, mpirun
from launch.messages import HEADER, message

pytestmark = [
    pytest.mark.skipif(mpirun.find() is None, reason="needs mpirun: pip install 'mpchain[mpi]'"),
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux"),
]


def listeners(processes):
    """Returns the addresses, in the format of /proc, on which some processes listen for TCP."""
    files = set()
    for process in processes:
        for file in os.scandir(f"/proc/{process}/fd"):
            with contextlib.suppress(FileNotFoundError):
                files.add(os.readlink(file.path))
    found = []
    for name in ("tcp", "tcp6"):
        for line in pathlib.Path("/proc/net", name).read_text().splitlines()[1:]:
            _, address, _, state, *_ = words = line.split()
            if state == "0A" and f"socket:[{words[9]}]" in files:
                found.append(address.partition(":")[0])
    return found


@pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or mpirun.find().flavour != mpi_library.OPEN_MPI,
    reason="needs Open MPI, because MPICH has no such option",
)
def test_ranks_and_launcher_do_not_listen_to_the_network(start, script, tmp_path):
    path = script("""
        import os
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()
        print(os.getpid(), os.getppid(), flush=True)
        open("pipe").close()
    """)
    os.mkfifo(tmp_path / "pipe")
    launched = start("-n", 2, "--no-prefix", path)
    processes = [int(word) for line in launched.read_lines(2) for word in line.split()]
    assert set(listeners([launched.process.pid, *processes])) == {"0100007F"}  # this is 127.0.0.1
    with open(tmp_path / "pipe", "w"):  # the pipe stays open, because the ranks connect one by one
        assert launched.finish()[0] == 0


@pytest.mark.parametrize("first", [b"", message(b"O", b"x"), HEADER.pack(b"H", 2**32 - 1)])
def test_stranger_on_the_port_is_dropped(start, script, tmp_path, first):
    """A connection with a wrong first message is closed at once, a silent one at the end."""
    path = script("""
        import os

        # The environment of the guard has what ranks are told about the launcher.
        guard = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1]
        variables = open(f"/proc/{guard}/environ").read().split("\\0")
        print(next(each for each in variables if each.startswith("MPCHAIN_LAUNCH=")), flush=True)
        open("pipe").close()
    """)
    os.mkfifo(tmp_path / "pipe")
    launched = start("-n", 2, "--no-prefix", "--grace", 1000, path)
    line = launched.read_lines(2)[0]
    with socket.create_connection(("127.0.0.1", int(line.split()[1]))) as stranger:
        stranger.sendall(first)
        if first:
            assert stranger.recv(1) == b""
        # The pipe stays open, because the ranks connect one by one.
        with open(tmp_path / "pipe", "w"):
            assert launched.finish()[0] == 0
