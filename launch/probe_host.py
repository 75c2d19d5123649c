"""Prints facts about this host as JSON; the doctor starts this program on each host.

The arguments are the folder of the results; on another host, the doctor's addresses and port,
joined by commas; and in a container, folders that the container should share with the host. Each
answer is a string, a number, a list, or a dictionary. A question that fails gets a dictionary with
an ``error``; the version of a missing package is empty.
"""

import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version


def blas() -> str:
    """Returns the name and version of NumPy's BLAS.

    Example:
        >>> blas()  # doctest: +SKIP
        'scipy-openblas 0.3.30'
    """
    import numpy as np

    found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{found['name']} {found['version']}"


def mpi() -> str:
    """Returns the name and version of the MPI library that mpi4py loads.

    Example:
        >>> mpi()  # doctest: +SKIP
        'Open MPI v5.0.10'
    """
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI

    line = MPI.Get_library_version().replace("\0", "").partition("\n")[0]
    return " ".join(line.partition(", package")[0].split())


def cuda_aware() -> str:
    """Returns "yes" or "no": whether the MPI library accepts arrays on GPUs; "unknown" if it does
    not say, and an empty string without GPUs.

    Example:
        >>> cuda_aware()  # doctest: +SKIP
        'yes'
    """
    if not gpus():
        return ""  # started without mpirun, Open MPI would leave files behind
    # The code runs in a separate process, because MPICH aborts a process that asks before MPI_Init.
    code = "import ctypes; from mpi4py import MPI; library = ctypes.CDLL(MPI.__file__)\n"
    code += "print(['no', 'yes'][library.MPIX_Query_cuda_support()])"
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else "unknown"


def gpus() -> list[str]:
    """Returns the names of the GPUs.

    Example:
        >>> gpus()  # doctest: +SKIP
        ['NVIDIA H200', 'NVIDIA H200']
    """
    if not shutil.which("nvidia-smi"):
        return []
    return _nvidia_smi("--query-gpu=name", "--format=csv,noheader").splitlines()


def driver() -> str:
    """Returns the version of NVIDIA's driver.

    Example:
        >>> driver()  # doctest: +SKIP
        '580.65.06'
    """
    versions = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    return versions[0] if versions else ""


def topology() -> list[str]:
    """Returns the matrix of connections between the GPUs, as one line for each GPU.

    Example:
        >>> topology()  # doctest: +SKIP
        ['GPU0 X NV18', 'GPU1 NV18 X']
    """
    rows = _nvidia_smi("topo", "-m").splitlines()
    return [" ".join(row.split()) for row in rows if row.startswith("GPU")]


def cuda() -> str:
    """Returns the version of the CUDA runtime that CuPy uses.

    Example:
        >>> cuda()  # doctest: +SKIP
        '13.0'
    """
    import cupy

    number = cupy.cuda.runtime.runtimeGetVersion()
    return f"{number // 1000}.{number % 1000 // 10}"


def nccl() -> str:
    """Returns the version of NCCL.

    Example:
        >>> nccl()  # doctest: +SKIP
        '2.27.7'
    """
    from cupy.cuda import nccl

    number = nccl.get_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def shared_memory() -> int:
    """Returns the size of /dev/shm in bytes.

    Example:
        >>> shared_memory()  # doctest: +SKIP
        68719476736
    """
    return shutil.disk_usage("/dev/shm").total


def free_disk() -> int:
    """Returns the number of free bytes on the disk of the results.

    Example:
        >>> free_disk()  # doctest: +SKIP
        68719476736
    """
    folder = os.path.abspath(sys.argv[1])
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free


def temporary_files() -> int:
    """Returns the number of free bytes in the folder of temporary files.

    Example:
        >>> temporary_files()  # doctest: +SKIP
        68719476736
    """
    return shutil.disk_usage(tempfile.gettempdir()).free


def locked_memory(adapters: str = "/sys/class/infiniband") -> int:
    """Returns the bytes that a process may lock for InfiniBand; -1 without a limit or an adapter.

    Args:
        adapters: The folder in which the kernel lists the adapters.

    Example:
        >>> locked_memory("/nowhere")
        -1
    """
    if not os.path.isdir(adapters) or not os.listdir(adapters):
        return -1
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return -1 if limit == resource.RLIM_INFINITY else limit


def container(root: str = "/") -> str:
    """Returns the kind of container in which this process runs; empty outside of containers.

    Args:
        root: The root of the file system.

    Example:
        >>> container("/nowhere")  # doctest: +SKIP
        ''
    """
    for variable in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if os.environ.get(variable):
            return variable.partition("_")[0].capitalize()
    marks = {os.path.join("run", ".containerenv"): "Podman", ".dockerenv": "Docker"}
    return next((marks[x] for x in marks if os.path.exists(os.path.join(root, x))), "")


def process_limit() -> int:
    """Returns the number of processes and threads that this user may start; -1 without a limit.

    Example:
        >>> process_limit() != 0
        True
    """
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return -1 if limit == resource.RLIM_INFINITY or os.geteuid() == 0 else limit


def address_space() -> int:
    """Returns the bytes of virtual memory that a process may map; -1 without a limit.

    Example:
        >>> address_space() != 0
        True
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return -1 if limit == resource.RLIM_INFINITY else limit


def memory(root: str = "/") -> int:
    """Returns the bytes of memory that this job may use: the least of the limits of its cgroups and
    the memory of the host.

    Args:
        root: The root of the file system.

    Example:
        >>> memory() > 0
        True
    """
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, controllers, group = line.split(":", 2)
        kinds = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}
        if controllers in kinds:
            folder, name = kinds[controllers]
            place = os.path.join(root, "sys/fs/cgroup", folder)
            # The limits of a group's parents apply, too.
            for part in ["", *group.strip("/").split("/")]:
                place = os.path.join(place, part)
                text = _read(os.path.join(place, name)).strip()
                sizes += [int(text)] if text.isdecimal() else []
    return min(sizes)


def folders() -> dict[str, object]:
    """Returns the kind of container, folders that ranks cannot write, and the folder of results if
    it vanishes with its container.

    Example:
        >>> sorted(folders())  # doctest: +SKIP
        ['container', 'inside', 'unwritable']
    """
    kind, results = container(), os.path.abspath(sys.argv[1])
    while not os.path.exists(results):
        results = os.path.dirname(results)
    places = dict.fromkeys([results, tempfile.gettempdir()])
    unwritable = [place for place in places if not os.access(place, os.W_OK)]
    inside = [results] if kind and os.stat(results).st_dev == os.stat("/").st_dev else []
    return {"container": kind, "unwritable": unwritable, "inside": inside}


def connection() -> str:
    """Returns "yes" if this host can reach the doctor on its port, or "not needed" if no port was
    passed; otherwise raises OSError.

    Example:
        >>> connection()  # doctest: +SKIP
        'yes'
    """
    if len(sys.argv) < 3 or not sys.argv[2]:
        return "not needed"
    *addresses, port = sys.argv[2].split(",")
    last = OSError("the doctor has passed no address")
    for address in addresses:
        try:
            socket.create_connection((address, int(port)), timeout=5.0).close()
            return "yes"
        except OSError as error:
            last = error
    raise last


def identities(places: list[str]) -> dict[str, list[int] | None]:
    """Returns numbers that identify each folder, on the host or in a container; None for a folder
    that is missing.

    Args:
        places: The folders.

    Example:
        >>> identities(["/nowhere"])
        {'/nowhere': None}
    """
    found = {}
    for place in places:
        exists = os.path.exists(place)
        found[place] = [os.stat(place).st_dev, os.stat(place).st_ino] if exists else None
    return found


def adapters(folder: str = "/sys/class/infiniband") -> list[str]:
    """Returns the names of the adapters of InfiniBand and similar networks.

    Args:
        folder: The folder in which the kernel lists the adapters.

    Example:
        >>> adapters("/nowhere")
        []
    """
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def mpchain() -> str:
    """Returns the version of mpchain.

    Example:
        >>> mpchain()  # doctest: +SKIP
        '0.1.0'
    """
    import mpchain

    return mpchain.__version__


QUESTIONS = {
    "python": platform.python_version,
    "mpchain": mpchain,
    "numpy": lambda: version("numpy"),
    "blas": blas,
    "numba": lambda: version("numba"),
    "onednn": lambda: version("onednn-cpu-gomp"),
    "mpi4py": lambda: version("mpi4py"),
    **{question.__name__: question for question in (mpi, cuda_aware, driver, gpus, topology)},
    **{"cuda": cuda, "nccl": nccl, "cudnn": lambda: version("nvidia-cudnn-cu13")},
    **{"shared_memory": shared_memory, "free_disk": free_disk},
    **{question.__name__: question for question in (temporary_files, locked_memory, container)},
    **{question.__name__: question for question in (process_limit, address_space, memory)},
    **{question.__name__: question for question in (folders, connection, adapters)},
    **{"places": lambda: identities(sys.argv[3:]), "clock": time.time},
}


def _read(path):
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


def _nvidia_smi(*arguments):
    command = ["nvidia-smi", *arguments]
    return subprocess.check_output(command, stderr=subprocess.PIPE, text=True, timeout=60)


def _ask(question):
    try:
        return question()
    except PackageNotFoundError:
        return ""
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}


def main() -> None:
    """Prints the answers to all questions.

    Example:
        >>> main()  # doctest: +SKIP
        {"host": "n1", "python": "3.13.1", ...}
    """
    answers = {name: _ask(question) for name, question in QUESTIONS.items()}
    print(json.dumps({"host": socket.gethostname(), **answers}))


if __name__ == "__main__":
    main()
