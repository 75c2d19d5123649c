"""The commands about records, which a program of mpchain runs."""

import os
import sys

from .talk import WRONG_USE, say


def main(arguments: list[str]) -> int:
    """Replaces this process by :mod:`mpchain.replays`, in which the user's program is to run.

    Args:
        arguments: The command, ``replay`` or ``diff``, and its arguments.

    Example:
        >>> main(["replay", "record", "--step", "3"])  # doctest: +SKIP
    """
    command = [sys.executable, "-m", "mpchain.replays", *arguments]
    try:
        os.execv(sys.executable, command)
    except OSError as error:
        say(f"cannot start {sys.executable}: {error.strerror}")
        return WRONG_USE
