"""Finds the rank of this process from the environment variables of its starter."""

from collections.abc import Mapping

# Each starter sets variables for the rank and the number of ranks, in the job and on this host. The
# innermost starter comes first: mpirun runs inside a Slurm allocation, not the other way around. A
# PMIx server without a starter (the last row) sets only the rank.
_MPI = "OMPI_COMM_WORLD_"
STARTERS = {
    "Open MPI": (f"{_MPI}RANK", f"{_MPI}SIZE", f"{_MPI}LOCAL_RANK", f"{_MPI}LOCAL_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "PMIx": ("PMIX_RANK",),
}


class Environment:
    """The starter and the rank of this process; by default the shell, and rank 0 of 1.

    Attributes:
        starter: The name of the starter.
        rank, size: The rank of this process, and the number of ranks.
        local_rank, local_size: The rank among the ranks of this host, and their number.

    Example:
        >>> vars(Environment())
        {'starter': 'the shell', 'rank': 0, 'size': 1, 'local_rank': 0, 'local_size': 1}
    """

    def __init__(
        self,
        starter: str = "the shell",
        rank: int | None = None,
        size: int | None = None,
        local_rank: int | None = None,
        local_size: int | None = None,
    ):
        self.starter, self.rank, self.size = starter, rank or 0, size or 1
        self.local_rank = self.rank if local_rank is None else local_rank
        self.local_size = local_size or self.size


def detect(variables: Mapping[str, str]) -> Environment:
    """Returns the starter and the rank of this process.

    >>> here = detect({"PMI_RANK": "3", "PMI_SIZE": "8"})
    >>> here.starter, here.rank, here.size
    ('MPICH', 3, 8)
    """
    for starter, names in STARTERS.items():
        if names[0] in variables:
            return Environment(starter, *[_number(variables.get(name)) for name in names])
    return Environment()


def _number(text):
    # Slurm writes "2(x3)" for two tasks on each of three nodes, and "2,1" if nodes have different
    # numbers.
    return int(text.partition("(")[0].partition(",")[0]) if text else None
