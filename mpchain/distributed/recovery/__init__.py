"""Continuing without lost ranks, from a copy of the training state in memory.

A loss takes all ranks through five states. If more ranks are lost meanwhile, the surviving ranks
begin again at the second state. No object holds the state: ranks reach it at different times, at
different places in the program.

Running
    Collectives work, and ``InMemoryCheckpoint.keep`` makes copies. ``Elasticity.check``, or its
    ``look`` in the watchdog's thread, finds a rank lost and revokes the communicator.
Revoked
    All calls of all ranks raise ``RanksLost`` (``Elasticity._has_lost``). ``Trainer``, or
    ``InMemoryCheckpoint.step``, catches the exception and calls ``go_back``; if neither does,
    ``run_elastic`` catches it. Both call ``comm.shrink``.
Agreed
    MPI's ``Shrink`` has returned the same ranks to all ranks. ``Elasticity._rebuild`` rebuilds the
    communicator, and all ranks agree that each of them could.
Shrunk
    The communicator works with fewer ranks, and ``fit_to_ranks`` was called. If all ranks have a
    copy, ``go_back`` restores it. If not, ``go_back`` raises the exception again (``has_shrunk``),
    and ``run_elastic`` begins ``main`` anew.
Restored
    All ranks have the state of the latest copy that all of them have. The loop that has called
    ``go_back`` continues from there, so the state is "running" again.

With spare ranks, ``go_back`` only records the copies and marks the exception (``is_handled``).
``run_elastic`` catches the exception; ``Spares.begin_again`` takes the ranks from revoked to
shrunk, and ``InMemoryCheckpoint.resume``, in the next ``main``, to restored.
"""

from mpchain.distributed.recovery.in_memory import InMemoryCheckpoint as InMemoryCheckpoint
from mpchain.distributed.recovery.in_memory import run_elastic as run_elastic
