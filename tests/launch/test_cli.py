import os
import shlex
import subprocess
import sys

import pytest

from launch import binding, cli, mpirun, plan

STARTERS = {"openmpi": mpirun.OpenMpi("/x/mpirun"), "mpich": mpirun.Mpich("/x/mpirun")}


@pytest.fixture
def place(monkeypatch, tmp_path):
    """A place as after login: two cores, no batch system, no mpirun, a script."""
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMI", "SLURM_", "PBS_", "LSB_", "CUDA_", "PYTHONUNB")):
            monkeypatch.delenv(name)
    for name in binding.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(binding, "cores", lambda: 2)
    monkeypatch.setattr(binding, "gpus", lambda variables: [])
    monkeypatch.setattr(mpirun, "find", lambda: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return monkeypatch


def dry_run(capsys, *arguments):
    assert cli.main(["--dry-run", *arguments]) == 0
    captured = capsys.readouterr()
    assert not captured.err
    return captured.out.splitlines()


def complaint(capsys, *arguments):
    """The line that wrong use prints; checks that there is one and the exit status."""
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    assert end.value.code == 2
    assert not captured.out
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("flavour", STARTERS)
def test_dry_run(place, capsys, flavour):
    place.setattr(mpirun, "find", lambda: STARTERS[flavour])
    place.setattr(os, "geteuid", lambda: 0)
    place.setattr(binding, "gpus", lambda variables: ["0", "1", "2"])
    *variables, rank0, rank1, rank2, command = dry_run(
        capsys, "-n", "3", "train.py", "--lr", "a b", "-n", "5"
    )
    as_root = ["OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"]
    assert variables == as_root * (flavour == "openmpi") + ["PYTHONUNBUFFERED=1"]
    threads = "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1"
    assert rank0 == f"[0] {threads} CUDA_VISIBLE_DEVICES=0"
    assert rank1 == f"[1] {threads} CUDA_VISIBLE_DEVICES=1"
    assert rank2 == f"[2] {threads} CUDA_VISIBLE_DEVICES=2"
    options = {
        "openmpi": ["--oversubscribe", "--bind-to", "none", "-n", "3"],
        "mpich": ["-n", "3"],
    }
    words = shlex.split(command)
    assert words[: 1 + len(options[flavour])] == ["/x/mpirun", *options[flavour]]
    assert words[-5:] == ["train.py", "--lr", "a b", "-n", "5"]


def test_open_mpi_with_a_core_for_each_rank(place, capsys):
    place.setattr(mpirun, "find", lambda: STARTERS["openmpi"])
    assert "--oversubscribe" not in dry_run(capsys, "-n", "2", "train.py")[-1]


@pytest.mark.parametrize("has_mpi4py", [True, False])
@pytest.mark.parametrize("module", [[], ["-m"]])
def test_runner_that_aborts(place, capsys, has_mpi4py, module):
    place.setattr(mpirun, "find", lambda: STARTERS["mpich"])
    place.setattr(
        cli.importlib.util, "find_spec", lambda name: name != "mpi4py" or has_mpi4py or None
    )
    command = shlex.split(dry_run(capsys, "-n", "2", *module, "train.py", "-m")[-1])
    expected = [sys.executable, *["-m", "mpi4py"] * has_mpi4py, *module, "train.py", "-m"]
    assert command[-len(expected) :] == expected
    assert command[-len(expected) - 1].endswith("start_rank.py")


def test_one_rank_needs_no_mpirun(place, capsys):
    command = shlex.split(dry_run(capsys, "-n", "1", "train.py")[-1])
    assert command[:3] == [sys.executable, "-I", "-S"]


def test_buffering_of_the_user_holds(place, capsys):
    place.setenv("PYTHONUNBUFFERED", "")
    assert "PYTHONUNBUFFERED=1" not in dry_run(capsys, "-n", "1", "train.py")


def test_arguments_after_two_dashes(place, capsys):
    command = shlex.split(dry_run(capsys, "-n", "1", "--", "train.py", "--", "-x")[-1])
    assert command[-3:] == ["train.py", "--", "-x"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train.py"], "the following arguments are required: -n/--ranks"),
        (["-n", "0", "train.py"], "argument -n/--ranks: must be a whole number of at least 1"),
        (["-n", "-1", "train.py"], "must be a whole number of at least 1, not '-1'"),
        (["-n", "two", "train.py"], "must be a whole number of at least 1, not 'two'"),
        (["-n", "2"], "which script? e.g. mpchain-launch -n 2 train"),
        (["-n", "2", "-m"], "which module? e.g. mpchain-launch -n 2 -m train"),
        (["-n", "2", "missing.py"], "there is no script 'missing.py' in "),
        (["-n", "2", "-m", "mpchain_missing.part"], "there is no module 'mpchain_missing.part'"),
        (["-n", "2", "-m", ".part"], "there is no module '.part'"),
        (
            ["-n", "2", "train.py"],
            "2 ranks need mpirun; install it with: pip install 'mpchain[mpi]'",
        ),
        (["-n", "1", "--speed", "train.py"], "unrecognized arguments: --speed"),
        (
            ["-n", "1", "--timeout", "0", "train.py"],
            "must be a positive number of seconds, not '0'",
        ),
        (["-n", "1", "--grace", "nan", "train.py"], "must be a positive number of seconds"),
    ],
)
def test_wrong_use(place, capsys, arguments, words):
    assert words in complaint(capsys, *arguments)


def test_unknown_mpirun(place, capsys):
    def find():
        raise mpirun.UnknownMpirunError("/x/mpirun is neither ...")

    place.setattr(mpirun, "find", find)
    line = complaint(capsys, "-n", "2", "train.py")
    assert "/x/mpirun is neither ...; install one of them with: pip install 'mpchain[mpi]'" in line


def test_inside_a_job(place, capsys):
    place.setenv("OMPI_COMM_WORLD_RANK", "1")
    place.setenv("OMPI_COMM_WORLD_SIZE", "4")
    line = complaint(capsys, "-n", "2", "train.py")
    assert "this is already rank 1 of 4, started by Open MPI" in line


def test_several_hosts(place, capsys):
    place.setenv("SLURM_JOB_NODELIST", "node[1-4]")
    line = complaint(capsys, "-n", "2", "train.py")
    assert "4 hosts are allocated (node1, ...), and only one can be used" in line


def test_what_is_special_is_said(place, capsys):
    place.setattr(mpirun, "find", lambda: STARTERS["openmpi"])
    place.setattr(os, "geteuid", lambda: 0)
    place.setattr(binding, "gpus", lambda variables: ["0"])
    place.setattr(cli.Job, "run", lambda job: 7)
    assert cli.main(["-n", "3", "train.py"]) == 7
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "mpchain-launch: running as root: OMPI_ALLOW_RUN_AS_ROOT and "
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM set for Open MPI",
        "mpchain-launch: 3 ranks share 2 cores, which makes each of them slower",
        "mpchain-launch: 3 ranks share 1 GPU; NCCL needs one for each rank",
    ]


def test_help(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    assert "--dry-run" in capsys.readouterr().out


def test_by_hand():
    """start_rank.py says who starts it."""
    answer = subprocess.run(
        [sys.executable, plan.START_RANK],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (
        1,
        "this file is started by mpchain-launch, not by hand\n",
    )
