"""Tests what the doctor says about containers, some of which mount namespaces imitate."""

import importlib.util
import json
import os
import sys

import pytest

from launch import container_doctor, mpirun, probe_host
from tests.launch.hosts import may_mount

FOUND = mpirun.find()
HAS_MPI = importlib.util.find_spec("mpi4py") and getattr(FOUND, "path", None)
ANSWER = {"mpi": "Open MPI v5.0.11", "container": "Apptainer", "places": {}}

# This imitates Apptainer's exec, in a container whose MPI, environment and folders a test spoils. A
# tmpfs hides each folder in $HIDDEN that no --bind names.
APPTAINER = r"""#!/bin/sh
[ "$1" = exec ] || { echo "FATAL: unknown command $1" >&2; exit 255; }
shift
while [ "$1" = --bind ]; do bound="$bound $2"; shift 2; done
[ "$1" = train.sif ] || { echo "FATAL: could not open image $1" >&2; exit 255; }
shift
hide() { for place in $HIDDEN; do case " $bound " in *" $place "*) ;; *) \
    mount -t tmpfs tmpfs "$place" || exit;; esac; done; }
hide
export APPTAINER_CONTAINER=/train.sif
# What mpirun tells its ranks does not reach those of another library.
[ "$SPOILED" = mpi ] && unset $(env | grep -oE '^(PMIX|PRTE|OMPI_COMM|OMPI_UNIVERSE|SLURM)[^=]*')
exec "$@"
"""


def by_item(findings):
    return {finding.item: finding for finding in findings}


@pytest.mark.parametrize(
    ("inside", "verdict", "found", "words"),
    [
        ("Open MPI v5.0.9", "ok", "Open MPI 5.0.11, inside Open MPI 5.0.9", ""),
        ("Open MPI v4.1.4", "WARN", "inside Open MPI 4.1.4", "have version 5.0.11 there"),
        ("MPICH Version: 4.0.2", "WARN", "inside MPICH 4.0.2", "have Open MPI there"),
        (
            "Intel(R) MPI Library 2021.10 for Linux* OS",
            *("WARN", "inside Intel(R) MPI 2021.10", "start mpchain-launch inside the container"),
        ),
    ],
)
def test_mpi_of_both(inside, verdict, found, words):
    (finding, *_) = container_doctor.compare(ANSWER, ANSWER | {"mpi": inside}, ".")
    assert (finding.item, finding.verdict) == ("MPI of both", verdict)
    assert found in finding.found and finding.found.startswith("outside Open MPI 5.0.11")
    assert words in finding.hint


@pytest.mark.parametrize("inside", ["", {"error": "RuntimeError: cannot load MPI library"}])
def test_no_mpi_inside(inside):
    items = by_item(container_doctor.compare(ANSWER, ANSWER | {"mpi": inside}, "."))
    assert "MPI of both" not in items


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("Apptainer", "apptainer exec --bind {0} ..."),
        ("Singularity", "singularity exec --bind {0} ..."),
        ("Docker", "docker run -v {0}:{0} ..."),
        ("Podman", "podman run -v {0}:{0} ..."),
    ],
)
def test_folders_that_are_not_inside(kind, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = probe_host.identities([str(tmp_path), "/dev/shm"])
    assert container_doctor.compare({}, ANSWER | {"places": there}, "result") == []
    hidden = {**there, str(tmp_path): None}
    items = by_item(container_doctor.compare({}, {"container": kind, "places": hidden}, "result"))
    assert items["binds"].verdict == "FAIL"
    assert items["binds"].hint == line.format(tmp_path)
    own = {**there, "/dev/shm": [0, 1]}
    items = by_item(container_doctor.compare({}, {"container": kind, "places": own}, "result"))
    assert list(items) == ["own /dev/shm"]
    assert items["own /dev/shm"].hint.endswith(
        "podman run --ipc=host" if kind == "Podman" else "docker run --ipc=host"
    )


def test_a_container_that_does_not_start():
    words = [
        "sh",
        "-c",
        'echo "python3: /lib/libc.so.6: version \\`GLIBC_2.38\' not found" >&2; exit 1',
    ]
    inside, (finding,) = container_doctor.ask(words, ".")
    assert inside == {}
    assert (finding.item, finding.verdict, finding.host) == ("container", "FAIL", "container")
    assert finding.found.startswith("a library was built for a newer system")
    assert finding.hint.startswith("this command must work by itself: 'sh -c ")


@pytest.fixture
def apptainer(tmp_path, monkeypatch):
    """Returns the words that run a command in the imitated container, which hides the working
    folder unless it is bound."""
    if not may_mount():
        pytest.skip("needs unshare and the right to mount")
    folder, work = tmp_path / "bin", tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    program = folder / "apptainer"
    program.write_text(APPTAINER)
    program.chmod(0o755)
    monkeypatch.chdir(work)
    monkeypatch.setenv("HIDDEN", str(work))
    # The files of this repository have the same paths inside and outside.
    root = os.path.dirname(os.path.dirname(container_doctor.PROBE))
    monkeypatch.setenv("PYTHONPATH", root)
    return ["unshare", "--mount", str(program), "exec"]


@pytest.mark.long
def test_a_folder_that_is_bound(apptainer):
    here = os.getcwd()
    inside, failures = container_doctor.ask([*apptainer, "train.sif", sys.executable], "result")
    assert failures == [] and inside["container"] == "Apptainer"
    items = by_item(container_doctor.compare({}, inside, "result"))
    assert items["binds"].hint == f"apptainer exec --bind {here} ..."
    words = [*apptainer, "--bind", here, "train.sif", sys.executable]
    inside, failures = container_doctor.ask(words, "result")
    assert failures == [] and container_doctor.compare({}, inside, "result") == []


@pytest.mark.long
def test_an_image_that_is_missing(apptainer):
    _, (finding,) = container_doctor.ask([*apptainer, "nosuch.sif"], "result")
    assert finding.found == "FATAL: could not open image nosuch.sif"


@pytest.mark.long
@pytest.mark.skipif(not HAS_MPI, reason="needs mpchain[mpi]")
@pytest.mark.parametrize(("spoiled", "verdict"), [("", "ok"), ("mpi", "WARN")])
def test_ranks_inside(apptainer, monkeypatch, spoiled, verdict):
    """If the library inside does not communicate with the mpirun outside, each rank is alone."""
    monkeypatch.setenv("SPOILED", spoiled)
    words = [*apptainer, "--bind", os.getcwd(), "train.sif", sys.executable]
    (finding,) = container_doctor.try_ranks(words, FOUND)
    assert (finding.item, finding.verdict) == ("ranks inside", verdict)
    expected = "each of two ranks is alone: their starter is not of the MPI library that they load"
    assert finding.hint == (
        f"{expected}; start mpchain-launch inside the container" if spoiled else ""
    )


@pytest.mark.long
@pytest.mark.skipif(not HAS_MPI, reason="needs mpchain[mpi]")
def test_the_doctor_looks_inside(apptainer, run):
    words = " ".join([*apptainer, "train.sif", sys.executable])
    code, output, errors = run("doctor", "--json", "--container", words, folder=os.getcwd())
    assert (code, errors) == (1, "")
    findings = {each["item"]: each for each in json.loads(output) if each["host"] == "container"}
    assert findings["container"]["found"] == "Apptainer"
    assert findings["MPI of both"]["verdict"] == "ok"
    assert findings["binds"]["hint"] == f"apptainer exec --bind {os.getcwd()} ..."
    assert findings["ranks inside"]["verdict"] == "ok"
