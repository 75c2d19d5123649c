"""What the environment variables of MPI launchers tell before MPI itself is asked."""

import os

SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",  # Open MPI
    "PMI_SIZE",  # MPICH, Intel MPI, Cray
    "MV2_COMM_WORLD_SIZE",  # MVAPICH
    "SLURM_STEP_NUM_TASKS",  # srun
)
RANK_VARIABLES = ("PMIX_RANK",)
TORCHRUN, TORCHRUN_SIZE = "TORCHELASTIC_RUN_ID", "WORLD_SIZE"


def launched(environ=os.environ):
    """Returns (variable, least number of ranks) as the launcher has it; None without a launcher."""
    for name in SIZE_VARIABLES + (TORCHRUN_SIZE,) * (TORCHRUN in environ):
        if environ.get(name, "").isdecimal():
            return name, int(environ[name])
    for name in RANK_VARIABLES:
        if environ.get(name, "").isdecimal():
            return name, int(environ[name]) + 1
    return None
