"""Finds the MPI library that mpi4py loads, without importing mpi4py."""

import contextlib
import importlib.machinery
import os
import sys

from .processes import ask

OPEN_MPI, MPICH = "Open MPI", "MPICH"
# These are the names that mpi4py's wheels try in each folder, in this order.
NAMES = ("libmpi.so", "libmpi.so.12", "libmpi.so.40")
DEBIANS = "libmpich.so.12"


def mpi4py() -> importlib.machinery.ModuleSpec | None:
    """Returns the module spec of mpi4py, without importing it; None if it is not installed.

    Unlike ``python -m``, this function ignores the working folder, which may contain a file named
    mpi4py.py.

    Example:
        >>> mpi4py().name  # doctest: +SKIP
        'mpi4py'
    """
    here = ""
    with contextlib.suppress(FileNotFoundError):
        here = os.getcwd()
    path = [folder for folder in sys.path if folder not in ("", here)]
    return importlib.machinery.PathFinder.find_spec("mpi4py", path)


def find() -> str | None:
    """Returns the path of the MPI library that mpi4py loads; None if mpi4py is not installed, or
    loads none.

    Example:
        >>> find()  # doctest: +SKIP
        '/usr/lib/libmpi.so.40'
    """
    package = mpi4py()
    if not package or not package.submodule_search_locations:
        return None
    folder = package.submodule_search_locations[0]
    path = None
    if any(name.startswith(("MPI.openmpi.", "MPI.mpich.")) for name in os.listdir(folder)):
        path = _find_as_wheel(os.environ)
    return os.path.realpath(path) if path else _ask()


def flavour(path: str) -> str | None:
    """Returns a library's flavor: ``OPEN_MPI``, ``MPICH`` (also for MPIs derived from it), or None
    if unknown.

    Example:
        >>> flavour("/usr/lib/libmpi.so.40"), flavour("libmpich.so.12"), flavour("libm.so")
        ('Open MPI', 'MPICH', None)
    """
    name = os.path.basename(os.path.realpath(path))
    if ".so.12" in name or "mpich" in name or "libmpi.12." in name:
        return MPICH
    return OPEN_MPI if ".so.40" in name or "libmpi.40." in name else None


def in_installation(program: str) -> list[str]:
    """Returns the paths of the MPI libraries of the installation to which a program belongs.

    Example:
        >>> in_installation("/nowhere/bin/mpirun")
        []
    """
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(program)))
    folders = [os.path.join(prefix, name) for name in ("lib", "lib64")]
    folders += [entry.path for folder in folders for entry in _entries(folder) if entry.is_dir()]
    names = (*NAMES, DEBIANS)
    return [path for folder in folders for name in names if _is_library(path := f"{folder}/{name}")]


def _find_as_wheel(variables):
    """Returns the library that a wheel of mpi4py finds; None if the dynamic loader must search for
    it."""
    if "mpi" in variables.get("LD_PRELOAD", ""):
        return None
    wanted = variables.get("MPI4PY_LIBMPI")
    places = wanted.split(os.pathsep) if wanted else [f"{prefix}/lib" for prefix in _prefixes()]
    for place in places:
        names = [f"{place}/{name}" for name in NAMES] if os.path.isdir(place) else [place]
        for path in names:
            if _is_library(path):
                return path
    return None


def _prefixes():
    site = sys.modules.get("site")
    prefixes = [sys.exec_prefix] if sys.exec_prefix != sys.base_exec_prefix else []
    if site and site.ENABLE_USER_SITE:
        prefixes.append(os.path.abspath(site.USER_BASE))
    if site and sys.base_exec_prefix in site.PREFIXES:
        prefixes.append(sys.base_exec_prefix)
    return [prefix for prefix in prefixes if prefix != "/usr"]


def _is_library(path):
    """Returns whether a file is a library; libmpi.so may be a text file for linkers."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _ask():
    """Returns the path of the library that mpi4py loads in a separate process; None if it fails."""
    path = ask([sys.executable, "-P", "-m", "mpi4py", "--mpi-library"]).strip().rpartition("\n")[2]
    return path if os.path.isfile(path) else None


def _entries(folder):
    try:
        return list(os.scandir(folder))
    except OSError:
        return []
