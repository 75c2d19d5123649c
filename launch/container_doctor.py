"""The doctor's findings about a container: its software, and whether ranks can start in it."""

import json
import os
import re
import shlex

from . import batch_doctor, inquiry, mpirun, plan, probe_host
from .findings import FAILURE, NOTE, OK, WARNING, Finding

PROBE = os.path.join(plan.FOLDER, "probe_host.py")
SHARED_MEMORY = "/dev/shm"
TIME = 120.0
# These options mount a folder of the host in a container.
_BIND = {"Docker": "docker run -v {0}:{0} ...", "Podman": "podman run -v {0}:{0} ..."}
_BIND |= {"Apptainer": "apptainer exec --bind {0} ...", "": "choose another folder, or TMPDIR"}
_BIND["Singularity"] = _BIND["Apptainer"].replace("apptainer", "singularity")
_PODMAN = "podman run --env-host --network=host --ipc=host --pid=host -v /tmp:/tmp ..."
_START_INSIDE = "start mpchain-launch inside the container, or "


def bind(kind: str, places: list[str]) -> str:
    """Returns the command that makes folders of the host visible in a container, or other advice if
    ``kind`` is empty.

    Args:
        kind: The kind of container, in the words of probe_host.py.
        places: The folders.

    Example:
        >>> bind("Apptainer", ["/scratch"])
        'apptainer exec --bind /scratch ...'
    """
    return " ".join(dict.fromkeys(_BIND[kind].format(place) for place in places))


def ask(words: list[str], results: str) -> tuple[dict, list[Finding]]:
    """Runs probe_host.py in a container; returns its answers, or a failure.

    Args:
        words: The words of the command that runs a given command in the container; the last word
            may be the container's Python.
        results: The folder of results.

    Example:
        >>> ask(["/nowhere/apptainer", "exec", "train.sif"], "result")[1][0].hint[-40:]
        "'/nowhere/apptainer exec train.sif true'"
    """
    words, python = _split(words)
    with open(PROBE, encoding="utf-8") as file:
        source = file.read()
    command = [*words, python, "-c", source, os.path.abspath(results), "", *_places(results)]
    code, output, errors = inquiry.run_on_all({"": command}, TIME)[""]
    line = output.strip().rpartition("\n")[2]
    if code == 0 and line.startswith("{"):
        return json.loads(line), []
    reason = batch_doctor.explain(errors.encode()) or errors.strip().rpartition("\n")[2]
    hint = f"this command must work by itself: '{shlex.join([*words, 'true'])}'"
    return {}, [Finding("container", FAILURE, reason or f"exit code {code}", hint, "container")]


def compare(outside: dict, inside: dict, results: str) -> list[Finding]:
    """Returns the findings about differences between the host and a container.

    Args:
        outside: The answers of probe_host.py on the host.
        inside: The answers of probe_host.py in the container.
        results: The folder of results.

    Example:
        >>> answer = {"mpi": "Open MPI v5.0.11", "container": "", "places": {}}
        >>> compare(answer, answer | {"mpi": "MPICH Version: 5.0.2"}, "result")[0].found
        'outside Open MPI 5.0.11, inside MPICH 5.0.2'
    """
    findings = []
    names = [_mpi(answer.get("mpi")) for answer in (outside, inside)]
    if all(names):
        (flavour, version), (flavour_inside, version_inside) = names
        found = f"outside {flavour} {version}, inside {flavour_inside} {version_inside}"
        verdict, hint = OK, ""
        if flavour != flavour_inside:
            hint = (
                f"an mpirun outside cannot start ranks inside: {_START_INSIDE}have {flavour} there"
            )
            verdict = WARNING
        elif version.partition(".")[0] != version_inside.partition(".")[0]:
            hint = (
                f"ranks inside may not find each other: {_START_INSIDE}have version {version} there"
            )
            verdict = WARNING
        findings.append(Finding("MPI of both", verdict, found, hint, "container"))
    kind, there = inside["container"], inside["places"]
    here = probe_host.identities(_places(results))
    hidden = [place for place, identity in here.items() if there.get(place) != identity]
    if SHARED_MEMORY in hidden:
        hidden.remove(SHARED_MEMORY)
        hint = (
            "ranks of an mpirun outside, each in a container, cannot share memory: "
            f"{'podman' if kind == 'Podman' else 'docker'} run --ipc=host"
        )
        findings.append(Finding("own /dev/shm", NOTE, SHARED_MEMORY, hint, "container"))
    if hidden:
        found = f"not those of the host: {' '.join(hidden)}"
        findings.append(Finding("binds", FAILURE, found, bind(kind, hidden), "container"))
    return findings


def try_ranks(words: list[str], starter: mpirun.Direct | None) -> list[Finding]:
    """Returns a finding about whether the host's mpirun can start ranks in a container.

    Args:
        words: The same as in `ask`.
        starter: The host's mpirun, if there is one.

    Example:
        >>> try_ranks(["apptainer", "exec", "train.sif"], None)[0].found
        'no mpirun outside'
    """
    if not starter or not starter.path:
        return [Finding("ranks inside", NOTE, "no mpirun outside", _START_INSIDE[:-5], "container")]
    words, python = _split(words)
    variables = [f"{name}={value}" for name, value in starter.variables(os.environ, 2, {}).items()]
    start = ["env", *variables, *starter.command(2, {}, True, []), *words]
    if cause := batch_doctor.try_ranks(start, python):
        hint = f"{cause}; {_START_INSIDE[:-5]}"
        if any(os.path.basename(word) == "podman" for word in words):
            hint += f", or {_PODMAN}"
        return [Finding("ranks inside", WARNING, "mpirun outside fails", hint, "container")]
    return [Finding("ranks inside", OK, "mpirun outside starts them", "", "container")]


def _split(words):
    """Returns the command without its last word, if this is a Python; and this Python, or
    python3."""
    if os.path.basename(words[-1]).startswith("python"):
        return words[:-1], words[-1]
    return words, "python3"


def _places(results):
    """Returns the folders that host and container must share: the folder of the results, the
    current folder, and /dev/shm."""
    results = os.path.abspath(results)
    while not os.path.exists(results):
        results = os.path.dirname(results)
    return [*dict.fromkeys([results, os.getcwd()]), SHARED_MEMORY]


def _mpi(text):
    """Returns the flavor and version of an MPI library."""
    found = (
        re.match(r"(.*?),?\s+(?:v|Version:?\s*)?(\d[\w.]*)", text)
        if isinstance(text, str)
        else None
    )
    return found and (found[1].removesuffix(" Library"), found[2])
