"""Tests jobs on several hosts, which are network namespaces of this machine (hosts.py)."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from launch import mpirun
from tests.launch.hosts import Hosts, why_not

REFUSAL = why_not()
pytestmark = [
    pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL),
    pytest.mark.skipif(
        mpirun.find() is None or importlib.util.find_spec("mpi4py") is None,
        reason="needs mpchain[mpi]",
    ),
]


@pytest.fixture(scope="module")
def hosts():
    with Hosts("a", "b", "c") as hosts:
        yield hosts


@pytest.fixture
def start_on_a(hosts, start, monkeypatch):
    """Returns a function that starts the launcher on host a."""

    def start_on_a(*arguments, **options):
        for name, value in hosts.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(options.get("folder", "."))
        return start(*arguments, before=hosts.command(), **options)

    return start_on_a


@pytest.fixture
def run_on_a(start_on_a):
    return lambda *arguments, **options: start_on_a(*arguments, **options).finish()


def is_empty(hosts, name):
    """Returns whether no process and no file of a job remains on a host, after waiting some
    seconds."""
    # The brackets prevent pgrep from finding the shell that runs it.
    processes = "pgrep -f '[s]tart_rank|[s]tart_program|[p]rted|[p]mi_proxy'"
    files = "ls -d /run/[p]rted.*"
    left = f"{{ {processes}; {files}; }} 2>/dev/null | grep -q ."
    wait = f"for i in $(seq 200); do {left} || exit 0; sleep 0.05; done; exit 1"
    return subprocess.run(hosts.command("sh", "-c", wait, host=name), check=False).returncode == 0


def last_line(errors):
    return errors.splitlines()[-1].removeprefix("mpchain-launch: ")


def test_world(run_on_a, script, tmp_path):
    path = script("""
        import os, socket
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        print(world.rank, world.allreduce(world.rank), socket.gethostname(), os.environ["A"])
    """)
    arguments = ["--hosts", "a:1,b:2,c:1", "-n", "auto", "--env", "A=x y", path]
    code, output, errors = run_on_a(*arguments, folder=tmp_path)
    assert sorted(output.splitlines()) == [
        f"[{rank}] {rank} 6 {host} x y" for rank, host in enumerate("abbc")
    ], errors
    assert code == 0


@pytest.mark.long
def test_failure_names_the_hosts(run_on_a, hosts, script, tmp_path):
    path = script("""
        import pathlib, time
        from mpi4py import MPI

        ready = [pathlib.Path(__file__).with_name(f"{rank} is ready") for rank in range(3)]
        if MPI.COMM_WORLD.rank == 1:
            while not (ready[0].exists() and ready[2].exists()):
                time.sleep(0.01)  # no event exists to wait for, so poll
            raise ValueError("boom")
        ready[MPI.COMM_WORLD.rank].touch(), MPI.COMM_WORLD.Barrier()
    """)
    (tmp_path / "hosts").write_text("a slots=1\nb slots=1\nc slots=1\n")
    code, _, errors = run_on_a("--hostfile", "hosts", "-n", 3, path, folder=tmp_path)
    assert code == 1
    assert "[1] ValueError: boom" in errors
    for rank, host in ((0, "a"), (2, "c")):
        assert (
            f"  rank {rank} on {host}: terminated by mpchain-launch, at script.py:10 in <module>"
            in errors
        )
    assert last_line(errors).startswith("rank 1 of 3 on b ")
    assert is_empty(hosts, "b") and is_empty(hosts, "c")


WAITING = """
    import time
    print("ready", flush=True)
    time.sleep(60)  # hangs until it is killed
"""


def test_killed_launcher_leaves_nobody_anywhere(start_on_a, hosts, script, tmp_path):
    launched = start_on_a("--hosts", "a:1,b:2", "-n", 3, script(WAITING), folder=tmp_path)
    assert sorted(launched.read_lines(3)) == [f"[{rank}] ready" for rank in range(3)]
    # The launcher is a child of nsenter, which does not forward signals.
    kill = "kill -9 $(pgrep -f '^[^ ]*python[^ ]* -m launch')"
    subprocess.run(hosts.command("sh", "-c", kill), check=True)
    assert launched.finish()[0] != 0
    assert is_empty(hosts, "a") and is_empty(hosts, "b")


def test_killed_rank_on_another_host(start_on_a, hosts, script, tmp_path):
    launched = start_on_a("--hosts", "a:1,b:1", "-n", 2, script(WAITING), folder=tmp_path)
    assert sorted(launched.read_lines(2)) == ["[0] ready", "[1] ready"]
    subprocess.run(hosts.command("pkill", "-9", "-f", "start_program", host="b"), check=True)
    code, _, errors = launched.finish()
    assert code == 137
    assert last_line(errors).startswith("rank 1 of 2 on b was killed by SIGKILL (signal 9)")
    assert is_empty(hosts, "a") and is_empty(hosts, "b")


@pytest.mark.long
def test_daemon_that_hangs(start_on_a, hosts, script, tmp_path):
    launched = start_on_a("--hosts", "a:1,b:1", "-n", 2, script(WAITING), folder=tmp_path)
    assert sorted(launched.read_lines(2)) == ["[0] ready", "[1] ready"]
    stop = hosts.command("pkill", "-STOP", "-n", "prted|hydra_pmi_proxy", host="b")
    subprocess.run(stop, check=True)
    subprocess.run(hosts.command("pkill", "-9", "-f", "start_program", host="b"), check=True)
    assert launched.finish()[0] == 137
    assert is_empty(hosts, "a") and is_empty(hosts, "b")


def test_unknown_host(run_on_a, script, tmp_path):
    arguments = ["--hosts", "a:1,nowhere:1", "-n", 2, script("pass")]
    code, output, errors = run_on_a(*arguments, folder=tmp_path)
    assert code != 0
    assert "Could not resolve hostname nowhere" in last_line(errors)
    assert last_line(errors).endswith("'ssh nowhere true' must work by itself")
    assert (output, len(errors.splitlines())) == ("", 1), errors


def test_host_without_python(run_on_a, hosts, script, tmp_path):
    folder = os.path.dirname(sys.executable)
    hide = hosts.command("mount", "-t", "tmpfs", "tmpfs", folder, host="c")
    subprocess.run(hide, check=True)
    arguments = ["--hosts", "a:1,c:1", "-n", 2, script("pass")]
    code, output, errors = run_on_a(*arguments, folder=tmp_path)
    subprocess.run(hosts.command("umount", folder, host="c"), check=True)
    assert code != 0
    assert last_line(errors).startswith(
        f"host c has no Python at {sys.executable}: install mpchain"
    )
    assert (output, len(errors.splitlines())) == ("", 1), errors


def test_doctor(run_on_a, hosts, tmp_path):
    code, output, errors = run_on_a("doctor", "--json", "--hosts", "a:1,b:1", folder=tmp_path)
    assert (code, errors) == (0, "")
    findings = json.loads(output)
    assert {"a", "b"} <= {each["host"] for each in findings if each["item"] == "mpi"}
    found = {each["item"]: each["found"] for each in findings}
    assert found["batch system"].endswith("hosts a:1, b:1")
    assert found["hosts"] == "2 hosts have the same versions"
    assert "between 2 ranks" in found["latency"]


ELASTIC = """
    import array, time
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    world.Set_errhandler(MPI.ERRORS_RETURN)
    world.Barrier()
    print("ready", flush=True)
    one, total = array.array("i", [1]), array.array("i", [0])
    try:
        while True:
            world.Allreduce(one, total)
            time.sleep(0.01)  # no event exists to wait for, so poll
    except MPI.Exception:
        world.Revoke()
    comm = world.Shrink()
    comm.Allreduce(one, total)
    print("left", *total, flush=True)
"""


# This program once hung after a disconnection, in one of four runs, for an unknown reason; 30 later
# runs ended.
@pytest.mark.parametrize("deed", [pytest.param("cut", marks=pytest.mark.nightly), "kill"])
def test_elastic_job_continues_without_a_host(start_on_a, hosts, script, tmp_path, deed):
    """The host of rank 1 is disconnected, or its program is killed; three ranks continue."""
    try:
        mpirun.find().elastic()
    except mpirun.NotElasticError as error:
        pytest.skip(f"needs Open MPI with ULFM: {error}")
    options = ["--elastic", "--host-timeout", 5, "--grace", 0.5]
    arguments = ["--hosts", "a:1,b:1,c:2", "-n", 4, *options, script(ELASTIC)]
    launched = start_on_a(*arguments, folder=tmp_path)
    assert len(launched.read_lines(4)) == 4
    if deed == "cut":
        hosts.cut("b")
    else:
        kill = hosts.command("pkill", "-9", "-f", "start_program", host="b")
        subprocess.run(kill, check=True)
    try:
        code, output, errors = launched.finish()
        assert all(is_empty(hosts, name) for name in hosts.names)
    finally:
        hosts.join("b")
    assert code == 0, errors
    left = [f"[{rank}] left 3" for rank in (0, 2, 3)]
    assert sorted(output.splitlines()) == left, errors
    fate = {"cut": "was lost: no heartbeat", "kill": "was killed by SIGKILL (signal 9)"}[deed]
    assert f"rank 1 of 4 on b {fate}" in last_line(errors)


STEPS = """
    import json, os, sys, time
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    step, total = json.load(open(sys.argv[1])) if sys.argv[1] else (0, 0)
    while step < 8:
        if step == 4 and world.size == 2:
            print("half way", flush=True)
            time.sleep(1000) if world.rank else None  # hangs until it is killed
        step += 1
        total += world.allreduce(12 // world.size * step)
        if world.rank == 0 and step % 2:
            with open("out/new", "w") as file:
                json.dump([step, total], file)
            os.replace("out/new", f"out/snapshot_{step}")
    print("end", world.size, total)
"""


@pytest.mark.long
def test_cut_host(start_on_a, hosts, script, tmp_path):
    """The host of rank 1 is disconnected during training; rank 0 continues alone and has the same
    result."""
    (tmp_path / "out").mkdir()
    options = ["--restarts", 1, "--min-ranks", 1, "--checkpoint-dir", "out", "--host-timeout", 2]
    arguments = ["--hosts", "a:1,b:1", "-n", 2, *options, "--grace", 0.5, script(STEPS)]
    launched = start_on_a(*arguments, "{checkpoint}", folder=tmp_path)
    assert sorted(launched.read_lines(2)) == ["[0] half way", "[1] half way"]
    hosts.cut("b")
    try:
        code, output, errors = launched.finish()
        assert is_empty(hosts, "b")
    finally:
        hosts.join("b")
    assert (code, output) == (0, f"[0] end 1 {12 * sum(range(1, 9))}\n")
    assert "rank 1 of 2 on b was lost: no heartbeat from its host" in errors
    assert f"restart 1 of 1 in 1 s, from {tmp_path}/out/snapshot_3" in errors
    assert "host b cannot be reached" in errors
    assert "continuing with 1 of 2 ranks on a" in errors
