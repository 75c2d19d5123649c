"""Facts about processes from Linux's ``/proc``; on other systems, all results are empty."""

import contextlib
import ctypes
import itertools
import os
from collections.abc import Callable


def read(path: str) -> str:
    """Returns the text of a file; empty if the file cannot be read.

    >>> read("/proc/none")
    ''
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def status(process: int | str) -> list[str]:
    """Returns the fields of ``/proc/<process>/stat``, starting with the state; empty if the process
    has ended.

    >>> status("none")
    []
    """
    return read(f"/proc/{process}/stat").rpartition(")")[2].split()


def libraries() -> list[str]:
    """Returns the paths of the shared libraries that this process has loaded, those of NumPy first.

    >>> [path for path in libraries() if "no such library" in path]
    []
    """
    lines = read("/proc/self/maps").splitlines()
    paths = {line.split(maxsplit=5)[-1].strip() for line in lines if ".so" in line}
    return sorted(paths, key=lambda path: ("numpy" not in path, path))


def openblas() -> list[tuple[Callable[[], int], Callable[[int], None]]]:
    """Returns, for each loaded OpenBLAS, a pair of functions that get and set its number of
    threads.

    >>> all(get() > 0 for get, set_ in openblas())
    True
    """
    found = []
    for path in libraries():
        if "openblas" in os.path.basename(path):
            with contextlib.suppress(OSError):
                found += itertools.islice(_thread_functions(ctypes.CDLL(path)), 1)
    return found


def _thread_functions(library):
    for prefix, suffix in itertools.product(("scipy_", ""), ("64_", "")):  # wheels rename functions
        with contextlib.suppress(AttributeError):
            get, set_ = (f"{prefix}openblas_{x}_num_threads{suffix}" for x in ("get", "set"))
            yield library[get], library[set_]
