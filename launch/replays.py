"""The commands ``replay`` and ``diff``, which start a program of mpchain."""

import importlib.util
import os
import sys

from .talk import WRONG_USE, say


def main(arguments: list[str]) -> int:
    """Replaces this process with :mod:`mpchain.replays`, which runs the user's program.

    Args:
        arguments: The command, ``replay`` or ``diff``, and its arguments.

    Example:
        >>> main(["replay", "record", "--step", "3"])  # doctest: +SKIP
    """
    if not is_there():
        say(f"{arguments[0]} needs the annex 'replays', which this copy of mpchain lacks")
        return WRONG_USE
    command = [sys.executable, "-m", "mpchain.replays", *arguments]
    try:
        os.execv(sys.executable, command)
    except OSError as error:
        say(f"cannot start {sys.executable}: {error.strerror}")
        return WRONG_USE


def is_there() -> bool:
    """Returns whether this mpchain contains the annex replays.

    Example:
        >>> is_there()
        True
    """
    spec = importlib.util.find_spec("mpchain")  # finding the package imports nothing
    folders = (spec and spec.submodule_search_locations) or ()
    return any(os.path.isdir(os.path.join(folder, "replays")) for folder in folders)
