"""The hosts that a batch system allocated: one row for each kind of batch system."""

import os
import re
from collections.abc import Iterable, Mapping


class Allocation:
    """A kind of batch system.

    Args:
        name: Its name in messages.
        variables: Names of environment variables, of which it sets one at least: the path of a file
            that lists the hosts. Without any, it stands for no batch system.
        remote_shell: Command that runs another one on a host, as mpirun does by itself.

    Example:
        >>> kind = Allocation("Slurm", ("SLURM_JOB_NODELIST",), ("srun",))
        >>> kind.detect({"SLURM_JOB_NODELIST": "n1"}), kind.detect({})
        (True, False)
    """

    def __init__(
        self, name: str, variables: tuple[str, ...] = (), remote_shell: tuple[str, ...] = ("ssh",)
    ):
        self.name, self.variables, self.remote_shell = name, variables, remote_shell

    def detect(self, variables: Mapping[str, str]) -> bool:
        """Returns whether it allocated hosts to us; the variables are those of the environment."""
        return not self.variables or any(name in variables for name in self.variables)

    def slots(self, variables: Mapping[str, str]) -> dict[str, int]:
        """Number of ranks for each host; empty if only this host is used, without limit."""
        paths = [variables[name] for name in self.variables if name in variables]
        return read_host_file(paths[0]) if paths else {}


class _Slurm(Allocation):
    """Hosts that Slurm allocated to a batch script or a shell, in its own compressed form."""

    COUNTS = ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE")

    def slots(self, variables):
        # Commas between hosts, but not those inside brackets: "a[1-2,07],b" holds two items.
        items = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", variables[self.variables[0]])
        hosts = [host for item in items for host in self._expand(item)]
        counts = next((variables[name] for name in self.COUNTS if name in variables), "")
        counts = [number for item in counts.split(",") if item for number in self._repeat(item)]
        return {host: counts[i] if i < len(counts) else 1 for i, host in enumerate(hosts)}

    def _expand(self, item):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", item)
        if not match:
            return [item]
        before, ranges, after = match.groups()
        hosts = []
        for span in ranges.split(","):
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                hosts += self._expand(f"{before}{number:0{len(first)}d}{after}")
        return hosts

    def _repeat(self, item):
        number, _, times = item.rstrip(")").partition("(x")  # "4(x3)" for three hosts alike
        return [int(number)] * int(times or 1)


SLURM = _Slurm(
    "Slurm", ("SLURM_JOB_NODELIST",), ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist")
)
PBS = Allocation("PBS", ("PBS_NODEFILE",))  # also Torque: a line for each slot
LSF = Allocation("LSF", ("LSB_DJOB_HOSTFILE",), ("blaunch",))  # a line for each slot
# A line for each host, with its slots, queue and processors.
GRID_ENGINE = Allocation("Grid Engine", ("PE_HOSTFILE",), ("qrsh", "-inherit"))
# The workers of an MPIJob, as its launcher sees them; the MPI operator wrote the file.
_OF_OPERATOR = ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile")
_OF_OPERATOR += ("I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE")
KUBERNETES = Allocation("the MPI operator of Kubernetes", _OF_OPERATOR)
LOCAL = Allocation("no batch system")  # only this host, with any number of ranks
ALLOCATIONS = (SLURM, PBS, LSF, GRID_ENGINE, KUBERNETES, LOCAL)


def detect(variables: Mapping[str, str]) -> Allocation:
    """Returns the batch system that allocated hosts to us.

    >>> variables = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "4(x2),2"}
    >>> detect(variables).slots(variables)
    {'n1': 4, 'n2': 4, 'n3': 2}
    """
    return next(kind for kind in ALLOCATIONS if kind.detect(variables))


def read_host_file(path: str | os.PathLike) -> dict[str, int]:
    """Returns the number of slots of each host in a file that lists hosts, one a line.

    A line is ``host``, ``host:2``, ``host slots=2`` or ``host 2``; what follows is not read, nor
    what follows a ``#``. The numbers of a host that is named several times are added.

    Raises:
        ValueError: If a line does not begin with the name of a host and a number.

    Example:
        >>> read_host_file(os.devnull)
        {}
    """
    items = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            name, *words = re.split(r"[\s:]+", line.partition("#")[0].strip())
            count = words[0].removeprefix("slots=") if words else "1"
            if "=" in count:  # "max_slots=4" is one
                count = "1"
            if name:
                items.append((name, count, f"line {number} of {path}: {line.strip()!r}"))
    return _add_up(items)


def read_hosts(text: str) -> dict[str, int]:
    """Returns the number of slots of each host in a list of hosts.

    >>> read_hosts("a:2,b")
    {'a': 2, 'b': 1}

    Raises:
        ValueError: If an item is not the name of a host, with or without a number.
    """
    items = []
    for item in map(str.strip, text.split(",")):
        name, colon, count = item.partition(":")
        items.append((name, count if colon else "1", repr(item)))
    return _add_up(items)


def _add_up(items: Iterable[tuple[str, str, str]]):
    slots = {}
    for name, count, source in items:
        # ssh must not take such a name for an option.
        if not (re.fullmatch(r"\w[\w.-]*", name) and count.isdecimal() and int(count)):
            raise ValueError(source)
        slots[name] = slots.get(name, 0) + int(count)
    return slots
