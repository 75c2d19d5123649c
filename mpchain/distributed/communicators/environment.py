"""Environment variables of MPI launchers, which are read before MPI is loaded."""

import os
from collections.abc import Mapping

SLURM_SIZE = "SLURM_STEP_NUM_TASKS"  # srun
SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",  # Open MPI
    "PMI_SIZE",  # MPICH, Intel MPI, Cray
    "MV2_COMM_WORLD_SIZE",  # MVAPICH
    SLURM_SIZE,
)
RANK_VARIABLES = ("PMIX_RANK",)
TORCHRUN_SIZE = "WORLD_SIZE"
TORCHRUN = ("TORCHELASTIC_RUN_ID",), ("RANK", "LOCAL_RANK")  # torchrun, and launchers like it

SPARES_VARIABLE = "MPCHAIN_SPARES"


def n_spares(environ: Mapping[str, str] = os.environ) -> int:
    """Returns the number of spare ranks, which are the last ranks of the job.

    >>> n_spares({"MPCHAIN_SPARES": "2"})
    2
    """
    return int(environ.get(SPARES_VARIABLE) or 0)


def launched(environ: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """Returns the launcher's variable and the least number of ranks; None without a launcher.

    >>> launched({"PMI_SIZE": "4"})
    ('PMI_SIZE', 4)
    """
    is_torchrun = any(all(name in environ for name in names) for names in TORCHRUN)
    for name in SIZE_VARIABLES + (TORCHRUN_SIZE,) * is_torchrun:
        if environ.get(name, "").isdecimal():
            return name, int(environ[name])
    for name in RANK_VARIABLES:
        if environ.get(name, "").isdecimal():
            return name, int(environ[name]) + 1
    return None
