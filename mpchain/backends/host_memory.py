"""The memory of the C library, from which NumPy takes that of arrays."""

import ctypes
import os
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Makes the C library keep freed memory for later arrays, except those of 32 MiB and more.

    GNU's C library returns large arrays to the system as soon as they are freed. So the next step
    gets new pages, each of which the system first fills with zeros: up to a third of the step's
    time. The peak of a training's memory stays the same; between steps it is not returned. Still
    larger arrays get huge pages from the system, which costs little.

    Args:
        environment: if its variables set GNU's allocator, as ``MALLOC_TRIM_THRESHOLD_`` does, then
            nothing is changed.

    Returns:
        Whether the C library keeps it now; False with others than GNU's.

    Example:
        >>> keep_freed_memory({"MALLOC_TRIM_THRESHOLD_": "131072"})
        False
    """
    is_set = any(name in environment for name in _VARIABLES)
    if is_set or "glibc.malloc" in environment.get("GLIBC_TUNABLES", "") or os.name != "posix":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 25) and mallopt(_TRIM_THRESHOLD, -1))
