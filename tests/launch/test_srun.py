"""Tests ranks that Slurm's srun starts; a script imitates srun."""

import os

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")

SRUN = """#!/bin/sh
# Slurm's srun, as far as starting tasks on one host goes.
for word; do
    case "$word" in
    --ntasks=*) n=${word#--ntasks=}; shift;;
    --*) shift;;
    *) break;;
    esac
done
export SLURM_STEP_NUM_TASKS=$n SLURM_STEP_TASKS_PER_NODE=$n
for i in $(seq 0 $((n - 1))); do
    SLURM_PROCID=$i SLURM_LOCALID=$i "$@" &
done
wait
"""


def test_srun(run, script, tmp_path):
    srun = script(SRUN, "srun")
    srun.chmod(0o755)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Rank 1 ends after rank 0 has printed.
    path = script(f"""
        import os, sys, time

        rank = int(os.environ["SLURM_PROCID"])
        print(rank, "of", os.environ["SLURM_STEP_NUM_TASKS"], flush=True)
        if rank == 1:
            open({str(pipe)!r}).read()
            sys.exit(5)
        open({str(pipe)!r}, "w").close()
        time.sleep(60)  # hangs until it is killed
    """)
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_JOB_NODELIST")
    assert not any(name in os.environ for name in names)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    code, output, errors = run("-n", 2, "--mpi", "srun", path, env=environment)
    assert (code, sorted(output.splitlines())) == (5, ["[0] 0 of 2", "[1] 1 of 2"])
    assert "rank 1 of 2 on " in errors.splitlines()[-1]


def test_a_cancelled_job_has_its_time_of_grace(start, script, tmp_path, monkeypatch):
    """Slurm signals the launcher and srun's processes: the program must get one signal, not two."""
    srun = script(SRUN, "srun")
    srun.chmod(0o755)
    path = script("""
        import os, signal, time

        def note(number, frame):
            received.append(number)
            if len(received) == 1:
                os.kill(os.getppid(), signal.SIGTERM)  # as Slurm does, to the guard

        received = []
        signal.signal(signal.SIGTERM, note)
        print("ready", flush=True)
        end = time.monotonic() + 2.0
        while time.monotonic() < end or not received:
            time.sleep(0.05)  # no event exists to wait for, so poll
            end = time.monotonic() + 2.0 if not received else end
        print(len(received), "signals", flush=True)
    """)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    launched = start("-n", 1, "--mpi", "srun", "--prefix", path)
    assert launched.read_lines(1) == ["[0] ready"]
    launched.process.terminate()
    code, output, errors = launched.finish()
    assert (code, output) == (143, "[0] 1 signals\n"), errors
