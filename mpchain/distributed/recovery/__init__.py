"""Continuing without lost ranks, from a copy of the training state in memory.

A loss takes all ranks through five states. When others are lost meanwhile, they begin again at the
second. No object holds the state: ranks reach it at different times, each where its program is.

Running
    Collectives work, and ``InMemoryCheckpoint.keep`` makes copies. ``Elasticity.check``, or its
    ``look`` in the watchdog's thread, finds a rank lost and revokes the communicator.
Revoked
    All calls of all ranks raise ``RanksLost`` (``Elasticity._has_lost``). ``Trainer``, or
    ``InMemoryCheckpoint.step``, catches it and calls ``go_back``; if nobody does, ``run_elastic``
    catches it. Both call ``comm.shrink``.
Agreed
    MPI's ``Shrink`` has returned the same ranks to all. ``Elasticity._rebuild`` makes the
    communicator anew, and all ranks agree that each of them could.
Shrunk
    The communicator works with fewer ranks, and ``fit_to_ranks`` was called. If all ranks have a
    copy, ``go_back`` restores it. If not, it raises the exception again (``has_shrunk``), and
    ``run_elastic`` begins ``main`` anew.
Restored
    All ranks have the state of the latest copy that all of them have. The loop that has called
    ``go_back`` continues from there: running.

With spare ranks ``go_back`` only notes the copies and marks the exception (``is_handled``).
``run_elastic`` catches it; ``Spares.begin_again`` takes the ranks from revoked to shrunk, and
``InMemoryCheckpoint.resume``, in the next ``main``, to restored.
"""

from mpchain.distributed.recovery.in_memory import InMemoryCheckpoint as InMemoryCheckpoint
from mpchain.distributed.recovery.in_memory import run_elastic as run_elastic
