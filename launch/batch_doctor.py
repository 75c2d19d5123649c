"""What the doctor says about batch systems: whether they can start ranks of this MPI library."""

import os
import re
from collections.abc import Mapping

from . import inquiry, mpi_library, mpirun
from .findings import FAILURE, NOTE, OK, WARNING, Finding
from .known_failures import explain
from .processes import ask, find_program

_PLUGINS = {mpi_library.OPEN_MPI: "pmix", mpi_library.MPICH: "pmi2"}


def judge(starter: mpirun.Direct, variables: Mapping[str, str]) -> list[Finding]:
    """Returns the findings about Slurm, PBS and LSF, where there are any.

    Args:
        starter: What would start the ranks.
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
    plugins = set(re.findall(r"\b(?:pmix|pmi2|cray_shasta)\b", ask([srun, "--mpi=list"])))
    found = " ".join(sorted(plugins)) or "no plug-in for MPI"
    needed = _PLUGINS.get(starter.flavour)
    by_mpirun = "use mpirun (mpchain-launch)"
    if needed not in plugins and not (starter.flavour is None and plugins):
        hint = f"srun cannot start ranks, for lack of {needed or 'PMI'}: {by_mpirun}"
        return [Finding("srun", NOTE, found, hint)]
    if needed and "SLURM_JOB_ID" in variables:  # a plug-in that is listed may lack its library
        words = [srun, "--overlap", "--nodes=1", "--ntasks=1", f"--mpi={needed}", "true"]
        code, _, errors = inquiry.run_on_all({"": words}, 60.0)[""]
        if code != 0:
            cause = explain(errors.encode()) or errors.strip().partition("\n")[0]
            hint = f"a trial of srun --mpi={needed} failed ({cause})"
            return [Finding("srun", NOTE, found, hint)]
    return [Finding("srun", OK, found)]


def _judge_pbs(starter, variables):
    path = variables.get("PBS_NODEFILE")
    if path is None:
        return []
    if not os.access(path, os.R_OK):
        hint = "PBS writes it on the first host of a job alone: start there, or give --hosts"
        return [Finding("PBS", FAILURE, f"cannot read {path}", hint)]
    # Ranks that ssh starts are no tasks of the job: PBS neither limits nor ends them.
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
