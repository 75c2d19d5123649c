"""What those who start processes tell them in the environment: one class for each of them."""


class Environment:
    """The process was started by nobody in particular: rank 0 of 1.

    A subclass names the environment variables of one starter; `detect` says whether they are there.

    Args:
        variables: The environment, a mapping of strings.
    """

    starter = "the shell"
    RANK = SIZE = LOCAL_RANK = LOCAL_SIZE = ""

    def __init__(self, variables):
        self._variables = variables

    @classmethod
    def detect(cls, variables) -> bool:
        """Whether this starter started the process."""
        return cls.RANK in variables or not cls.RANK

    @property
    def rank(self) -> int:
        """Number of this process among all."""
        return self._number(self.RANK, 0)

    @property
    def size(self) -> int:
        """Number of all processes."""
        return self._number(self.SIZE, 1)

    @property
    def local_rank(self) -> int:
        """Number of this process among those of its host."""
        return self._number(self.LOCAL_RANK, self.rank)

    @property
    def local_size(self) -> int:
        """Number of processes on this host."""
        return self._number(self.LOCAL_SIZE, self.size)

    def _number(self, name, default):
        # Slurm writes "2(x3)" for two tasks on each of three nodes, and "2,1" where they differ.
        text = self._variables.get(name) or str(default)
        return int(text.partition("(")[0].partition(",")[0])


class OpenMpi(Environment):
    """Started by the mpirun of Open MPI."""

    starter = "Open MPI"
    RANK, SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
    LOCAL_RANK, LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"


class Hydra(Environment):
    """Started by the mpirun of MPICH or of one of its relatives."""

    starter = "MPICH"
    RANK, SIZE = "PMI_RANK", "PMI_SIZE"
    LOCAL_RANK, LOCAL_SIZE = "MPI_LOCALRANKID", "MPI_LOCALNRANKS"


class Slurm(Environment):
    """Started by srun."""

    starter = "Slurm"
    RANK, SIZE = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"
    LOCAL_RANK, LOCAL_SIZE = "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"


class Pmix(Environment):
    """Started by some other server of PMIx, which tells no more than the rank."""

    starter = "PMIx"
    RANK = "PMIX_RANK"


# The innermost starter first: mpirun inside a Slurm allocation, not the other way round.
STARTERS = (OpenMpi, Hydra, Slurm, Pmix, Environment)


def detect(variables) -> Environment:
    """Who started this process, and as which rank."""
    return next(kind for kind in STARTERS if kind.detect(variables))(variables)
