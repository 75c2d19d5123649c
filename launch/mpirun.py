"""The programs that start ranks: mpirun of Open MPI, mpirun of MPICH, or nothing for one rank."""

import os
import subprocess
import sys

from .processes import find_program


class UnknownMpirunError(Exception):
    """A program named mpirun that is neither Open MPI's nor MPICH's."""


class Direct:
    """Starts the only rank itself."""

    path = None
    # A rank that calls MPI_Abort is ended by mpirun like all others. MPICH's says in words that it
    # did, and makes a noise if it is not ended at once; Open MPI's is known by ending by itself.
    patience = 0.0

    def command(self, n, oversubscribed):
        """Arguments that come before the program."""
        return []

    def variables(self, environment):
        """Environment variables to be added."""
        return {}


class Mpich(Direct):
    """The mpirun of MPICH, called Hydra, or of a relative (Intel MPI, MVAPICH)."""

    def __init__(self, path):
        self.path = path

    def command(self, n, oversubscribed):
        """Arguments that come before the program; there may be any number of ranks."""
        return [self.path, "-n", str(n)]


class OpenMpi(Mpich):
    """The mpirun of Open MPI."""

    patience = 0.5

    def command(self, n, oversubscribed):
        """Arguments that come before the program.

        Open MPI would tie each rank, with all its threads, to one core, and two jobs to the same.
        """
        options = ["--oversubscribe"] if oversubscribed else []
        return [self.path, *options, "--bind-to", "none", "-n", str(n)]

    def variables(self, environment):
        """The two variables without which it refuses to run as root."""
        names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        if os.geteuid() != 0:
            return {}
        return {name: "1" for name in names if environment.get(name) != "1"}


def find() -> Direct | None:
    """The mpirun of the running interpreter's environment, else the first one in PATH, else None.

    Raises:
        UnknownMpirunError: If the program found is of an unknown kind; the message says what it is.
    """
    own = [os.path.dirname(sys.executable), os.path.join(sys.prefix, "bin")]
    path = find_program(["mpirun", "mpiexec"], own + os.get_exec_path())
    return path and _recognize(path)


def _recognize(path):
    answer = subprocess.run(
        [path, "--version"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        text=True,
        errors="replace",
        check=False,
    ).stdout
    if "Open MPI" in answer:
        return OpenMpi(path)
    if any(name in answer for name in ("HYDRA", "MPICH", "Intel(R) MPI")):
        return Mpich(path)
    said = answer.strip().partition("\n")[0]
    raise UnknownMpirunError(f"{path} is neither Open MPI's nor MPICH's: it says {said!r}")
