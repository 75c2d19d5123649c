"""The doctor's findings about batch systems: whether they can start ranks of this MPI library."""

import os
import re
import sys
from collections.abc import Mapping, Sequence

from . import inquiry, mpi_library, mpirun
from .findings import FAILURE, NOTE, OK, WARNING, Finding
from .known_failures import explain
from .processes import ask, find_program

_SIZE = "from mpi4py import MPI; print('size', MPI.COMM_WORLD.size, flush=True)"
_PLUGINS = {mpi_library.OPEN_MPI: "pmix", mpi_library.MPICH: "pmi2"}


def judge(starter: mpirun.Direct, variables: Mapping[str, str]) -> list[Finding]:
    """Returns the findings about Slurm, PBS and LSF, if any batch system is installed.

    Args:
        starter: The program that would start the ranks.
        variables: The environment.

    Example:
        >>> judge(mpirun.Direct(), {"PBS_NODEFILE": "/nowhere"})[-1].hint[:31]
        'PBS writes it on the first host'
    """
    return [
        *_judge_srun(starter, variables),
        *_judge_pbs(starter, variables),
        *_judge_lsf(variables),
    ]


def _judge_srun(starter, variables):
    srun = _find("srun")
    if not srun:
        return []
    listed = ask([srun, "--mpi=list"])
    plugins = set(re.findall(r"\b(?:pmix|pmi2|cray_shasta)\b", listed))
    theirs = sorted(map(int, re.findall(r"\bpmix_v(\d+)\b", listed)))
    ours, components = None, set()
    if starter.flavour == mpi_library.OPEN_MPI:
        ours, components = _pmi_of_library(starter)
    found = " ".join(sorted(plugins)) or "no plug-in for MPI"
    if theirs:
        library = f", the library's {ours}" if ours else ""
        found += f" (PMIx {' and '.join(map(str, theirs))}{library})"
    needed = _PLUGINS.get(starter.flavour)
    if "s2" in components and "pmi2" in plugins:
        needed = "pmi2"
    hint = ""
    if components and not ours and needed == "pmix":
        hint = "your Open MPI was built without Slurm's PMI, so srun cannot start its ranks"
    elif needed not in plugins and not (starter.flavour is None and plugins):
        hint = f"srun cannot start ranks, because it lacks {needed or 'PMI'}"
    elif needed and "SLURM_JOB_ID" in variables:  # a listed plug-in may lack its library
        words = [srun, "--overlap", "--overcommit", "--nodes=1", "--ntasks=2", f"--mpi={needed}"]
        if cause := try_ranks(words):
            hint = f"a trial of srun --mpi={needed} failed ({cause})"
    elif ours and theirs and needed == "pmix" and ours < theirs[0]:
        hint = (
            f"a library with PMIx {ours} may not understand PMIx {theirs[0]}; run the doctor "
            "within a job to try it"
        )
    if hint:
        return [Finding("srun", NOTE, found, f"{hint}: use mpirun (mpchain-launch)")]
    return [Finding("srun", OK, found)]


def try_ranks(words: Sequence[str], python: str = sys.executable) -> str:
    """Starts two ranks; returns why they do not form one job, or an empty string if they do.

    Args:
        words: The words of the command before the program.
        python: The Python that runs the program.

    Example:
        >>> try_ranks(["sh", "-c", "echo size 1; echo size 1"])
        'each of two ranks is alone: their starter is not of the MPI library that they load'
    """
    code, output, errors = inquiry.run_on_all({"": [*words, python, "-c", _SIZE]}, 60.0)[""]
    sizes = re.findall(r"^size (\d+)$", output, re.M)
    if code == 0 and sizes == ["2", "2"]:
        return ""
    said = f"{output}\n{errors}"
    if known := explain(said.encode()):
        return known
    if code == 0 and sizes:
        return "each of two ranks is alone: their starter is not of the MPI library that they load"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next(
        (line for line in lines if "rror: " in line), lines[-1] if lines else f"code {code}"
    )


def _pmi_of_library(starter):
    """Returns the PMIx version of an Open MPI (None if unknown), and its PMI components if it is
    older than version 5."""
    folder = [os.path.dirname(starter.path or "")]
    program = find_program(["ompi_info"], folder) if starter.path else None
    components = set(re.findall(r"MCA pmix: (\w+)", ask([program]))) if program else set()
    if versions := re.findall(r"\b(?:pmix|ext)(\d)x\b", " ".join(components)):
        return int(max(versions)), components
    program = find_program(["pmix_info"], folder) if starter.path and not components else None
    version = re.search(r"PMIX: v?(\d+)\.", ask([program])) if program else None
    return version and int(version[1]), components


def _judge_pbs(starter, variables):
    path = variables.get("PBS_NODEFILE")
    if path is None:
        return []
    if not os.access(path, os.R_OK):
        hint = "PBS writes it on the first host of a job only: start there, or pass --hosts"
        return [Finding("PBS", FAILURE, f"cannot read {path}", hint)]
    # PBS neither limits nor ends ranks that ssh starts, because they are not tasks of the job.
    folder = os.path.dirname(starter.path or "")
    program = find_program(["prte_info", "ompi_info"], [folder]) if starter.path else None
    if starter.flavour != mpi_library.OPEN_MPI or not program:
        return [Finding("PBS", OK, path)]
    if re.search(r"MCA plm: tm\b", ask([program])):
        return [Finding("PBS", OK, "it starts the daemons of mpirun")]
    hint = (
        "PBS does not count, limit or end ranks that ssh starts: load the site's Open MPI, or "
        "build one --with-tm"
    )
    return [Finding("PBS", NOTE, "ssh starts the daemons of mpirun", hint)]


def _judge_lsf(variables):
    if "LSB_DJOB_HOSTFILE" not in variables:
        return []
    if not _find("blaunch"):
        hint = "ranks on other hosts would be started by ssh: source LSF's profile.lsf"
        return [Finding("LSF", WARNING, "no blaunch in PATH", hint)]
    return [Finding("LSF", OK, "blaunch starts the daemons of mpirun")]


def _find(name):
    return find_program([name], os.get_exec_path())
