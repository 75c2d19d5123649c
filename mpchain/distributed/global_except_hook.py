"""Ends all ranks when one rank ends by an exception.

MPI lets the other ranks of a job wait forever for a rank that raised an exception. With this hook
the job ends within a moment, and the exception is printed with its rank.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping

ENVIRONMENT_VARIABLES = (
    "CHAINERMN_FORCE_ABORT_ON_EXCEPTION",
    "CHAINERMN_FORCE_ABORT_ON_EXCEPTIONS",
)


class Recorder:
    """Holds the function that is called before the ranks are aborted.

    Attributes:
        record: function that gets the reason of the abort and returns the text to print, which it
            may extend; None leaves the text unchanged.
    """

    record: Callable[[str], str] | None = None


recorder = Recorder()


def add_hook() -> None:
    """Makes an uncaught exception print ``rank r of n:`` and its traceback, and abort all ranks.

    The hook also handles exceptions in threads, because the program might otherwise wait forever.
    A communicator of several ranks installs the hook by itself. If MPI is not in use, or the job
    has one rank, the hook calls the previous hook instead. Calling ``add_hook`` again changes
    nothing.

    Example:
        ::

            mpchain.distributed.global_except_hook.add_hook()
    """
    for module in (sys, threading):
        hook = module.excepthook
        if not isinstance(hook, _AbortAllRanks):
            vars(module)["excepthook"] = _AbortAllRanks(hook)


def add_hook_if_asked(environ: Mapping[str, str] = os.environ) -> None:
    """Installs the hook if one of ``ENVIRONMENT_VARIABLES`` is set to anything but 0.

    >>> add_hook_if_asked({"CHAINERMN_FORCE_ABORT_ON_EXCEPTION": "0"})
    """
    if any(environ.get(name, "0") not in ("", "0") for name in ENVIRONMENT_VARIABLES):
        add_hook()


class _AbortAllRanks:
    """The hook, which accepts the arguments of ``sys.excepthook`` and ``threading.excepthook``."""

    def __init__(self, previous):
        self.previous = previous

    def __call__(self, *args):
        exc_type, exc_value, exc_traceback, *threads = args[0] if len(args) == 1 else args
        world = _running_world()
        if world is None or (threads and exc_type is SystemExit):  # a thread may end by SystemExit
            self.previous(*args)
            return
        where = "".join(f"exception in thread {t.name!r}\n" for t in threads if t is not None)
        text = "".join(traceback.format_exception(exc_type, exc_value, exc_traceback))
        if recorder.record is not None:
            text = f"{recorder.record(text.rstrip())}\n"
        sys.stdout.flush()
        # The text is written in one call, so that the lines of several failing ranks do not mix.
        sys.stderr.write(f"rank {world.rank} of {world.size}:\n{where}{text}")
        sys.stderr.flush()
        world.Abort(getattr(exc_value, "exit_code", 1))


def _running_world():
    """Returns ``MPI.COMM_WORLD``; None if MPI is not running or the job has one rank."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.size == 1:
        return None
    return mpi.COMM_WORLD
