"""Checkpoints that all ranks write together and any number of ranks can load."""

from mpchain.distributed.checkpoints.extension import Checkpoint as Checkpoint
from mpchain.distributed.checkpoints.extension import checkpoint as checkpoint
from mpchain.distributed.checkpoints.reading import load_checkpoint as load_checkpoint
from mpchain.distributed.checkpoints.writing import save_checkpoint as save_checkpoint
