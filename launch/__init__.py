"""Starts a program on N ranks, watches over them and explains their end.

``mpchain-launch -n 2 train.py`` and ``python -m mpchain.launch -n 2 train.py`` are one command. It
needs the standard library alone, and imports nothing of mpchain; the first form starts faster,
because for the second Python imports the package around it.

The launcher starts mpirun, which starts one guard per rank (rank.py). A guard forks a supervisor
out of mpirun's reach, and the supervisor runs the program, sends what it prints and how it ended
to the launcher (messages.py), and ends it when told to, or when the launcher or its guard is gone.
"""

from .cli import main

__all__ = ["main"]
