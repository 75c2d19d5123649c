"""Checkpoints that all ranks write together and any number of ranks can load."""

from mpchain.distributed.checkpoints.extension import Checkpoint, checkpoint
from mpchain.distributed.checkpoints.reading import load_checkpoint
from mpchain.distributed.checkpoints.writing import save_checkpoint

__all__ = ["Checkpoint", "checkpoint", "load_checkpoint", "save_checkpoint"]
