"""Starts a program on N ranks, supervises them and reports how they ended.

``mpchain-launch -n 2 train.py`` and ``python -m mpchain.launch -n 2 train.py`` do the same. The
launcher uses only the standard library and does not import mpchain. The first form starts
faster, because the second imports the enclosing package.

The launcher starts mpirun, which starts one guard per rank (rank.py). A guard forks a supervisor in
a session that mpirun does not signal. The supervisor runs the program, sends the program's output
and its end to the launcher (messages.py), and ends the program when the launcher asks for it, or
when the launcher or the guard is gone.
"""

# The module _signal has all that this file needs of the module signal, which is slow to import.
import _signal


def main(arguments: list[str] | None = None) -> int:
    """Runs the command `mpchain-launch`; see `cli.main`.

    Example:
        >>> main(["--version"])  # doctest: +SKIP
        mpchain-launch 0.1.0
    """
    # Until the launcher has started a process, Ctrl-C just ends this process, without a traceback.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from . import cli

    try:
        if _signal.getsignal(_signal.SIGINT) == _signal.SIG_DFL:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        return cli.main(arguments)
    except KeyboardInterrupt:  # cli.main could not handle the signal yet
        return 130
