"""Notes from ranks to the launcher about lost ranks and waiting, for its report."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from mpchain.backends.host_memory import keep_freed_memory

VARIABLE = "MPCHAIN_LAUNCH_NOTES"
"""The environment variable for the file descriptor from which the launcher reads notes."""

STARTER = "mpchain_launch_starter"
"""The name of the module that starts a launched program; the program reports its progress to it."""

FORKED = (
    "mpchain: a process that a rank has forked ends by MPI_Finalize, which may wait forever: end "
    "it by os._exit(), or start it by multiprocessing or subprocess"
)

RESTART = 75
"""The exit code after which the launcher starts the job again from its last checkpoint."""


class NeedsRestartError(RuntimeError):
    """Training cannot continue without the lost ranks; the job must restart from its last
    checkpoint."""

    exit_code = RESTART


def note(event: str, **words: Any) -> None:
    """Sends an event to the launcher; does nothing without a launcher.

    Args:
        event: the name of the event; ``mpchain-launch`` understands ``killed``, ``lost``,
            ``replaced``, ``recovered`` and ``restart``.
        words: the event's data, for JSON.

    Example:
        >>> note("recovered", ranks=[3], iterations=2, seconds=0.4)
    """
    if place := os.environ.get(VARIABLE):
        line = json.dumps({"event": event, **words}).encode() + b"\n"
        with contextlib.suppress(OSError, ValueError):
            os.write(int(place), line)


@contextlib.contextmanager
def creating() -> Iterator[None]:
    """Context manager and decorator: reports to the launcher that this rank is creating a
    communicator.

    Meanwhile the rank waits for the other ranks, which no watchdog checks yet. Without a launcher,
    nothing is reported.

    A program that the launcher has started is assumed to train: from the first communicator on, the
    C library keeps memory that the program frees.

    >>> with creating():
    ...     pass
    """
    starter = sys.modules.get(STARTER)
    if starter is not None:
        starter.creates_communicator(ends=False)
        keep_freed_memory()
    try:
        yield
    finally:
        if starter is not None:
            starter.creates_communicator(ends=True)
