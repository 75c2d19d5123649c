"""Objects that tests of checkpoints save and load, and imitated ranks."""

import contextlib
import os

import numpy as np

from mpchain.distributed.checkpoints import manifests, reading, writing
from mpchain.distributed.communicators import Communicator


class Numbers:
    """An object that saves the given values."""

    def __init__(self, **values):
        self.values = values

    def serialize(self, serializer):
        for key, value in self.values.items():
            self.values[key] = serializer(key, value)


class Divided:
    """An object that saves a rank's part of an array, and loads the whole array."""

    whole = np.arange(20.0).reshape(4, 5)

    def __init__(self, rank, size):
        begin, end = 20 * rank // size, 20 * (rank + 1) // size
        self.begin, self.part = begin, self.whole.reshape(-1)[begin:end].copy()
        self.loaded = np.zeros((4, 5))

    def serialize(self, serializer):
        if hasattr(serializer, "part"):
            serializer.part("x", self.part, self.begin, (4, 5))
        else:
            self.loaded = serializer("x", self.loaded)


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def alone(comm, action, *args):
    """Lets rank 0 call a function that handles files, while the other ranks wait."""
    comm.barrier()
    if comm.rank == 0:
        action(*args)
    comm.barrier()


class Rank(Communicator):
    """One of several imitated ranks, which are all in this process."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size


def save_as(folder, targets, iteration=1):
    """Saves one object per imitated rank."""
    os.makedirs(folder, exist_ok=True)
    savings = [
        writing.Saving(str(folder), f"iteration_{iteration}", "run", Rank(r, len(targets)), x, -1)
        for r, x in enumerate(targets)
    ]
    for each in savings:
        each.wait()


def load_as(folder, targets, iteration=1):
    """Loads one object per imitated rank."""
    path = str(folder / f"iteration_{iteration}")
    manifest = manifests.read(path)
    for rank, target in enumerate(targets):
        with contextlib.ExitStack() as stack:
            values = reading.Values(path, manifest, rank, len(targets), stack)
            reading.restore("load_checkpoint", path, values, target)
    return targets
