"""Continuing without lost ranks, from a copy of the training state in memory."""

from mpchain.distributed.recovery.in_memory import InMemoryCheckpoint as InMemoryCheckpoint
from mpchain.distributed.recovery.in_memory import run_elastic as run_elastic
