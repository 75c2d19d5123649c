import os

import pytest

from launch import inquiry, mpirun, restarts
from launch.checkpoints import Checkpoints
from launch.plan import Plan

HOSTS = {"a": 2, "b": 2}


@pytest.fixture
def jobs(monkeypatch, clock):
    """Returns a class that replaces Job: each run returns the next exit code of the list ``codes``.

    A function in this list is called for the code. The list ``plans`` has the plan of each job.
    """

    class Job:
        codes, plans, waits, is_final = [], [], clock.naps, False

        def __init__(self, plan, start):
            self.plans.append(plan)

        def run(self):
            code = self.codes.pop(0)
            return code() if callable(code) else code

    monkeypatch.setattr(restarts, "Job", Job)
    return Job


def plan(**changes):
    return Plan(**{"n": 4, "program": ["train.py"], "starter": mpirun.Mpich("mpirun"), **changes})


def test_success_needs_no_restart(jobs):
    jobs.codes += [0]
    assert restarts.run(plan(), restarts=3) == 0
    assert len(jobs.plans) == 1


def test_failures_end_after_the_last_restart(jobs, capsys):
    jobs.codes += [1, 2, 3]
    assert restarts.run(plan(), restarts=2) == 3
    assert capsys.readouterr().err.splitlines() == [
        "mpchain-launch: restart 1 of 2 in 1 s, from the beginning",
        "mpchain-launch: restart 2 of 2 in 2 s, from the beginning",
    ]


def test_waits_grow_to_a_minute(jobs):
    jobs.codes += [1] * 9
    assert restarts.run(plan(), restarts=8, wait=0.5) == 1
    assert jobs.waits == [0.5, 1, 2, 4, 8, 16, 32, 60]


def test_what_the_user_ended_is_not_restarted(jobs):
    jobs.codes += [143]
    jobs.is_final = True
    assert restarts.run(plan(), restarts=3) == 143


def test_restart_from_the_newest_checkpoint(jobs, tmp_path, capsys):
    def fail_after(name):
        def fail():
            (tmp_path / name).touch()
            return 1

        return fail

    jobs.codes += [1, fail_after("snapshot_1"), fail_after("snapshot_2"), 0]
    start = plan(program=["train.py", "--resume={checkpoint}"], variables={"A": "1"})
    checkpoints = Checkpoints(str(tmp_path))
    assert restarts.run(start, restarts=5, checkpoints=checkpoints) == 0
    paths = ["", "", f"{tmp_path}/snapshot_1", f"{tmp_path}/snapshot_2"]
    assert [plan.program[-1] for plan in jobs.plans] == [f"--resume={path}" for path in paths]
    assert [plan.variables.get("MPCHAIN_RESUME", "") for plan in jobs.plans] == paths
    assert {plan.variables["A"] for plan in jobs.plans} == {"1"}
    # A new checkpoint is progress, after which the waits begin again with one second.
    assert jobs.waits == [1, 1, 1]
    assert f"restart 3 of 5 in 1 s, from {paths[3]}" in capsys.readouterr().err


def test_checkpoint_at_the_first_start(jobs, tmp_path):
    (tmp_path / "snapshot_7").touch()
    jobs.codes += [0]
    restarts.run(plan(), checkpoints=Checkpoints(str(tmp_path), all_count=True))
    assert jobs.plans[0].variables["MPCHAIN_RESUME"] == f"{tmp_path}/snapshot_7"


def test_timeout_is_that_of_all_starts(jobs, clock):
    def fail_after(seconds):
        return lambda: clock.sleep(seconds) or 1

    jobs.codes += [fail_after(3), fail_after(100), 1]  # the first restart waits for one second
    restarts.run(plan(timeout=10), restarts=2)
    assert [plan.timeout for plan in jobs.plans] == [10, 6, 0.001]


@pytest.fixture
def away(monkeypatch, local_hosts):
    """Returns a list of the hosts that are unreachable at each query; this host is a."""
    away = []

    def complaints(asked, remote_shell, file, seconds):
        hosts = away.pop(0) if away else ""
        return {host: f"host {host} is away" for host in asked if host in hosts}

    monkeypatch.setattr(inquiry, "complaints", complaints)
    local_hosts("a")
    return away


def test_all_hosts_answer(away):
    same = restarts.with_hosts_that_answer(plan(hosts=HOSTS), 4)
    assert (same.n, same.hosts) == (4, HOSTS)


def test_fewer_ranks_on_the_hosts_that_are_left(away, capsys):
    away.append("c")
    left = restarts.with_hosts_that_answer(plan(hosts={**HOSTS, "c": 2}, n=6), 4)
    assert (left.n, left.hosts) == (4, HOSTS)
    assert capsys.readouterr().err.splitlines() == [
        "mpchain-launch: host c is away",
        "mpchain-launch: continuing with 4 of 6 ranks on a, b",
    ]


def test_this_host_alone_is_left(away, set_cores):
    away.append("b")
    set_cores(1)
    left = restarts.with_hosts_that_answer(plan(hosts=HOSTS), 2)
    assert (left.n, left.hosts, left.oversubscribed) == (2, {}, True)


def test_oversubscription_keeps_all_ranks(away):
    away.append("b")
    left = restarts.with_hosts_that_answer(plan(hosts=HOSTS, oversubscribed=True), 4)
    assert left.n == 4


def test_too_few_are_left(away, capsys):
    away.append("b")
    assert restarts.with_hosts_that_answer(plan(hosts=HOSTS), 3) is None
    words = "slots left: 2, ranks required: 3; --min-ranks allows fewer ranks"
    assert words in capsys.readouterr().err


def test_restart_waits_for_hosts(jobs, away):
    """A restart that finds too few hosts counts, and the next restart may find more."""
    jobs.codes += [1, 0]
    away += ["ab", "b"]
    assert restarts.run(plan(hosts=HOSTS), restarts=2, min_ranks=2) == 0
    assert [plan.n for plan in jobs.plans] == [4, 2]
    assert jobs.waits == [1, 2]


@pytest.mark.skipif(
    mpirun.find() is None or not hasattr(os, "pidfd_open"), reason="needs Linux and mpirun"
)
def test_killed_rank_and_resume(run, script, tmp_path):
    """Rank 1 is killed after the checkpoint; the sum is the same as without the failure."""
    path = script("""
        import json, os, signal, sys, time

        rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
        assert sys.argv[1] == os.environ.get("MPCHAIN_RESUME", "")
        steps = json.load(open(sys.argv[1])) if sys.argv[1] else [0]
        is_first = len(steps) == 1
        while len(steps) < 6:
            steps.append(steps[-1] + len(steps))
            if rank == 0 and len(steps) == 3:
                with open("out/new", "w") as file:
                    json.dump(steps, file)
                os.replace("out/new", "out/snapshot_2")
            if is_first and len(steps) == 4 and rank == 1:
                while not os.path.exists("out/snapshot_2"):
                    pass
                os.kill(os.getpid(), signal.SIGKILL)
            if is_first and len(steps) == 5:
                time.sleep(60)  # hangs until it is killed
        print(steps[-1])
    """)
    (tmp_path / "out").mkdir()
    options = ["-n", 2, "--restarts", 1, "--backoff", 0.01, "--checkpoint-dir", "out"]
    code, output, errors = run(*options, "--log-dir", "logs", path, "{checkpoint}")
    assert (code, sorted(output.splitlines())) == (0, ["[0] 15", "[1] 15"])
    assert "was killed by SIGKILL (signal 9)" in errors
    assert f"restart 1 of 1 in 0.01 s, from {tmp_path}/out/snapshot_2" in errors
    # The log file contains both starts.
    text = (tmp_path / "logs" / "rank_1.log").read_text()
    assert text.count("mpchain-launch: start") == 2
