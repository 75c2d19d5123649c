"""The memory that this process uses, on the host and on its GPU."""

import os
import sys

from mpchain.backends import cuda

try:
    import resource
except ImportError:  # a system without the module resource is not a POSIX system
    resource = None


def pool_bytes() -> int:
    """Returns the bytes of CuPy's memory pool that are in use; 0 without a GPU.

    >>> pool_bytes() >= 0
    True
    """
    return cuda.cupy.get_default_memory_pool().used_bytes() if cuda.available else 0


def resident_bytes() -> int:
    """Returns the resident memory of this process, in bytes; on systems without Linux's /proc,
    returns the peak.

    >>> resident_bytes() > 2**20
    True
    """
    try:
        file = _statm.get(os.getpid())
        if file is None:  # the file is opened again in a forked process
            file = _statm[os.getpid()] = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        return int(os.pread(file, 64, 0).split()[1]) * _PAGE
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    """Returns the peak memory of this process, in bytes; 0 if the peak is unknown.

    >>> peak_bytes() >= 0
    True
    """
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


_statm = {}
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
