"""The hosts that a batch system lets us use: one class for each kind of batch system."""

import re


class SlurmAllocation:
    """The hosts that Slurm allocated to a batch script or a shell."""

    LIST = "SLURM_JOB_NODELIST"

    @classmethod
    def detect(cls, variables) -> bool:
        """Whether Slurm allocated hosts."""
        return cls.LIST in variables

    @classmethod
    def hosts(cls, variables) -> list[str]:
        """Their names."""
        # Commas between hosts, but not those inside brackets: "a[1-2,07],b" holds two items.
        items = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", variables[cls.LIST])
        return [host for item in items for host in cls._expand(item)]

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


class HostFile:
    """The hosts that PBS, LSF or Grid Engine wrote into a file."""

    FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE")

    @classmethod
    def detect(cls, variables) -> bool:
        """Whether a batch system wrote such a file."""
        return any(name in variables for name in cls.FILES)

    @classmethod
    def hosts(cls, variables) -> list[str]:
        """The names in it, each once: the first word of each line."""
        path = next(variables[name] for name in cls.FILES if name in variables)
        with open(path, encoding="utf-8") as file:
            return list(dict.fromkeys(line.split()[0] for line in file if line.strip()))


class Local:
    """No batch system: this host alone."""

    @classmethod
    def detect(cls, variables) -> bool:
        """Always."""
        return True

    @classmethod
    def hosts(cls, variables) -> list[str]:
        """One host, this one."""
        return ["localhost"]


ALLOCATIONS = (SlurmAllocation, HostFile, Local)


def hosts(variables) -> list[str]:
    """Names of the hosts that this job may use."""
    return next(kind for kind in ALLOCATIONS if kind.detect(variables)).hosts(variables)
