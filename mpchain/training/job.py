"""The id of the job that this process belongs to, and a temporary folder of the job."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping


def job_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns an id that all processes of one launcher share; None without a launcher.

    Example:
        >>> job_id({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"})
        '12.0'
    """
    for name in ("MPCHAIN_JOB", "PMIX_NAMESPACE"):  # mpchain-launch; Open MPI, srun with PMIx
        if name in environ:
            return environ[name]
    if environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":  # srun
        return f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
    if "PMI_JOBID" not in environ and environ.get("PMI_SIZE", "1") != "1":  # MPICH's mpirun
        return f"process {os.getppid()}"
    return environ.get("PMI_JOBID")  # other launchers


@contextlib.contextmanager
def folder_to_discard(parent: str | os.PathLike[str]) -> Iterator[str]:
    """Context manager: creates a temporary folder; yields its path, the same in the whole job.

    Args:
        parent: the folder that it is in; if it did not exist before, it is removed as well.

    Example:
        >>> with folder_to_discard("result") as folder:
        ...     os.path.isdir(folder)
        True
        >>> os.path.exists("result")
        False
    """
    is_new = not os.path.isdir(parent)
    name = "".join(c if c.isalnum() else "-" for c in job_id() or str(os.getpid()))
    folder = os.path.join(parent, f".test-{name}")
    os.makedirs(folder, exist_ok=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # another process may delete it at the same time
        if is_new:
            with contextlib.suppress(OSError):  # other processes have written to it
                os.rmdir(parent)
