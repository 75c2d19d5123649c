"""The id of the job to which this process belongs, and a temporary folder of the job."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping


def job_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns an id that all processes of one launcher share; None if there is no launcher.

    Example:
        >>> job_id({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"})
        '12.0'
    """
    for name in (
        "MPCHAIN_JOB",  # set by mpchain-launch
        "PMIX_NAMESPACE",  # set by PMIx servers
    ):
        if name in environ:
            return environ[name]
    if environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":  # set by srun
        return f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
    if "PMI_JOBID" not in environ and environ.get("PMI_SIZE", "1") != "1":  # set by MPICH's mpirun
        return f"process {os.getppid()}"
    return environ.get("PMI_JOBID")  # set by other launchers


@contextlib.contextmanager
def folder_to_discard(parent: str | os.PathLike[str]) -> Iterator[str]:
    """Context manager: makes a temporary folder; yields its path, which all processes of the job
    share.

    Args:
        parent: the folder for the temporary folder; if it did not exist before, it is removed as
            well.

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
        shutil.rmtree(folder, ignore_errors=True)  # another process may delete it, too
        if is_new:
            with contextlib.suppress(OSError):  # other processes may have written to the parent
                os.rmdir(parent)
