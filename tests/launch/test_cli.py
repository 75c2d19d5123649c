import os
import shlex
import subprocess
import sys

import pytest

import mpchain
from launch import binding, cli, mpirun, plan, restarts

STARTERS = {"openmpi": mpirun.OpenMpi("/x/mpirun"), "mpich": mpirun.Mpich("/x/mpirun")}


@pytest.fixture
def place(monkeypatch, tmp_path, local_hosts, install_mpirun, set_cores):
    """Imitates a host after login: two cores, no batch system, no mpirun, and a script."""
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMI", "SLURM_", "PBS_", "LSB_", "CUDA_", "PYTHON", "OMP_")):
            monkeypatch.delenv(name)
    for name in binding.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    set_cores(2)
    monkeypatch.setattr(binding, "gpus", lambda variables: [])
    install_mpirun(None)
    local_hosts("localhost")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return monkeypatch


def dry_run(capsys, *arguments):
    assert cli.main(["--dry-run", *arguments]) == 0
    captured = capsys.readouterr()
    assert not captured.err
    return captured.out.splitlines()


def complaint(capsys, *arguments):
    """Returns the error for wrong arguments; checks that it is one line, and the exit status."""
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    assert end.value.code == 2
    assert not captured.out
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("flavour", STARTERS)
def test_dry_run(place, capsys, flavour):
    place.setattr(mpirun, "find", lambda kind, in_slurm: STARTERS[flavour])
    place.setattr(os, "geteuid", lambda: 0)
    place.setattr(mpirun, "_free_shared_memory", lambda: 0)
    place.setattr(binding, "gpus", lambda variables: ["0", "1", "2"])
    *variables, rank0, rank1, rank2, command = dry_run(
        capsys, "-n", "3", "train.py", "--lr", "a b", "-n", "5"
    )
    as_root = ["OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"]
    assert variables == as_root * (flavour == "openmpi") + ["PYTHONUNBUFFERED=1"]
    threads = "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1"
    assert rank0 == f"[0] {threads}"
    assert rank1 == f"[1] {threads}"
    assert rank2 == f"[2] {threads}"
    options = {
        "openmpi": ["--oversubscribe", "--bind-to", "none", "-n", "3"],
        "mpich": ["-n", "3"],
    }
    words = shlex.split(command)
    assert words[: 1 + len(options[flavour])] == ["/x/mpirun", *options[flavour]]
    assert words[-5:] == ["train.py", "--lr", "a b", "-n", "5"]


def test_open_mpi_with_a_core_for_each_rank(place, capsys):
    place.setattr(mpirun, "find", lambda kind, in_slurm: STARTERS["openmpi"])
    assert "--oversubscribe" not in dry_run(capsys, "-n", "2", "train.py")[-1]


@pytest.mark.parametrize("has_mpi4py", [True, False])
@pytest.mark.parametrize("module", [[], ["-m"]])
def test_runner_that_aborts(place, capsys, has_mpi4py, module):
    place.setattr(mpirun, "find", lambda kind, in_slurm: STARTERS["mpich"])
    place.setattr(cli.mpi_library, "mpi4py", lambda: has_mpi4py or None)
    place.setattr(cli.importlib.util, "find_spec", lambda name: True)
    command = shlex.split(dry_run(capsys, "-n", "2", *module, "train.py", "-m")[-1])
    expected = [*["-m", "mpi4py"] * has_mpi4py, *module, "train.py", "-m"]
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
        (["-n", "2"], "no script given, e.g. mpchain-launch -n 2 train.py"),
        (["-n", "2", "-m"], "no module given, e.g. mpchain-launch -n 2 -m train"),
        (["-n", "2", "missing.py"], "no script 'missing.py' in "),
        (["-n", "2", "python", "a.py"], "pass the script without python: "),
        (["-n", "2", "/usr/bin/python3.11", "a.py"], "pass the script without /usr/bin/python3.11"),
        (["-n", "2", "-m", "mpchain_missing.part"], "no module named 'mpchain_missing.part'"),
        (["-n", "2", "-m", ".part"], "no module named '.part'"),
        (
            ["-n", "2", "train.py"],
            "several ranks need mpirun; install it with: pip install 'mpchain[mpi]'",
        ),
        (["-n", "1", "--speed", "train.py"], "unrecognized arguments: --speed"),
        (
            ["-n", "1", "--timeout", "0", "train.py"],
            "must be a positive number of seconds, not '0'",
        ),
        (["-n", "1", "--grace", "nan", "train.py"], "must be a positive number of seconds"),
        (["-n", "1", "--env", "9A=1", "train.py"], "--env must be NAME=VALUE or NAME, not '9A=1'"),
        (["-n", "1", "--env", "MISSING", "train.py"], "--env MISSING: this variable is not set"),
        (["-n", "1", "--restarts", "-1", "train.py"], "must be a whole number of at least 0"),
        (["-n", "1", "--resume", "train.py"], "--resume needs --checkpoint-dir"),
        (["-n", "1", "--checkpoint-pattern", "x", "train.py"], "needs --checkpoint-dir"),
        (["-n", "1", "train.py", "{checkpoint}"], "{checkpoint} among the arguments needs"),
        (["-n", "2", "--min-ranks", "3", "train.py"], "--min-ranks 3 is more than the 2 of -n"),
        (["-n", "1", "--log-dir", "train.py", "train.py"], "--log-dir train.py: File exists"),
        (["-n", "2", "--hosts", "a:x", "train.py"], "hosts are written as a:2,b:2, or as"),
        (["-n", "2", "--hostfile", "gone", "train.py"], "cannot read the list of hosts 'gone': No"),
        (["-n", "2", "--hosts", "a", "--hostfile", "b", "train.py"], "not allowed with argument"),
        (
            ["-n", "4", "--hosts", "a:1,b:2", "train.py"],
            "4 ranks need 4 slots, and the hosts have 3 (a:1,b:2): ask for more slots, use fewer "
            "ranks, or add --oversubscribe",
        ),
    ],
)
def test_wrong_use(place, capsys, arguments, words):
    assert words in complaint(capsys, *arguments)


def test_unknown_mpirun(place, capsys):
    def find(kind, in_slurm):
        raise mpirun.UnknownMpirunError(f"no {kind} {in_slurm}")

    place.setattr(mpirun, "find", find)
    assert "no auto False" in complaint(capsys, "-n", "2", "train.py")
    place.setenv("SLURM_JOB_NODELIST", "a")
    assert "no mpich True" in complaint(capsys, "-n", "1", "--mpi", "mpich", "train.py")


def test_inside_a_job(place, capsys):
    place.setenv("OMPI_COMM_WORLD_RANK", "1")
    place.setenv("OMPI_COMM_WORLD_SIZE", "4")
    line = complaint(capsys, "-n", "2", "train.py")
    assert "this is already rank 1 of 4, started by Open MPI" in line


@pytest.mark.parametrize(
    ("gpus", "cores", "ranks"), [(["0", "1", "2"], 2, 3), ([], 8, 4), ([], 5, 2), ([], 1, 1)]
)
def test_automatic_number_of_ranks(place, capsys, gpus, cores, ranks):
    place.setattr(mpirun, "find", lambda kind, in_slurm: STARTERS["mpich"])
    place.setattr(binding, "gpus", lambda variables: gpus)
    place.setattr(binding, "cores", lambda: cores)
    command = shlex.split(dry_run(capsys, "-n", "auto", "train.py")[-1])
    assert command[:3] == ["/x/mpirun", "-n", str(ranks)]


@pytest.mark.parametrize("flavour", STARTERS)
def test_hosts(place, capsys, flavour):
    place.setattr(mpirun, "find", lambda kind, in_slurm: STARTERS[flavour])
    place.setenv("NCCL_DEBUG", "INFO")
    *_, host_a, host_b, command = dry_run(
        capsys, "-n", "3", "--hosts", "a:2,b:2", "--env", "A=1", "train.py"
    )
    assert (host_a, host_b) == ("host a: 2 slots", "host b: 2 slots")
    words = shlex.split(command)
    where = {"openmpi": ["--host", "a:2,b:2"], "mpich": ["-hosts", "a:2,b:2"]}[flavour]
    assert words[words.index(where[0]) + 1] == where[1]
    forwarded = {words[i + 1] for i, word in enumerate(words) if word == "-x"}
    if flavour == "openmpi":
        assert {"A", "PYTHONUNBUFFERED", "NCCL_DEBUG", "PATH"} <= forwarded
    assert words[words.index("-n") + 1] == "3"


def test_host_file(place, capsys, tmp_path):
    place.setattr(mpirun, "find", lambda kind, in_slurm: STARTERS["mpich"])
    (tmp_path / "hosts").write_text("a slots=2\nb slots=1\n")
    command = shlex.split(dry_run(capsys, "-n", "auto", "--hostfile", "hosts", "train.py")[-1])
    assert command[:5] == ["/x/mpirun", "-hosts", "a:2,b:1", "-n", "3"]


def test_allocated_hosts(place, capsys):
    place.setattr(mpirun, "find", lambda kind, in_slurm: STARTERS["mpich"])
    place.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    place.setenv("SLURM_TASKS_PER_NODE", "4(x2)")
    command = shlex.split(dry_run(capsys, "-n", "auto", "train.py")[-1])
    assert command[:5] == ["/x/mpirun", "-hosts", "node1:4,node2:4", "-n", "8"]
    line = complaint(capsys, "-n", "9", "train.py")
    assert "9 ranks need 9 slots, and the hosts of Slurm have 8 (node1:4,node2:4)" in line
    assert "node1:4" in dry_run(capsys, "-n", "9", "--oversubscribe", "train.py")[-1]


def test_this_host_alone_needs_no_mention(place, capsys):
    place.setattr(mpirun, "find", lambda kind, in_slurm: STARTERS["openmpi"])
    command = dry_run(capsys, "-n", "2", "--hosts", "localhost:2", "train.py")[-1]
    assert "--host" not in command


def test_environment_of_the_ranks(place, capsys):
    place.setenv("B", "from outside")
    lines = dry_run(capsys, "-n", "1", "--env", "A=1=2", "--env", "B", "--env", "C=", "train.py")
    assert {"A=1=2", "B=from outside", "C="} <= set(lines)


def test_what_restarts_are_told(place, capsys):
    calls = []
    place.setattr(restarts, "run", lambda plan, **options: calls.append((plan, options)) or 5)
    words = "-n 2 --restarts 3 --backoff 0.5 --min-ranks 1 --timeout 9 --checkpoint-dir out"
    place.setattr(mpirun, "find", lambda kind, in_slurm: STARTERS["mpich"])
    assert cli.main([*words.split(), "--log-dir", "logs", "train.py", "{checkpoint}"]) == 5
    ((plan_, options),) = calls
    assert (plan_.n, plan_.timeout, plan_.log_dir) == (2, 9, "logs")
    assert options.pop("checkpoints").newest() is None
    assert options == {"restarts": 3, "wait": 0.5, "min_ranks": 1}


def test_what_is_special_is_said(place, capsys):
    place.setattr(mpirun, "find", lambda kind, in_slurm: STARTERS["openmpi"])
    place.setattr(os, "geteuid", lambda: 0)
    place.setattr(binding, "gpus", lambda variables: ["0"])
    place.setattr(restarts, "run", lambda plan, **options: 7)
    assert cli.main(["-n", "3", "train.py"]) == 7
    lines = capsys.readouterr().err.splitlines()
    assert cli.main(["-n", "3", "--verbose", "train.py"]) == 7
    assert capsys.readouterr().err.splitlines() == [
        "mpchain-launch: running as root: OMPI_ALLOW_RUN_AS_ROOT and "
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM set for Open MPI",
        *lines,
    ]
    assert lines == [
        "mpchain-launch: warning: 3 ranks on 2 cores (oversubscribed): expect slower steps",
        "mpchain-launch: 3 ranks share 1 GPU; NCCL needs one GPU for each rank",
    ]


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"mpchain-launch {mpchain.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "option"), [(["--help"], "--dry-run"), (["doctor", "--help"], "--json")]
)
def test_help(capsys, arguments, option):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 0
    assert option in capsys.readouterr().out


def test_by_hand():
    """The environment says that start_rank.py was started by hand."""
    answer = subprocess.run(
        [sys.executable, plan.START_RANK],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (
        1,
        "mpchain-launch starts this file; do not run it by hand\n",
    )


def test_trace(place, capsys, tmp_path):
    variables = dry_run(capsys, "-n", "1", "--trace", "result/trace", "train.py")
    assert f"MPCHAIN_TRACE={tmp_path}/result/trace" in variables
    (tmp_path / "file").touch()
    assert "--trace file: File exists" in complaint(
        capsys, "-n", "1", "--trace", "file", "train.py"
    )


@pytest.fixture
def elastic_mpirun(place, tmp_path):
    """Returns a function that installs an Open MPI with a given output of ompi_info about ULFM."""

    def elastic_mpirun(answer):
        for name in ("mpirun", "ompi_info"):
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\necho ' FT MPI support: {answer}'\n")
            path.chmod(0o755)
        starter = mpirun.OpenMpi(str(tmp_path / "mpirun"))
        place.setattr(mpirun, "find", lambda kind, in_slurm: starter)
        place.setattr(mpirun, "_free_shared_memory", lambda: 0)
        place.setattr(os, "geteuid", lambda: 1)
        place.setenv("HOME", str(tmp_path))

    return elastic_mpirun


@pytest.mark.parametrize("hosts", [[], ["--hosts", "a:1,b:1"]])
def test_elastic(elastic_mpirun, capsys, hosts):
    elastic_mpirun("yes")
    *lines, command = dry_run(capsys, "-n", "2", "--elastic", *hosts, "train.py")
    assert " --with-ft ulfm " in command
    assert {"OMPI_MCA_coll=^han,cuda", "MPCHAIN_ELASTIC=1"} <= set(lines)
    assert ("PRTE_MCA_oob_tcp_keepalive_time=0" in lines) == bool(hosts)
    assert "ulfm" not in dry_run(capsys, "-n", "2", *hosts, "train.py")[-1]


def test_elastic_leaves_the_choice_of_collectives_to_the_user(elastic_mpirun, place, capsys):
    elastic_mpirun("yes")
    place.setenv("OMPI_MCA_coll", "^sm")
    lines = dry_run(capsys, "-n", "2", "--elastic", "train.py")
    assert not any(line.startswith("OMPI_MCA_coll") for line in lines)


NEEDED = f"--elastic needs Open MPI 5 with ULFM ({mpirun.INSTALL}): "


def test_elastic_where_open_mpi_lacks_ulfm(elastic_mpirun, capsys, tmp_path):
    elastic_mpirun("no")
    sentence = complaint(capsys, "-n", "2", "--elastic", "train.py")
    fault = f"{tmp_path}/mpirun was built without ULFM, according to {tmp_path}/ompi_info"
    assert f"{NEEDED}{fault} (" in sentence
    (tmp_path / "ompi_info").unlink()
    sentence = complaint(capsys, "-n", "2", "--elastic", "train.py")
    assert f"{NEEDED}{tmp_path}/mpirun has no ompi_info beside it" in sentence


@pytest.mark.parametrize(
    ("starter", "fault"),
    [
        (mpirun.Mpich("/x/mpirun"), "/x/mpirun is not Open MPI's"),
        (mpirun.Srun("/x/srun"), "/x/srun is not Open MPI's"),
        (None, "there is no mpirun: --elastic needs Open MPI's"),
    ],
)
def test_elastic_with_something_else_than_open_mpi(place, capsys, starter, fault):
    place.setattr(mpirun, "find", lambda kind, in_slurm: starter)
    n = "2" if starter else "1"
    assert NEEDED + fault in complaint(capsys, "-n", n, "--elastic", "train.py")


@pytest.mark.parametrize("option", ["--max-losses-per-hour", "--spares"])
def test_options_that_need_elastic(place, capsys, option):
    assert f"{option} needs --elastic" in complaint(capsys, "-n", "2", option, "3", "train.py")


def test_spare_ranks_need_slots(place, capsys):
    place.setattr(mpirun, "find", lambda kind, in_slurm: mpirun.ElasticOpenMpi("/x/mpirun"))
    place.setattr(mpirun.ElasticOpenMpi, "elastic", lambda starter: starter)
    options = ["--elastic", "--spares", "1", "--hosts", "a:2,b:2"]
    for n in ("auto", "3"):
        command = shlex.split(dry_run(capsys, "-n", n, *options, "train.py")[-1])
        assert command[command.index("-n") + 1] == "4"
    line = complaint(capsys, "-n", "4", *options, "train.py")
    assert "5 ranks, 1 of them spare, need 5 slots, and the hosts have 4 (a:2,b:2)" in line
    options[2] = "4"
    line = complaint(capsys, "-n", "auto", *options, "train.py")
    assert "--spares 4 leaves none of the 4 slots to ranks that train" in line
