"""Checkpoints that all ranks write together and any number of ranks can load."""

from mpchain.distributed.checkpoints.extension import Checkpoint, checkpoint
from mpchain.distributed.checkpoints.loading import load_checkpoint
from mpchain.distributed.checkpoints.saving import save_checkpoint

__all__ = ["Checkpoint", "checkpoint", "load_checkpoint", "save_checkpoint"]
