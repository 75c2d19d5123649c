import os
import re
import shlex
import subprocess
import sys

import pytest

from launch import cli
from tests.launch import mpijob

SCRIPTS = ("slurm", "pbs", "lsf")
COMMON = ["-n", "8", "--nodes", "2", "--name", "my job", "--time", "10:30:00", "--queue", "long"]
COMMON += ["--account", "me", "--gpus", "4", "--cores", "3"]
OURS = ["--restarts", "2", "--checkpoint-dir", "a b", "--env", "A=1", "--env", "B=2", "--no-prefix"]
PROGRAM = ["train.py", "--lr", "a b", "$HOME"]


def check(manifest):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(mpijob.SCHEMA).validate(manifest)
    assert mpijob.has_valid_names(manifest)


@pytest.fixture
def write(capsys, monkeypatch):
    """Returns a function that returns the printed script for a batch system."""
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)

    def write(scheduler, *arguments):
        assert cli.main(["--scheduler", scheduler, *arguments]) == 0
        captured = capsys.readouterr()
        assert not captured.err
        return captured.out

    return write


@pytest.fixture
def complaint(capsys):
    def complaint(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main([*arguments, "train.py"])
        captured = capsys.readouterr()
        assert (end.value.code, captured.out, captured.err.count("\n")) == (2, "", 1)
        return captured.err

    return complaint


@pytest.mark.parametrize("scheduler", SCRIPTS)
@pytest.mark.parametrize("arguments", [["-n", "1", "train.py"], [*COMMON, *OURS, *PROGRAM]])
def test_bash_understands(write, tmp_path, scheduler, arguments):
    path = tmp_path / "job.sh"
    path.write_text(write(scheduler, *arguments))
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert path.read_text().startswith("#!/bin/bash\n")


@pytest.mark.parametrize(
    ("scheduler", "folder", "restarted"),
    [
        ("slurm", "SLURM_SUBMIT_DIR", {"SLURM_RESTART_COUNT": "1"}),
        ("slurm", "SLURM_SUBMIT_DIR", {}),
        ("pbs", "PBS_O_WORKDIR", {}),
        ("lsf", "LS_SUBCWD", {}),
    ],
)
def test_what_the_script_starts(write, tmp_path, python_at, scheduler, folder, restarted):
    """The script runs with a program instead of Python that prints its arguments."""
    fake = tmp_path / "python"
    fake.write_text(f"#!{sys.executable}\nimport os, sys; print([os.getcwd(), *sys.argv[1:]])\n")
    fake.chmod(0o755)
    python_at(fake)
    text = write(scheduler, *COMMON, *OURS, "--setup", "export X=1", *PROGRAM)
    assert "\nexport X=1\n" in text
    place = tmp_path / "a b"
    place.mkdir()
    answer = subprocess.run(
        ["bash", "-c", text],
        env={**os.environ, folder: str(place), **restarted},
        capture_output=True,
        text=True,
        check=True,
    )
    ours = ["--no-prefix", "--env=A=1", "--env=B=2", "--restarts=2", "--checkpoint-dir=a b"]
    called = eval(answer.stdout)
    assert called[:5] == [str(place), "-m", "launch", "-n", "8"]
    options = called[5 : called.index("--")]
    assert sorted(options) == sorted([*ours, *["--resume"] * len(restarted)])
    assert called[called.index("--") + 1 :] == PROGRAM
    # The launcher accepts these arguments.
    parsed = cli._parser().parse_args(called[3:])
    assert (parsed.ranks, parsed.checkpoint_dir, parsed.prefix) == (8, "a b", False)


@pytest.mark.parametrize(
    ("scheduler", "directives"),
    [
        (
            "slurm",
            [
                *("--job-name=my-job", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4"),
                *("--cpus-per-task=3", "--gpus-per-node=4", "--time=10:30:00"),
                *("--partition=long", "--account=me", "--signal=B:TERM@60", "--requeue"),
                *("--open-mode=append", "--output=%x-%j.out", "one more"),
            ],
        ),
        (
            "pbs",
            [
                "-N my-job",
                "-l select=2:ncpus=12:mpiprocs=4:ngpus=4",
                *("-l walltime=10:30:00", "-q long", "-A me", "-j oe", "one more"),
            ],
        ),
        (
            "lsf",
            [
                *("-J my-job", "-n 8", '-R "span[ptile=4]"', '-R "affinity[core(3)]"'),
                *('-gpu "num=4"', "-W 10:30", "-q long", "-P me", "-o my-job.%J.log", "one more"),
            ],
        ),
    ],
)
def test_directives(write, scheduler, directives):
    lines = write(scheduler, *COMMON, "--directive", "one more", "train.py").splitlines()
    sign = {"slurm": "#SBATCH ", "pbs": "#PBS ", "lsf": "#BSUB "}[scheduler]
    assert [line.removeprefix(sign) for line in lines if line.startswith(sign)] == directives
    # Only comments may precede the last directive.
    assert all(line.startswith("#") for line in lines[: len(directives) + 1])


def test_module(write):
    last = write("slurm", "-n", "2", "-m", "task", "-x").splitlines()[-1]
    assert shlex.split(last)[-4:] == ["-m", "--", "task", "-x"]


def test_name_is_that_of_the_script(write):
    assert "#SBATCH --job-name=train\n" in write("slurm", "-n", "1", "folder/train.py")


def expanded(command):
    """Expands a command as Kubernetes does: $$ becomes $; $(NAME) becomes an empty text here."""
    return [re.sub(r"\$(\$|\(\w+\))", lambda m: "$" * (m[1] == "$"), each) for each in command]


@pytest.mark.parametrize(
    "word",
    ["$$", "$(HOME)", "$$(HOME)", "$HOME", "\U0001f600", "\x7f\x85\u2028\ufffe", "a\\ud83d\n"],
)
def test_words_of_a_manifest(write, word):
    yaml = pytest.importorskip("yaml")
    text = write("kubernetes", "-n", "2", "--image", "x", "train.py", word)
    # The text is ASCII, without surrogates, which some YAML parsers refuse.
    assert text.isascii()
    assert not re.search(r"(?<!\\)(\\\\)*\\u[dD][89a-fA-F]", text)
    replicas = yaml.safe_load(text)["spec"]["mpiReplicaSpecs"]["Launcher"]
    (container,) = replicas["template"]["spec"]["containers"]
    assert expanded(container["command"])[-1] == word


@pytest.mark.parametrize("seconds", ["1234567", "0.1234567", "86400.5"])
def test_numbers_are_written_whole(write, seconds):
    text = write("slurm", "-n", "2", "--timeout", seconds, "train.py")
    assert f"--timeout={seconds} " in text


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_mpijob(write, mpi):
    yaml = pytest.importorskip("yaml")
    arguments = [*COMMON, *OURS, "--mpi", mpi, "--image", "me/train:1", *PROGRAM]
    manifest = yaml.safe_load(write("kubernetes", *arguments))
    check(manifest)
    spec = manifest["spec"]
    assert manifest["metadata"]["name"] == "my-job"
    assert spec["slotsPerWorker"] == 4
    assert spec["mpiImplementation"] == {"openmpi": "OpenMPI", "mpich": "MPICH"}[mpi]
    assert spec["runPolicy"]["activeDeadlineSeconds"] == 37800
    launcher, worker = (spec["mpiReplicaSpecs"][name] for name in ("Launcher", "Worker"))
    assert (launcher["replicas"], worker["replicas"]) == (1, 2)
    (container,) = worker["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": 12, "nvidia.com/gpu": 4}
    (container,) = launcher["template"]["spec"]["containers"]
    command = expanded(container["command"])
    assert command[:3] == ["mpchain-launch", "-n", "8"]
    assert command[command.index("--") + 1 :] == PROGRAM
    assert cli._parser().parse_args(command[1:]).mpi == mpi


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("kind", "MpiJob"),
        ("spec.slotsPerWorker", "2"),
        ("spec.slotsPerWorkers", 2),
        ("spec.runPolicy.cleanPodPolicy", "running"),
        ("spec.runPolicy.backoffLimit", -1),
        ("spec.mpiImplementation", "Open MPI"),
        ("spec.launcherCreationPolicy", "WaitForWorkers"),
        ("spec.mpiReplicaSpecs.Launcher.replicas", 2),
        ("spec.mpiReplicaSpecs.Worker.replicas", 0),
        ("spec.mpiReplicaSpecs.Worker.restartPolicy", "Always"),
        ("spec.mpiReplicaSpecs.Workers", {}),
        ("spec.mpiReplicaSpecs", {}),
    ],
)
def test_manifests_that_are_wrong(write, place, value):
    yaml = pytest.importorskip("yaml")
    jsonschema = pytest.importorskip("jsonschema")
    text = write("kubernetes", *COMMON, "--image", "me/train:1", *PROGRAM)
    manifest = part = yaml.safe_load(text)
    check(manifest)
    *above, last = place.split(".")
    for name in above:
        part = part[name]
    part[last] = value
    with pytest.raises(jsonschema.ValidationError):
        check(manifest)


@pytest.mark.parametrize("name", ["2d_fft", "x" * 80, "-a-", "_", "Ü", "a" * 49 + "-b"])
def test_names_of_mpijobs(write, name):
    """Names of MPIJobs are names of services: DNS labels that begin with a letter."""
    text = write(
        "kubernetes", "-n", "4096", "--nodes", "1024", "--image", "x", f"--name={name}", "y"
    )
    found = re.search(r'^  name: "(.*)"$', text, re.MULTILINE)[1]
    specs = {"Worker": {"replicas": 1024}}
    assert mpijob.has_valid_names({"metadata": {"name": found}, "spec": {"mpiReplicaSpecs": specs}})


@pytest.mark.parametrize("arguments", [["-n", "2"], [*COMMON, *OURS]])
def test_pods_of_an_mpijob(write, arguments):
    """The operator makes pods from the templates, which Kubernetes' own schemas must accept."""
    yaml = pytest.importorskip("yaml")
    schemas = pytest.importorskip("kubernetes_validate")
    text = write("kubernetes", *arguments, "--image", "me/train:1", *PROGRAM)
    for replicas in yaml.safe_load(text)["spec"]["mpiReplicaSpecs"].values():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **replicas["template"]}
        schemas.validate(pod, schemas.latest_version(), strict=True)
        # The schema must refuse unknown fields.
        pod["spec"]["containers"][0]["commands"] = []
        with pytest.raises(schemas.ValidationError):
            schemas.validate(pod, schemas.latest_version(), strict=True)


def test_small_mpijob(write):
    yaml = pytest.importorskip("yaml")
    text = write("kubernetes", "-n", "2", "--image", "x", "--", "Über_Netz.v2.py", 'a: "b"\n- c')
    manifest = yaml.safe_load(text)
    check(manifest)
    assert manifest["metadata"]["name"] == "ber-netz-v2"
    (container,) = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    assert container["command"][-1] == 'a: "b"\n- c'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scheduler", "slurm", "-n", "auto"], "-n auto needs the hosts"),
        (["--scheduler", "slurm", "-n", "8", "--nodes", "3"], "3 does not divide the 8 ranks"),
        (["--scheduler", "kubernetes", "-n", "1"], "needs --image, with mpchain and the script"),
        (["--scheduler", "slurm", "-n", "1", "--image", "x"], "--image needs"),
        (
            ["--scheduler", "kubernetes", "-n", "1", "--image", "x", "--setup", "y"],
            "--setup is only for batch scripts",
        ),
        (["--scheduler", "slurm", "-n", "1", "--time", "60"], "must be hours:minutes:seconds"),
        (["--scheduler", "cron", "-n", "1"], "invalid choice: 'cron'"),
        (["--scheduler", "slurm", "-n", "1", "--queue", "a\nrm x"], "--queue must be one word"),
        (["--scheduler", "lsf", "-n", "1", "--account", "a b"], "--account must be one word"),
        (["--scheduler", "pbs", "-n", "1", "--directive=-x\ny"], "must be one line of text"),
        (
            ["--scheduler", "kubernetes", "-n", "1", "--image", "x", "--env", "A=\udcff"],
            "words in a manifest must be Unicode text, not b'--env=A=\\xff'",
        ),
    ],
)
def test_wrong_use(complaint, arguments, words):
    assert words in complaint(*arguments)
