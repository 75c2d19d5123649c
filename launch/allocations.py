"""The hosts that a batch system lets us use: one class for each kind of batch system."""

import os
import re


class Local:
    """No batch system: this host alone, with as many ranks as one likes."""

    name = "no batch system"
    # What starts a command on one of the hosts, which mpirun does by itself in the same way.
    remote_shell = ("ssh",)

    @classmethod
    def detect(cls, variables) -> bool:
        """Whether it allocated hosts to us; the variables are those of the environment."""
        return True

    @classmethod
    def slots(cls, variables) -> dict[str, int]:
        """Number of ranks for each host; empty if this host alone is used, without limit."""
        return {}


class Slurm(Local):
    """Hosts that Slurm allocated to a batch script or a shell."""

    name = "Slurm"
    remote_shell = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist")
    LIST = "SLURM_JOB_NODELIST"
    COUNTS = ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE")

    @classmethod
    def detect(cls, variables) -> bool:
        return cls.LIST in variables

    @classmethod
    def slots(cls, variables) -> dict[str, int]:
        # Commas between hosts, but not those inside brackets: "a[1-2,07],b" holds two items.
        items = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", variables[cls.LIST])
        hosts = [host for item in items for host in cls._expand(item)]
        counts = next((variables[name] for name in cls.COUNTS if name in variables), "")
        counts = [number for item in counts.split(",") if item for number in cls._repeat(item)]
        return {host: counts[i] if i < len(counts) else 1 for i, host in enumerate(hosts)}

    @classmethod
    def _expand(cls, item):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", item)
        if not match:
            return [item]
        before, ranges, after = match.groups()
        hosts = []
        for span in ranges.split(","):
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                hosts += cls._expand(f"{before}{number:0{len(first)}d}{after}")
        return hosts

    @classmethod
    def _repeat(cls, item):
        number, _, times = item.rstrip(")").partition("(x")  # "4(x3)" for three hosts alike
        return [int(number)] * int(times or 1)


class _HostFile(Local):
    """Hosts that a batch system wrote into a file, whose path an environment variable holds."""

    FILE = ""

    @classmethod
    def detect(cls, variables) -> bool:
        return cls.FILE in variables

    @classmethod
    def slots(cls, variables) -> dict[str, int]:
        return read_host_file(variables[cls.FILE])


class Pbs(_HostFile):
    """Hosts of PBS or Torque: a line for each slot."""

    name, FILE = "PBS", "PBS_NODEFILE"


class Lsf(_HostFile):
    """Hosts of LSF: a line for each slot."""

    name, FILE = "LSF", "LSB_DJOB_HOSTFILE"
    remote_shell = ("blaunch",)


class GridEngine(_HostFile):
    """Hosts of Grid Engine: a line for each host, with its slots, queue and processors."""

    name, FILE = "Grid Engine", "PE_HOSTFILE"
    remote_shell = ("qrsh", "-inherit")


class Kubernetes(_HostFile):
    """The workers of an MPIJob, seen from its launcher; the MPI operator wrote the file."""

    name = "the MPI operator of Kubernetes"
    FILES = (
        "OMPI_MCA_orte_default_hostfile",
        "PRTE_MCA_prte_default_hostfile",
        "I_MPI_HYDRA_HOST_FILE",
        "HYDRA_HOST_FILE",
    )

    @classmethod
    def detect(cls, variables) -> bool:
        return any(name in variables for name in cls.FILES)

    @classmethod
    def slots(cls, variables) -> dict[str, int]:
        return read_host_file(next(variables[name] for name in cls.FILES if name in variables))


ALLOCATIONS = (Slurm, Pbs, Lsf, GridEngine, Kubernetes, Local)


def detect(variables) -> type[Local]:
    """The batch system that allocated hosts to us."""
    return next(kind for kind in ALLOCATIONS if kind.detect(variables))


def read_host_file(path: str | os.PathLike) -> dict[str, int]:
    """Number of slots of each host in a file that lists hosts, one a line.

    A line is ``host``, ``host:2``, ``host slots=2`` or ``host 2``; what follows is not read, nor
    what follows a ``#``. The numbers of a host that is named several times are added.

    Raises:
        ValueError: If a line does not begin with the name of a host and a number.
    """
    slots = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = re.split(r"[\s:]+", line.partition("#")[0].strip())
            if not words[0]:
                continue
            count = words[1].removeprefix("slots=") if len(words) > 1 else "1"
            if "=" in count:  # such as "max_slots=4"
                count = "1"
            if not _is_host(words[0], count):
                raise ValueError(f"line {number} of {path}: {line.strip()!r}")
            slots[words[0]] = slots.get(words[0], 0) + int(count)
    return slots


def read_hosts(text: str) -> dict[str, int]:
    """Number of slots of each host in a list such as ``a:2,b:2``, or ``a,b`` for one slot each.

    Raises:
        ValueError: If an item is not the name of a host, with or without a number.
    """
    slots = {}
    for item in text.split(","):
        name, colon, count = item.strip().partition(":")
        count = count if colon else "1"
        if not _is_host(name, count):
            raise ValueError(repr(item.strip()))
        slots[name] = slots.get(name, 0) + int(count)
    return slots


def _is_host(name, count):
    # No ssh takes such a name for an option.
    return re.fullmatch(r"\w[\w.-]*", name) and count.isdecimal() and int(count)
