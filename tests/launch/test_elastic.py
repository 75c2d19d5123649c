"""Tests jobs that continue after ranks are lost; most of these programs use only mpi4py."""

import importlib.util
import os
import re
import signal
import socket

import pytest

from launch import mpirun


def why_not():
    if not hasattr(os, "pidfd_open"):
        return "needs Linux"
    if importlib.util.find_spec("mpi4py") is None or mpirun.find() is None:
        return "needs mpchain[mpi]"
    try:
        mpirun.find().elastic()
    except mpirun.NotElasticError as error:
        return f"needs Open MPI with ULFM: {error}"
    return ""


REFUSAL = why_not()
pytestmark = pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL)
HERE = socket.gethostname()

# Ranks add numbers until one of them is lost, and then once more without the lost rank.
HEAD = """
    import json, os, signal, time
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, size = world.rank, world.size
    world.Set_errhandler(MPI.ERRORS_RETURN)
    world.Barrier()

    def work(comm):
        while True:
            comm.allreduce(1)
            time.sleep(0.01)  # no event exists to wait for, so poll

    def without_lost(comm):
        try:
            work(comm)
        except MPI.Exception as error:
            assert error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_REVOKED)
        comm.Revoke()
        return comm.Shrink()

    def note(**words):
        line = json.dumps(words).encode() + b"\\n"
        os.write(int(os.environ["MPCHAIN_LAUNCH_NOTES"]), line)
"""
SUM = """
    comm = without_lost(world)
    print("sum", comm.allreduce(rank))
    if comm.rank == 0:
        note(event="recovered", ranks=lost, iterations=2, seconds=0.25)
    comm.Barrier()
"""


def report_of(errors):
    """Returns the lines about losses at the end, without times."""
    lines = [line.removeprefix("mpchain-launch: ") for line in errors.splitlines()]
    heads = [i for i, line in enumerate(lines) if line.startswith("lost ")]
    return [re.sub(r"^  \d\d:\d\d:\d\d ", "", line) for line in lines[heads[0] :]] if heads else []


@pytest.mark.parametrize("deed", ["program", "supervisor"])
def test_job_continues_without_a_rank(run, script, deed):
    """Rank 0 is lost: its program or the supervisor of the program is killed."""
    victim = {"program": "os.getpid()", "supervisor": "os.getppid()"}[deed]
    text = f"""
    lost = [0]
    if rank == 0:
        os.kill({victim}, signal.SIGKILL)
        time.sleep(60)  # hangs until it is killed
    """
    code, output, errors = run("-n", 3, "--elastic", script(HEAD + text + SUM))
    assert code == 0, errors
    assert sorted(output.splitlines()) == ["[1] sum 3", "[2] sum 3"]
    fates = {
        "program": r"was killed by SIGKILL \(signal 9\)(, perhaps because memory ran out)?",
        "supervisor": "was lost: its supervisor was killed",
    }
    news = rf"^mpchain-launch: rank 0 of 3 on {HERE} {fates[deed]}; 2 of 3 ranks continue$"
    assert len(re.findall(news, errors, re.MULTILINE)) == 1
    head, line = report_of(errors)
    assert head == "lost 1 of 3 ranks:"
    assert re.fullmatch(
        rf"rank 0 of 3 on {HERE} {fates[deed]}; 2 iterations repeated, 0\.2 s", line
    )


def test_rank_that_another_one_kills(run, script):
    text = """
    lost = [1]
    pids = world.allgather(os.getpid())
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 0:
        note(event="killed", rank=1, cause="it was stopped for 20 s")
        os.kill(pids[1], signal.SIGKILL)
    """
    code, output, errors = run("-n", 3, "--elastic", script(HEAD + text + SUM))
    assert code == 0, errors
    assert sorted(output.splitlines()) == ["[0] sum 2", "[2] sum 2"]
    assert "; another rank ended this rank: it was stopped for 20 s; " in report_of(errors)[1]


def test_exception_ends_the_job(run, script):
    text = """
    if rank == 1:
        raise ValueError("boom")
    work(world)
    """
    code, _, errors = run("-n", 2, "--elastic", script(HEAD + text))
    assert code == 1
    assert "[1] ValueError: boom" in errors.splitlines()
    assert errors.splitlines()[-1].endswith("(ValueError: boom); the other ranks were ended")
    assert not report_of(errors)


@pytest.mark.long
def test_too_few_ranks_restart_the_job(run, script):
    text = """
    is_first = world.bcast(not os.path.exists("again"))
    world.Barrier()
    if is_first and rank == 1:
        open("again", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if is_first:
        work(world)
    print("sum", world.allreduce(1))
    """
    options = ["--elastic", "--min-ranks", 2, "--restarts", 1, "--grace", 0.5]
    code, output, errors = run("-n", 2, *options, script(HEAD + text))
    assert code == 0, errors
    assert sorted(output.splitlines()) == ["[0] sum 2", "[1] sum 2"]
    assert "; 1 rank is left, and --min-ranks is 2\n" in errors
    assert errors.count("mpchain-launch: lost 1 of 2 ranks:") == 1
    assert "restart 1 of 1" in errors


def test_spare_rank_takes_the_place_of_a_lost_one(run, script):
    text = """
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm = without_lost(world)
    if rank == 3:
        note(event="replaced", rank=1)
    comm.Barrier()
    print("spare:", os.environ["MPCHAIN_SPARES"])
    """
    code, output, errors = run("-n", 3, "--elastic", "--spares", 1, script(HEAD + text))
    assert code == 0, errors
    assert output.count("] spare: 1\n") == 3
    assert report_of(errors)[1].endswith("; rank 3 took its place")


@pytest.mark.long
@pytest.mark.slow
def test_spare_rank_ends_when_the_others_exit(run, script):
    text = """
    import sys
    from mpchain.distributed import run_elastic

    def main(comm):
        print(comm.rank, comm.size)
        comm.barrier()
        sys.exit()

    run_elastic(main)
    """
    code, output, errors = run("-n", 2, "--elastic", "--spares", 1, script(text))
    assert code == 0, errors
    assert sorted(output.splitlines()) == ["[0] 0 2", "[1] 1 2"]


@pytest.mark.long
def test_interrupt_after_a_loss(start, script, has_ended):
    text = """
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm = without_lost(world)
    print(os.getpid(), flush=True)
    work(comm)
    """
    launched = start("-n", 3, "--elastic", "--grace", 0.5, script(HEAD + text))
    processes = [int(line.split()[1]) for line in launched.read_lines(2)]
    launched.process.send_signal(signal.SIGINT)
    code, _, errors = launched.finish()
    assert code == 130
    assert errors.splitlines()[-1] == "mpchain-launch: the job was ended by SIGINT"
    assert len(report_of(errors)) == 3
    assert all(map(has_ended, processes))
