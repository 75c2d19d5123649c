"""The share of its host that each rank gets: threads for its cores."""

import itertools
import os
from collections.abc import Mapping

from .processes import find_program

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def cores() -> int:
    """Returns the number of physical cores that this process may use, also in a container.

    Example:
        >>> cores() >= 1
        True
    """
    usable = _usable_processors()
    siblings = set()
    for processor in usable:
        siblings.add(_read(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"))
    number = len(usable) if "" in siblings else len(siblings)
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit():
        number = min(number, -(-int(quota) // int(period)))
    return max(1, number)


def gpus(variables: Mapping[str, str]) -> list[str]:
    """Returns the names, for CUDA_VISIBLE_DEVICES, of the GPUs that this process may use.

    Args:
        variables: The environment; its list of devices is read as CUDA does.

    Example:
        >>> gpus({"CUDA_VISIBLE_DEVICES": "0,3,-1,1"})
        ['0', '3']
    """
    if "CUDA_VISIBLE_DEVICES" in variables:
        names = [name.strip() for name in variables["CUDA_VISIBLE_DEVICES"].split(",")]
        # As CUDA does: the first entry that names no device ends the list.
        return list(itertools.takewhile(_names_device, names))
    files = [name.removeprefix("nvidia") for name in os.listdir("/dev") if "nvidia" in name]
    number = sum(name.isdecimal() for name in files)
    if not number and find_program(["nvidia-smi"], os.get_exec_path()):
        # Under WSL there are no device files.
        with os.popen("nvidia-smi -L 2>/dev/null") as listing:
            number = sum(line.startswith("GPU ") for line in listing)
    return [str(i) for i in range(number)]


def rank_variables(variables: Mapping[str, str], local_size: int) -> dict[str, str]:
    """Returns the environment variables that give a rank its share of the host's cores.

    Each rank sees all GPUs of its host: programs choose one by the number of the rank there.

    Args:
        variables: The environment so far; it keeps the numbers of threads that it sets.
        local_size: Number of ranks on its host.

    Example:
        >>> rank_variables({"OMP_NUM_THREADS": "4"}, local_size=2)
        {}
    """
    if "OMP_NUM_THREADS" in variables:  # the others follow it
        return {}
    threads = str(max(1, cores() // local_size))
    return {name: threads for name in THREAD_VARIABLES if name not in variables}


def _names_device(name):
    return name.isdecimal() or name.startswith(("GPU-", "MIG-"))


def _usable_processors():
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _read(path):
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
