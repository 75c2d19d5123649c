"""Environment variables of MPI launchers, which are read before MPI is loaded."""

import os
from collections.abc import Mapping

SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",  # Open MPI
    "PMI_SIZE",  # MPICH, Intel MPI, Cray
    "MV2_COMM_WORLD_SIZE",  # MVAPICH
    "SLURM_STEP_NUM_TASKS",  # srun
)
RANK_VARIABLES = ("PMIX_RANK",)
TORCHRUN, TORCHRUN_SIZE = "TORCHELASTIC_RUN_ID", "WORLD_SIZE"


def launched(environ: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """Returns the launcher's variable and the least number of ranks; None without a launcher.

    >>> launched({"PMI_SIZE": "4"})
    ('PMI_SIZE', 4)
    """
    for name in SIZE_VARIABLES + (TORCHRUN_SIZE,) * (TORCHRUN in environ):
        if environ.get(name, "").isdecimal():
            return name, int(environ[name])
    for name in RANK_VARIABLES:
        if environ.get(name, "").isdecimal():
            return name, int(environ[name]) + 1
    return None
