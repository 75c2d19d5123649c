import importlib.util
import os
import re
import signal
import socket
import time

import pytest

from launch import mpirun, standstill

pytestmark = [
    pytest.mark.skipif(
        mpirun.find() is None or importlib.util.find_spec("mpi4py") is None,
        reason="needs mpchain[mpi]",
    ),
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux"),
]
HERE = socket.gethostname()

# Rank 1 does something after the last collective, when rank 0 is in MPI_Finalize already.
PROGRAM = """
    import atexit, os, signal, threading, time
    from mpi4py import MPI

    def hang():
        time.sleep(1000)

    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 1:
        {}
"""


def environment(seconds):
    return {"env": {standstill.TIMEOUT_VARIABLE: str(seconds)}}


@pytest.mark.parametrize("text", ["2.5", "inf", "0", "-1", "nan", "soon"])
def test_timeout_is_that_of_the_distributed_runtime(text):
    seconds = standstill.timeout_of({"MPCHAIN_COLLECTIVE_TIMEOUT": text})
    assert seconds == {"2.5": 2.5, "inf": float("inf")}.get(text, standstill.DEFAULT_TIMEOUT)


def test_default_timeout_is_that_of_the_distributed_runtime():
    pytest.importorskip("numpy")
    from mpchain.distributed import watch

    assert standstill.timeout_of({}) == watch.DEFAULT_TIMEOUT


@pytest.mark.long
@pytest.mark.parametrize(
    ("deed", "fate"),
    [
        ("os.kill(os.getpid(), signal.SIGSTOP)", "was stopped; ended by mpchain-launch"),
        ("atexit.register(hang)", "ended by mpchain-launch, in hang (script.py:6)"),
        (
            "threading.Thread(target=hang).start()",
            "ended by mpchain-launch, in hang (script.py:6)",
        ),
    ],
    ids=["stopped", "atexit", "thread"],
)
def test_rank_that_never_finishes(run, script, deed, fate):
    path = script(PROGRAM.format(deed))
    code, _, errors = run("-n", 2, "--grace", 0.5, path, **environment(1))
    assert code == 1
    lines = errors.splitlines()
    assert f"mpchain-launch:   rank 1 on {HERE}: {fate}" in lines
    assert f"mpchain-launch:   rank 0 on {HERE}: had finished; ended by mpchain-launch" in lines
    assert re.fullmatch(
        r"mpchain-launch: rank 1 did not finish within \d+ s after the others; "
        r"rank 0 waited in MPI_Finalize(; stopped: rank 1)?",
        lines[-1],
    )
    assert ("; stopped: rank 1" in lines[-1]) == ("was stopped" in fate)


@pytest.mark.long
def test_rank_that_computes_after_the_others_is_reported_and_not_ended(run, script):
    path = script("""
        import time
        from mpi4py import MPI

        def compute():
            while time.monotonic() < begin + 3:
                pass

        MPI.COMM_WORLD.Barrier()
        if MPI.COMM_WORLD.rank == 1:
            begin = time.monotonic()
            compute()
            print("computed")
    """)
    code, output, errors = run("-n", 2, path, **environment(1))
    assert (code, output) == (0, "[1] computed\n")
    words = "mpchain-launch: the other ranks have finished and wait for rank 1, in compute (script"
    assert errors.count(words) == 1


@pytest.mark.long
def test_stopped_supervisor(run, script):
    path = script("""
        import os, signal, time
        from mpi4py import MPI

        if MPI.COMM_WORLD.rank == 1:
            os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(60)
    """)
    code, _, errors = run("-n", 2, "--grace", 0.5, path, **environment(1))
    assert code == 1
    assert re.fullmatch(
        rf"mpchain-launch: rank 1 of 2 on {HERE} was lost: its supervisor \(process \d+\) is "
        "stopped",
        errors.splitlines()[-1],
    )


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.long), 2])
def test_stopped_mpirun(start, script, tmp_path, n):
    path = script("""
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()
        print("ready", flush=True)
        open("pipe").close()
    """)
    os.mkfifo(tmp_path / "pipe")
    launched = start("-n", n, "--grace", 0.5, path, **environment(1))
    launched.read_lines(n)
    os.kill(launched.mpirun(), signal.SIGSTOP)
    with open(tmp_path / "pipe", "w"):  # stays open, since the ranks come one by one
        code, _, errors = launched.finish()
    assert code == 1
    assert " has been stopped for 1 s" in errors.splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize("everybody", [False, True])
def test_launcher_or_job_that_was_stopped_continues(start, script, tmp_path, everybody):
    path = script("""
        import os
        from mpi4py import MPI

        ids = MPI.COMM_WORLD.allgather((os.getpid(), os.getppid()))
        if MPI.COMM_WORLD.rank == 0:
            print(*sum(ids, ()), flush=True)
            open("pipe").close()
        MPI.COMM_WORLD.Barrier()
        print("end")
    """)
    os.mkfifo(tmp_path / "pipe")
    launched = start("-n", 2, "--no-prefix", path, **environment(1))
    (line,) = launched.read_lines(1)
    victims = [launched.process.pid, *map(int, line.split()), launched.mpirun()]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for victim in victims if everybody else victims[:1]:
            os.kill(victim, number)
        if number == signal.SIGSTOP:
            time.sleep(2.5)  # the fault itself: longer than the timeout
    open(tmp_path / "pipe", "w").close()
    code, output, errors = launched.finish()
    assert (code, output) == (0, "end\nend\n"), errors
