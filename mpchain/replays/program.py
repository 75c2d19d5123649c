"""Describes the running program for a record, and runs the program of a record again."""

import hashlib
import os
import runpy
import sys
from importlib import metadata
from typing import Any

from mpchain.replays.records import FORMAT, RecordError

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables with numbers of threads, which may affect the bits of results."""


def describe() -> dict[str, Any]:
    """Returns the running program's description for the first line of a record."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    path = getattr(main, "__file__", None) or sys.argv[0]
    return {
        "format": FORMAT,
        "mpchain": metadata.version("mpchain"),
        "module": None if spec is None else spec.name.removesuffix(".__main__"),
        "script": os.path.abspath(path),
        "source": checksum_of(path),
        "arguments": sys.argv[1:],
        "folder": os.getcwd(),
        "threads": {name: os.environ[name] for name in THREADS if name in os.environ},
    }


def checksum_of(path: str) -> str | None:
    """Returns a checksum of a file; None if the file cannot be read.

    >>> checksum_of("missing") is None
    True
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return None


def check(about: dict[str, Any]) -> None:
    """Raises RecordError if the program of a record has changed, or is missing."""
    found = checksum_of(about["script"])
    if found is None:
        raise RecordError(f"the program of the record, {about['script']}, is missing: restore it")
    if found != about["source"]:
        raise RecordError(
            f"{about['script']} has changed since the record: restore it, or add --changed"
        )


def run(about: dict[str, Any]) -> None:
    """Runs the program of a record in this process, in the folder in which it ran."""
    os.chdir(about["folder"])
    sys.argv[:] = [about["script"], *about["arguments"]]
    if about["module"] is not None:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(about["module"], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(about["script"])))
        runpy.run_path(about["script"], run_name="__main__")
