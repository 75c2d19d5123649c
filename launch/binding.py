"""Gives each rank its share of its host: a number of threads and, on request, exclusive cores."""

import contextlib
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from .processes import find_program, read

# The variable holds the mode of binding: ranks get exclusive cores, or share a NUMA domain's cores.
VARIABLE = "MPCHAIN_BIND"
MODES = ("none", "cores", "numa")
_GPUS = "/proc/driver/nvidia/gpus"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def cores() -> int:
    """Returns the number of physical cores that this process may use, even in a container.

    Example:
        >>> cores() >= 1
        True
    """
    number, limit = len(_whole_cores()), quota()
    return max(1, number if limit is None else min(number, math.ceil(limit)))


def quota() -> float | None:
    """Returns the CPU time per second that the control groups allow; None without a limit.

    The limits of this process's group and of all enclosing groups apply. The function reads both
    versions of control groups.

    Example:
        >>> (quota() or 1.0) > 0
        True
    """
    limits = []
    for line in read("/proc/self/cgroup").splitlines() or ["0::/"]:
        _, controllers, group = line.split(":", 2)
        place = "/sys/fs/cgroup" + "/cpu" * bool(controllers)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for part in ["", *filter(None, group.split("/"))]:
            place += f"/{part}" * bool(part)
            most, _, period = read(f"{place}/cpu.max").partition(" ")
            if controllers:
                most, period = (read(f"{place}/cpu.cfs_{x}_us") for x in ("quota", "period"))
            if most.isdigit() and period.isdigit():
                limits.append(int(most) / int(period))
    return min(limits, default=None)


def share(
    mode: str, rank: int, n: int, job: str, wanted: Sequence[int | None] = ()
) -> tuple[Set[int], str]:
    """Returns the processors to which a rank is bound and "", or an empty set and the reason.

    Args:
        mode: ``"cores"`` gives each rank the same number of whole cores, from one NUMA domain if
            possible; ``"numa"`` gives each rank all cores of a domain, or of several domains.
        rank: The number of the rank on its host.
        n: The number of ranks on that host.
        job: The name of the job; only processes of this job may be bound already.
        wanted: The NUMA domain of each rank's GPU, or None if it is unknown.

    Example:
        >>> share("cores", rank=0, n=10**6, job="")[0]
        set()
    """
    domains = _domains()
    every = [core for domain in domains.values() for core in domain]
    limit = quota()
    if limit is not None and limit < len(every):
        return set(), f"the CPU quota of {limit:g} cores does not name cores to bind ranks to"
    if len(every) < n:
        return set(), f"{n} ranks have only {len(every)} cores"
    if other := _somebody_bound(set().union(*every), job):
        return set(), f"{other} is bound to some of the cores"
    if mode == "cores":
        parts = _parts(list(domains.values()), every, n)
        homes = [next((d for d in domains if part[0] in domains[d]), None) for part in parts]
        return set().union(*parts[_place(rank, n, homes, wanted)]), ""
    if rank < len(wanted) and wanted[rank] in domains:
        return set().union(*domains[wanted[rank]]), ""
    first, last = rank * len(domains) // n, (rank + 1) * len(domains) // n
    chosen = list(domains.values())[first : max(last, first + 1)]
    return set().union(*itertools.chain(*chosen)), ""


@contextlib.contextmanager
def bound(processors: Set[int]) -> Iterator[None]:
    """Context manager: restricts this thread to the given processors, if there are any.

    Example:
        >>> with bound(set()):
        ...     pass
    """
    before = os.sched_getaffinity(0) if processors else None
    if before:
        os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        if before:
            os.sched_setaffinity(0, before)


def _place(rank, n, homes, wanted):
    """Returns the index of a rank's part of the cores, if possible in the domain of its GPU."""
    free = list(range(len(homes)))
    chosen = {}
    for i, domain in enumerate(wanted[:n]):
        if fitting := [place for place in free if domain is not None and homes[place] == domain]:
            chosen[i] = fitting[0]
            free.remove(fitting[0])
    others = iter(free)
    return {i: chosen[i] if i in chosen else next(others) for i in range(n)}[rank]


def _parts(domains, every, n):
    """Divides cores among ranks evenly; if possible, each part lies in one domain."""
    per = len(every) // n
    parts = [
        domain[i : i + per] for domain in domains for i in range(0, len(domain) - per + 1, per)
    ]
    return parts if len(parts) >= n else [every[i * per : (i + 1) * per] for i in range(n)]


def _domains():
    """Returns the usable cores of each NUMA domain, as sets of processors."""
    domain_of = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/sys/devices/system/node"):
            if name.startswith("node") and name[4:].isdigit():
                listing = read(f"/sys/devices/system/node/{name}/cpulist")
                domain_of |= dict.fromkeys(numbers(listing), int(name[4:]))
    domains = {}
    for core in _whole_cores():
        domains.setdefault(domain_of.get(min(core), 0), []).append(core)
    return dict(sorted(domains.items()))


def _whole_cores():
    """Returns the physical cores that this process may use, each as a set of usable processors."""
    usable, found = _usable_processors(), {}
    for processor in sorted(usable):
        path = f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        siblings = numbers(read(path)) & usable or {processor}
        found[min(siblings)] = siblings
    return [found[first] for first in sorted(found)]


def _somebody_bound(usable, job):
    """Returns the name of another job's process that is bound to some of the processors, if any."""
    for process in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        try:
            allowed = os.sched_getaffinity(int(process))
            with open(f"/proc/{process}/cmdline", "rb") as file:
                is_program = bool(file.read(1))  # kernel threads have no command line
        except (OSError, AttributeError):
            continue
        if is_program and allowed & usable and not allowed >= usable:
            with contextlib.suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:
                if job and job.encode() in file.read():
                    continue
            return f"process {process} ({read(f'/proc/{process}/comm')})"
    return ""


def numbers(listing: str) -> set[int]:
    """Returns the numbers in a list in Linux's format, such as ``0-3,8``.

    Example:
        >>> sorted(numbers("0-2,8"))
        [0, 1, 2, 8]
    """
    found = set()
    for span in filter(None, listing.split(",")):
        first, _, last = span.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def gpus(variables: Mapping[str, str]) -> list[str]:
    """Returns the names, for CUDA_VISIBLE_DEVICES, of the GPUs that this process may use.

    Args:
        variables: The environment variables; the list of devices is read as CUDA reads it.

    Example:
        >>> gpus({"CUDA_VISIBLE_DEVICES": "0,3,-1,1"})
        ['0', '3']
    """
    if "CUDA_VISIBLE_DEVICES" in variables:
        names = [name.strip() for name in variables["CUDA_VISIBLE_DEVICES"].split(",")]
        # As in CUDA, the first entry that does not name a device ends the list.
        return list(itertools.takewhile(_names_device, names))
    files = [name.removeprefix("nvidia") for name in os.listdir("/dev") if "nvidia" in name]
    number = sum(name.isdecimal() for name in files)
    if not number and find_program(["nvidia-smi"], os.get_exec_path()):
        # WSL has no device files for GPUs.
        with os.popen("nvidia-smi -L 2>/dev/null") as listing:
            number = sum(line.startswith("GPU ") for line in listing)
    return [str(i) for i in range(number)]


def gpu_domains(variables: Mapping[str, str], n: int) -> list[int | None]:
    """Returns the NUMA domain of the GPU of each rank on this host, or None where it is unknown; an
    empty list if no domain is known, or there is no GPU.
    Programs choose a GPU by the rank's number on its host. CUDA numbers GPUs of one model by their
    position on the PCI bus.

    Args:
        variables: The same as in `gpus`.
        n: The number of ranks on this host.

    Example:
        >>> gpu_domains({"CUDA_VISIBLE_DEVICES": ""}, 2)
        []
    """
    domains, uuids = {}, {}
    with contextlib.suppress(OSError):
        for i, place in enumerate(sorted(os.listdir(_GPUS))):
            domain = read(f"/sys/bus/pci/devices/{place.lower()}/numa_node")
            if domain.isdecimal():  # the file holds -1 if there are no domains
                domains[str(i)] = int(domain)
            text = read(f"{_GPUS}/{place}/information").partition("GPU UUID:")[2]
            uuids[text.split()[0] if text else str(i)] = str(i)
    if not domains:
        return []
    found = []
    for name in gpus(variables):  # CUDA accepts a prefix of a UUID
        number = next((i for uuid, i in uuids.items() if uuid.startswith(name)), None)
        found.append(domains.get(name if name.isdecimal() else number))
    return [found[i % len(found)] for i in range(n)] if found else []


def rank_variables(variables: Mapping[str, str], local_size: int) -> dict[str, str]:
    """Returns the environment variables that give a rank its share of the host's cores.

    Each rank sees all GPUs of its host; programs choose a GPU by the rank's number on the host.

    Args:
        variables: The environment variables so far; existing settings for numbers of threads are
            kept.
        local_size: The number of ranks on this host.

    Example:
        >>> rank_variables({"OMP_NUM_THREADS": "4"}, local_size=2)
        {}
    """
    if "OMP_NUM_THREADS" in variables:  # MKL and OpenBLAS follow this variable
        return {}
    threads = str(max(1, cores() // local_size))
    return {name: threads for name in THREAD_VARIABLES if name not in variables}


def _names_device(name):
    return name.isdecimal() or name.startswith(("GPU-", "MIG-"))


def _usable_processors():
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def listing(numbers: Iterable[int]) -> str:
    """Returns numbers (of processors or ranks) as a list in Linux's format.

    Example:
        >>> listing({0, 1, 2, 8})
        '0-2,8'
    """
    spans = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in spans)
