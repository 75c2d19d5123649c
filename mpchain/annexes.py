"""Annexes: parts that mpchain works without.

To delete an annex, remove its folders and its line in :data:`ANNEXES`. Other code then still works,
but a call that needs the deleted annex raises an error that names the annex.

Files outside an annex import it only with :func:`load`, :func:`find` and :func:`later`, as
``tests/test_import_table.py`` checks. ``tests/tools/annexes.py`` deletes annexes.
"""

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

ANNEXES = {
    "captured": "mpchain/captured",
    "compat": "mpchain/compat",
    "gpu_doctor": "mpchain/gpu_doctor",
    "gpu_kernels": "mpchain/kernels/gpu",
    "interop": "mpchain/exporters mpchain/interop",
    "launcher": "launch",
    "metrics": "mpchain/metrics",
    "page": "mpchain/page",
    "profiling": "mpchain/profiling",
    "prove": "mpchain/prove",
    "recovery": "mpchain/distributed/recovery",
    "replays": "mpchain/replays",
    "transforms": "mpchain/transforms",
}
"""The folders of each annex, by the annex's name."""


class MissingAnnexError(ImportError):
    """Raised when code needs an annex that is not installed.

    Example:
        >>> from mpchain import annexes
        >>> annexes.require("no_such_annex", "StandardUpdater: graph=True")
        Traceback (most recent call last):
        mpchain.annexes.MissingAnnexError: StandardUpdater: graph=True needs the annex \
'no_such_annex', which this copy of mpchain lacks: mpchain/annexes.py does not list it
    """


def require(annex: str, asker: str) -> None:
    """Raises MissingAnnexError if an annex is not installed.

    Args:
        annex: the annex's name in :data:`ANNEXES`.
        asker: what needs the annex, such as a function or its option; the error's message begins
            with this text.

    Example:
        >>> from mpchain import annexes
        >>> annexes.require("page", "PageReport")
    """
    if annex not in ANNEXES:
        raise MissingAnnexError(
            f"{asker} needs the annex {annex!r}, which this copy of mpchain lacks: "
            "mpchain/annexes.py does not list it"
        )


def load(annex: str, module: str, asker: str) -> ModuleType:
    """Imports and returns a module of an annex.

    Args:
        annex: the annex's name in :data:`ANNEXES`.
        module: name of the module below ``mpchain``.
        asker: see :func:`require`.

    Raises:
        MissingAnnexError: the annex is not installed.

    Example:
        >>> from mpchain import annexes
        >>> annexes.load("captured", "captured", "mpchain.capture").capture
        <function capture at ...>
    """
    require(annex, asker)
    return importlib.import_module(f"mpchain.{module}")


def library(module: str, message: str) -> ModuleType:
    """Imports and returns a module of a library that mpchain works without.

    Args:
        module: the name of the module.
        message: text of the RuntimeError that is raised if the import fails; ``{error}`` in the
            text is replaced by the import's error.

    Example:
        >>> from mpchain import annexes
        >>> annexes.library("no_such_library", "plot needs no_such_library ({error})")
        Traceback (most recent call last):
        RuntimeError: plot needs no_such_library (No module named 'no_such_library')
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RuntimeError(message.format(error=error)) from error


def find(annex: str, module: str) -> ModuleType | None:
    """Imports and returns a module of an annex; returns None if the annex is not installed.

    Args:
        annex, module: see :func:`load`.

    Example:
        >>> from mpchain import annexes
        >>> annexes.find("no_such_annex", "a.b") is None
        True
    """
    return load(annex, module, "") if annex in ANNEXES else None


def present(table: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Returns the names in a table that belong to installed annexes, each with its annex and its
    entry in the table.

    Args:
        table: for each annex, the names that a package shows: ``module`` or ``module:name``,
            separated by spaces, with modules named relative to ``mpchain``.

    Example:
        >>> from mpchain import annexes
        >>> annexes.present({"captured": "captured:capture", "no_such_annex": "a.b"})
        {'capture': ('captured', 'captured:capture')}
    """
    return {name: place for name, place in _places(table).items() if place[0] in ANNEXES}


def _places(table):
    return {
        re.split("[.:]", where)[-1]: (annex, where)
        for annex, places in table.items()
        for where in places.split()
    }


def later(
    package: str, table: Mapping[str, str], otherwise: Callable[[str], Any]
) -> Callable[[str], Any]:
    """Returns a ``__getattr__`` for a package; it imports names of annexes when they are first
    used.

    Args:
        package: the package's name.
        table: see :func:`present`.
        otherwise: the package's ``__getattr__`` for all other names.

    Example:
        >>> mpchain.links.caffe.__name__
        'mpchain.exporters.caffe_function'
    """
    places = _places(table)

    def __getattr__(name: str) -> Any:
        if name not in places:
            return otherwise(name)
        annex, (module, _, attribute) = places[name][0], places[name][1].partition(":")
        try:
            found = load(annex, module, f"{package}.{name}")
        except MissingAnnexError as error:
            raise AttributeError(str(error), name=name) from None
        value = getattr(found, attribute) if attribute else found
        vars(sys.modules[package])[name] = value
        return value

    return __getattr__
