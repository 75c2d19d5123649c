"""Starts a program on N ranks, watches over them and explains their end.

``mpchain-launch -n 2 train.py`` and ``python -m mpchain.launch -n 2 train.py`` are one command. It
needs the standard library alone, and imports nothing of mpchain; the first form starts faster,
because for the second Python imports the package around it.

The launcher starts mpirun, which starts one guard per rank (rank.py). A guard forks a supervisor
out of mpirun's reach, and the supervisor runs the program, sends what it prints and how it ended
to the launcher (messages.py), and ends it when told to, or when the launcher or its guard is gone.
"""

import signal


def main(arguments: list[str] | None = None) -> int:
    """Runs the command `mpchain-launch`; see `cli.main`."""
    # Before anything is started, Ctrl-C needs no more than to end this process without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from . import cli

    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main(arguments)
