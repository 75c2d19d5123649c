import importlib.util
import os
import re
import signal
import socket
import socketserver
import threading
import time

import pytest

from launch import mpirun, rank, standstill, start_program

pytestmark = [
    pytest.mark.skipif(
        mpirun.find() is None or importlib.util.find_spec("mpi4py") is None,
        reason="needs mpchain[mpi]",
    ),
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux"),
]
HERE = socket.gethostname()

# Rank 1 does something after the last collective, when rank 0 is already in MPI_Finalize.
PROGRAM = """
    import atexit, os, signal, threading, time
    from mpi4py import MPI

    def hang():
        time.sleep(1000)  # hangs until it is killed

    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 1:
        {}
"""


def environment(seconds):
    return {"env": {standstill.TIMEOUT_VARIABLE: str(seconds)}}


def remedy(seconds):
    return f"if a rank needs longer, set MPCHAIN_COLLECTIVE_TIMEOUT to more than {seconds} seconds"


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
        ("os.kill(os.getpid(), signal.SIGSTOP)", "was stopped; terminated by mpchain-launch"),
        ("atexit.register(hang)", "terminated by mpchain-launch, at script.py:6 in hang"),
        (
            "threading.Thread(target=hang).start()",
            "terminated by mpchain-launch, at script.py:6 in hang",
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
    assert (
        f"mpchain-launch:   rank 0 on {HERE}: had finished; terminated by mpchain-launch" in lines
    )
    assert re.fullmatch(
        r"mpchain-launch: rank 1 did not finish within \d+ s after the other ranks; "
        r"rank 0 waited in MPI_Finalize; "
        + ("stopped: rank 1" if "was stopped" in fate else remedy(1)),
        lines[-1],
    )


START = """
    import os, signal, time

    import mpchain.distributed  # first, because it takes seconds on a busy host

    def wait():
        time.sleep(1000)  # hangs until it is killed

    def work(seconds=4):
        begin = time.monotonic()
        while time.monotonic() < begin + seconds:
            pass

    def load(n=20):
        for _ in range(n):
            time.sleep(0.2)  # work that takes a while
            with open("/dev/null", "w") as file:
                file.write("data")

    def download():
        import socket

        with socket.create_connection(("127.0.0.1", {port})) as connection:
            while connection.recv(100):
                pass

    def do_it():
        if int(os.environ["OMPI_COMM_WORLD_RANK"]) == 1:
            open("begun", "w").close()
            {deed}
        while not os.path.exists("begun"):  # else the others may wait for rank 1's imports
            time.sleep(0.01)

    {before}
    from mpi4py import MPI
    {after}
    comm = mpchain.distributed.create_communicator()
    print(sum(comm.allgather_obj(1)))
"""
STOP = "os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.fixture
def slow_server():
    """Returns the port of a server that sends some bytes five times per second, for four
    seconds."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            for _ in range(20):
                time.sleep(0.2)  # the server imitates slow work
                self.request.sendall(bytes(100))

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("place", "deed", "fate"),
    [
        ("MPI_Init", STOP, "was stopped; terminated by mpchain-launch"),
        ("create_communicator", "wait()", "terminated by mpchain-launch, at script.py:7 in wait"),
        *(
            pytest.param(*row, marks=pytest.mark.long)
            for row in [
                ("MPI_Init", "wait()", "terminated by mpchain-launch, at script.py:7 in wait"),
                ("create_communicator", STOP, "was stopped; terminated by mpchain-launch"),
                (
                    "create_communicator",
                    "raise SystemExit(0)",
                    "had finished; terminated by mpchain-launch",
                ),
            ]
        ),
    ],
)
def test_rank_that_never_starts(run, script, place, deed, fate):
    when = (
        {"before": "do_it()", "after": ""}
        if place == "MPI_Init"
        else {"before": "", "after": "do_it()"}
    )
    path = script(START.format(deed=deed, port=0, **when))
    code, output, errors = run("-n", 3, "--grace", 0.5, path, **environment(2))
    assert (code, output) == (1, ""), errors
    lines = errors.splitlines()
    assert f"mpchain-launch:   rank 1 on {HERE}: {fate}" in lines
    (others,) = [line for line in lines if line.startswith("mpchain-launch:   ranks 0, 2 on ")]
    assert "terminated by mpchain-launch, at script.py:" in others and "<module>" in others
    causes = {
        STOP: "stopped: rank 1",
        "wait()": remedy(2),
        "raise SystemExit(0)": "finished: rank 1",
    }
    cause = causes[deed]
    assert re.fullmatch(
        rf"mpchain-launch: rank 1 did not get to {place} within \d+ s after the other ranks; "
        rf"ranks 0, 2 waited in {place}; {cause}",
        lines[-1],
    )


@pytest.mark.long
@pytest.mark.parametrize("place", ["MPI_Init", "create_communicator"])
def test_rank_that_is_stopped_where_all_wait(run, script, place):
    """Rank 1 stops itself as soon as it is at the place."""
    path = script(
        """
        import os, signal, sys, threading, time
        import mpchain
        from mpchain.distributed.watch import creating

        rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        starter = sys.modules["mpchain_launch_starter"]
        if rank == 1 and PLACE == "create_communicator":
            from mpchain.distributed import shared_memory

            tell = starter.creates_communicator
            starter.creates_communicator = lambda ends: (
                tell(ends), os.kill(os.getpid(), signal.SIGSTOP)
            )
        if rank == 1 and PLACE == "MPI_Init":
            (phases,) = [each for each in sys.meta_path if hasattr(each, "creates_communicator")]
            tell_phase = phases.tell
            phases.tell = lambda phase: (tell_phase(phase), os.kill(os.getpid(), signal.SIGSTOP))
        mpchain.distributed.create_communicator().barrier()
    """.replace("PLACE", repr(place))
    )
    code, _, errors = run("-n", 2, "--grace", 0.5, path, **environment(2))
    assert code == 1
    assert re.fullmatch(
        rf"mpchain-launch: {place} did not end within \d+ s; ranks 0-1 waited in {place}; "
        "stopped: rank 1",
        errors.splitlines()[-1],
    )


@pytest.mark.parametrize(
    ("place", "deed"),
    [
        ("MPI_Init", "work()"),
        pytest.param("create_communicator", "work()", marks=pytest.mark.long),
        pytest.param("MPI_Init", "load()", marks=pytest.mark.long),
        pytest.param("MPI_Init", "download()", marks=pytest.mark.long),
    ],
)
def test_rank_that_works_before_it_starts_is_reported_and_not_ended(
    run, script, slow_server, place, deed
):
    """Some imports and data sets take long, and a slow download takes almost no time of a core."""
    when = (
        {"before": "do_it()", "after": ""}
        if place == "MPI_Init"
        else {"before": "", "after": "do_it()"}
    )
    path = script(START.format(deed=deed, port=slow_server, **when))
    code, output, errors = run("-n", 2, path, **environment(1))
    assert (code, output) == (0, "[0] 2\n[1] 2\n"), errors
    words = rf"mpchain-launch: rank 0 waits in {place} for rank 1, at script.py:\d+ in {deed[:-2]}"
    assert len(re.findall(words, errors)) == 1


@pytest.mark.long
def test_rank_that_only_wakes_up_before_it_starts_is_ended_at_last(run, script):
    """The rank could be receiving from a network, or wait for an event that never comes."""
    deed = "[time.sleep(0.1) for _ in range(10000)]"  # the rank wakes up again and again
    path = script(START.format(deed=deed, port=0, before="do_it()", after=""))
    code, output, errors = run("-n", 2, "--grace", 0.5, path, **environment(1))
    assert (code, output) == (1, "")
    assert errors.count("mpchain-launch: rank 0 waits in MPI_Init for rank 1, at ") == 1
    assert re.fullmatch(
        r"mpchain-launch: rank 1 did not get to MPI_Init within \d+ s after the other ranks; "
        rf"rank 0 waited in MPI_Init; {remedy(1)}",
        errors.splitlines()[-1],
    )


@pytest.mark.parametrize("before", ["", "work(1); "], ids=["first", "later"])
@pytest.mark.long
def test_rank_that_ends_before_it_starts(run, script, before):
    """The other rank calls MPI_Init after or before rank 1 ends; mpirun also notices an end after
    MPI_Init."""
    deed = f"{before}raise SystemExit(0)"
    path = script(START.format(deed=deed, port=0, before="do_it()", after=""))
    code, output, errors = run("-n", 2, "--grace", 0.5, path)
    assert (code, output) == (1, "")
    lines = errors.splitlines()
    assert f"mpchain-launch:   rank 1 on {HERE}: ended with exit code 0" in lines
    words = "mpchain-launch: rank 1 ended with exit code 0 before MPI_Init, where rank 0 waited"
    assert lines[-1] == words


def test_phases_are_those_of_the_programs():
    names = {start_program.IN_MPI_INIT: "MPI_Init", start_program.IN_CREATE: "create_communicator"}
    assert standstill.GATES == names
    assert rank.PHASES == bytes(start_program.PHASES)
    assert rank.OVER == start_program.OVER
    pytest.importorskip("numpy")
    from mpchain.distributed.watch import notes

    assert notes.STARTER == start_program.STARTER


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
    words = "mpchain-launch: the other ranks have finished and wait for rank 1, at script.py:6 in"
    assert errors.count(words) == 1


@pytest.mark.long
def test_stopped_supervisor(run, script):
    path = script("""
        import os, signal, time
        from mpi4py import MPI

        if MPI.COMM_WORLD.rank == 1:
            os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(60)  # hangs until it is killed
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
    with open(tmp_path / "pipe", "w"):  # the pipe stays open, because the ranks connect one by one
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
            time.sleep(2.5)  # the fault itself is a sleep that is longer than the timeout
    open(tmp_path / "pipe", "w").close()
    code, output, errors = launched.finish()
    assert (code, output) == (0, "end\nend\n"), errors
