"""The C library's memory allocator, from which NumPy gets the memory of its arrays."""

import ctypes
import os
import sys
from collections.abc import Mapping

import numpy as np

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Makes the C library keep the freed memory of arrays below 32 MiB for later arrays.

    GNU's C library returns large arrays to the system as soon as they are freed. The next step
    therefore gets new pages, each of which the system first fills with zeros, which takes up to a
    third of the step's time. With this function, the peak memory of training stays the same, but
    memory is not returned between steps. Arrays of 32 MiB and more get huge pages from the system,
    which cost little.

    ``Trainer.run``, :func:`mpchain.capture`, and communicators of programs that ``mpchain-launch``
    has started call this function. A program with its own loop should call it before its first
    step.

    Args:
        environment: environment variables. If one of them configures GNU's allocator, as
            ``MALLOC_TRIM_THRESHOLD_`` does, the function changes nothing.

    Returns:
        Whether the C library now keeps freed memory; False for C libraries other than GNU's.

    Example:
        >>> keep_freed_memory({"MALLOC_TRIM_THRESHOLD_": "131072"})
        False
    """
    is_set = any(name in environment for name in _VARIABLES)
    if is_set or "glibc.malloc" in environment.get("GLIBC_TUNABLES", "") or os.name != "posix":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 25) and mallopt(_TRIM_THRESHOLD, -1))


def address(x: np.ndarray) -> ctypes.c_void_p:
    """Returns the address of an array's first element as an argument for C, while ``x`` exists.

    The function takes a tenth of the time of ``x.ctypes``, which matters for small arrays. It
    relies on facts of CPython, whose objects lie at their ``id``, and of NumPy, whose arrays store
    the address after the object header (ndarraytypes.h).

    Example:
        >>> x = np.zeros(2)
        >>> address(x).value == x.ctypes.data
        True
    """
    return _pointer_at(id(x) + _HEAD) if _IS_BEHIND_HEAD else ctypes.c_void_p(x.ctypes.data)


def _is_behind_head():
    x = np.empty(1)
    is_cpython = sys.implementation.name == "cpython"
    return is_cpython and _pointer_at(id(x) + _HEAD).value == x.ctypes.data


_HEAD, _pointer_at = object.__basicsize__, ctypes.c_void_p.from_address
_IS_BEHIND_HEAD = _is_behind_head()
