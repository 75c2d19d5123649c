"""The record that ``mpchain-launch --record`` asks for, by an environment variable."""

import os

from mpchain.replays import program
from mpchain.replays.recording import Recorder

VARIABLE = "MPCHAIN_RECORD"
"""Names the folder of the record."""


def start() -> Recorder | None:
    """Starts recording if the variable is set, and removes it: processes that the program starts
    are none of the ranks.

    >>> start() is None
    True
    """
    folder = os.environ.pop(VARIABLE, "")
    if not folder:
        return None
    recorder = Recorder(folder, program.describe())
    recorder.__enter__()
    return recorder
