"""Tests the scripts of --scheduler slurm, on a real Slurm with two hosts (slurm.py)."""

import importlib.util
import json
import pathlib
import re
import sys
import time

import pytest

from launch import cli, mpirun
from launch.known_failures import explain
from tests.launch.slurm import Slurm, why_not

REFUSAL = why_not()
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL),
    pytest.mark.skipif(
        mpirun.find() is None or importlib.util.find_spec("mpi4py") is None,
        reason="needs mpchain[mpi]",
    ),
]

ROOT = pathlib.Path(__file__).resolve().parents[2]
MNIST = str(ROOT / "examples" / "mnist" / "train_mnist.py")
EPOCHS = 12


@pytest.fixture(scope="module")
def slurm():
    with Slurm("a", "b") as slurm:
        yield slurm


@pytest.fixture
def submit(slurm, tmp_path, capsys, monkeypatch):
    """Returns a function that submits the launcher's script for two hosts, and returns the job's
    number."""

    monkeypatch.chdir(tmp_path)

    def submit(*arguments):
        options = ["--scheduler", "slurm", "-n", "2", "--nodes", "2", "--time", "0:10:00"]
        options += ["--setup", f"export PYTHONPATH={ROOT} OMP_NUM_THREADS=1", "--name", "mnist"]
        assert cli.main([*options, *arguments]) == 0
        (tmp_path / "job.sh").write_text(capsys.readouterr().out)
        return slurm.ask("sbatch", "--parsable", "job.sh").strip()

    return submit


def mnist(starter, out):
    return ["--mpi", starter, "--checkpoint-dir", out, MNIST, "--epoch", str(EPOCHS), "--out", out]


def wait_for_epochs(path, n):
    end = time.monotonic() + 120
    while len(read_log(path)) < n:
        assert time.monotonic() < end, f"no {n} epochs: {path}"
        time.sleep(0.05)  # no event exists to wait for, so poll


def read_log(folder):
    """Returns the losses and accuracies of each epoch."""
    try:
        entries = json.loads((folder / "log").read_text())
    except (OSError, ValueError):  # the log does not exist yet
        return []
    names = ("epoch", "iteration", "main/loss", "main/accuracy", "validation/main/loss")
    return [{name: each[name] for name in names} for each in entries]


@pytest.mark.parametrize("starter", ["srun", "openmpi"])
def test_a_cancelled_training_resumes(slurm, submit, tmp_path, starter):
    """There are three jobs: an undisturbed one, one that is cancelled, and one that resumes from
    its snapshot."""
    job = submit(*mnist(starter, "undisturbed"))
    assert slurm.wait(job, "COMPLETED", "FAILED") == "COMPLETED", output(tmp_path)
    assert "2 rank(s)" in output(tmp_path)
    expected = read_log(tmp_path / "undisturbed")
    assert len(expected) == EPOCHS

    job = submit(*mnist(starter, "out"))
    wait_for_epochs(tmp_path / "out", 2)
    slurm.ask("scancel", job)
    slurm.wait(job, "CANCELLED")
    before = read_log(tmp_path / "out")
    assert 2 <= len(before) < EPOCHS
    # The job saved the iteration in which it was cancelled, which is seldom the last one of an
    # epoch.
    assert "SIGTERM: finishing this iteration" in output(tmp_path)
    assert newest_snapshot(tmp_path / "out") >= before[-1]["iteration"]

    job = submit("--resume", *mnist(starter, "out"))
    assert slurm.wait(job, "COMPLETED", "FAILED") == "COMPLETED", output(tmp_path)
    assert read_log(tmp_path / "out") == expected


def test_a_requeued_job_resumes(slurm, submit, tmp_path):
    """Slurm starts the same job again, and the launcher finds the snapshot by itself."""
    job = submit(*mnist("srun", "out"))
    wait_for_epochs(tmp_path / "out", 2)
    slurm.ask("scontrol", "requeue", job)
    slurm.wait(job, "PENDING")
    log = tmp_path / "out" / "log"
    before = json.loads(log.read_text())
    assert 2 <= len(before) < EPOCHS
    # Otherwise, the job would start in two minutes.
    slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    assert slurm.wait(job, "COMPLETED", "FAILED") == "COMPLETED", output(tmp_path)
    after = json.loads(log.read_text())
    assert [each["epoch"] for each in after] == list(range(1, EPOCHS + 1))
    # The second start continues, so the log contains each epoch once.
    assert after[: len(before)] == before


def test_doctor_tries_srun(slurm):
    command = ["salloc", "-N2", "-n2", sys.executable, "-m", "launch", "doctor", "--json"]
    printed = slurm.ask("env", f"PYTHONPATH={ROOT}", *command)
    findings = {each["item"]: each for each in json.loads(printed)}
    assert findings["batch system"]["found"] == "Slurm; hosts a:1, b:1"
    assert findings["connection"]["found"] == "yes"
    carried, speed = findings["transports"]["found"].split(": ")
    assert carried == "on-host self, off-host tcp"
    assert speed.endswith(" GiB/s between rank 0 on a and rank 1 on b")
    assert (findings["srun"]["verdict"], findings["srun"]["hint"]) == ("ok", "")
    assert re.search(r"pmix \(PMIx \d, the library's \d\)$", findings["srun"]["found"])


def test_singletons(slurm):
    """Two processes of one job do not know each other: mpchain refuses, and names the remedy."""
    code = "import mpchain; mpchain.create_communicator()"
    with pytest.raises(RuntimeError, match="start the program with mpchain-launch or mpirun in"):
        words = ["srun", "--mpi=none", "-N2", sys.executable, "-c", code]
        slurm.ask("env", f"PYTHONPATH={ROOT}", *words)


def test_doctor_finds_singletons(slurm):
    """Slurm offers PMI-2, which Open MPI 5 does not support, so the two tasks of srun are alone."""
    words = ["srun", "--overlap", "--overcommit", "--ntasks=2", "--mpi=pmi2"]
    code = f"from launch import batch_doctor; print(batch_doctor.try_ranks({words}))"
    said = slurm.ask(
        *("salloc", "-N1", "-n1", "env", f"PYTHONPATH={ROOT}", sys.executable, "-c", code)
    )
    assert "each process of srun is alone" in said and "srun --mpi=pmix" in said


def test_munge_is_explained():
    """The launcher explains what srun prints if the keys of munge differ, and if munged does not
    run on the host of srun."""
    with Slurm("a", "b") as slurm:
        slurm.change_munge_key("b")
        with pytest.raises(RuntimeError) as failure:
            slurm.ask("srun", "-w", "b", "true")
        srun_says = str(failure.value).partition("\n== ")[0]  # the logs contain more text
        assert explain(srun_says.encode()).startswith("a daemon of Slurm dropped a message")
        slurm.stop_munge("a")
        with pytest.raises(RuntimeError) as failure:
            slurm.ask("srun", "-w", "a", "true")
        srun_says = str(failure.value).partition("\n== ")[0]
        assert explain(srun_says.encode()).startswith("munge does not run on a host")


def newest_snapshot(folder):
    return max(int(path.name.rpartition("_")[2]) for path in folder.glob("snapshot_iter_*"))


def output(folder):
    paths = sorted(folder.glob("mnist-*.out"), key=lambda path: int(path.stem.partition("-")[2]))
    return "".join(f"== {path.name}\n{path.read_text()}" for path in paths)
