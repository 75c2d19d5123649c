"""Starts the record that ``mpchain-launch --record`` requests through an environment variable."""

import os

from mpchain.replays import program
from mpchain.replays.recording import Recorder

VARIABLE = "MPCHAIN_RECORD"
"""Environment variable that names the folder of the record."""


def start() -> Recorder | None:
    """Starts recording if the environment variable is set, and removes the variable: processes that
    the program starts are not ranks.

    >>> start() is None
    True
    """
    folder = os.environ.pop(VARIABLE, "")
    if not folder:
        return None
    recorder = Recorder(folder, program.describe())
    recorder.__enter__()
    return recorder
