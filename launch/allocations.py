"""The hosts that a batch system allocated: one object for each kind of batch system."""

import os
import re
from collections.abc import Iterable, Mapping


class Allocation:
    """A kind of batch system.

    Args:
        name: The name of the batch system in messages.
        variables: Names of environment variables. The batch system sets at least one of them, to
            the path of a file that lists the hosts. An empty tuple stands for no batch system.
        remote_shell: Command that runs another command on a host, as mpirun itself runs it there.

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
        """Returns whether this batch system allocated hosts, given the environment variables."""
        return not self.variables or any(name in variables for name in self.variables)

    def slots(self, variables: Mapping[str, str]) -> dict[str, int]:
        """Returns the number of ranks for each host; an empty dict means this host, without a
        limit."""
        paths = [variables[name] for name in self.variables if name in variables]
        return read_host_file(paths[0]) if paths else {}


class _Slurm(Allocation):
    """The hosts that Slurm allocated to a batch script or a shell; it lists them in its own
    format."""

    COUNTS = ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE")

    def slots(self, variables):
        # Hosts are separated by the commas outside of brackets: "a[1-2,07],b" holds two items.
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
        number, _, times = item.rstrip(")").partition(
            "(x"
        )  # "4(x3)" means 4 ranks on each of 3 hosts
        return [int(number)] * int(times or 1)


SLURM = _Slurm(
    "Slurm", ("SLURM_JOB_NODELIST",), ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist")
)
PBS = Allocation("PBS", ("PBS_NODEFILE",))  # Torque, too; the file has one line per slot
LSF = Allocation("LSF", ("LSB_DJOB_HOSTFILE",), ("blaunch",))  # the file has one line per slot
# The file has a line for each host, with its slots, queue and processors.
GRID_ENGINE = Allocation("Grid Engine", ("PE_HOSTFILE",), ("qrsh", "-inherit"))
# In an MPIJob's launcher, the MPI operator of Kubernetes sets these variables to a file that lists
# the workers.
_OF_OPERATOR = ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile")
_OF_OPERATOR += ("I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE")
KUBERNETES = Allocation("the MPI operator of Kubernetes", _OF_OPERATOR)
LOCAL = Allocation("no batch system")  # ranks run on this host, in any number
ALLOCATIONS = (SLURM, PBS, LSF, GRID_ENGINE, KUBERNETES, LOCAL)


def detect(variables: Mapping[str, str]) -> Allocation:
    """Returns the batch system that allocated hosts to this job.

    >>> variables = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "4(x2),2"}
    >>> detect(variables).slots(variables)
    {'n1': 4, 'n2': 4, 'n3': 2}
    """
    return next(kind for kind in ALLOCATIONS if kind.detect(variables))


def read_host_file(path: str | os.PathLike) -> dict[str, int]:
    """Returns the number of slots of each host in a file that lists hosts, one per line.

    A line is ``host``, ``host:2``, ``host slots=2`` or ``host 2``; the rest of the line is ignored,
    and so are comments (``#``). If a host is listed several times, its numbers of slots are added.

    Raises:
        ValueError: If a line does not have one of these forms.

    Example:
        >>> read_host_file(os.devnull)
        {}
    """
    items = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            name, *words = re.split(r"[\s:]+", line.partition("#")[0].strip())
            count = words[0].removeprefix("slots=") if words else "1"
            if "=" in count:  # "max_slots=4" is accepted, too
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
        # ssh would take a name that begins with a dash for an option.
        if not (re.fullmatch(r"\w[\w.-]*", name) and count.isdecimal() and int(count)):
            raise ValueError(source)
        slots[name] = slots.get(name, 0) + int(count)
    return slots
