"""What is noted of memory, and the errors that come of it."""

import weakref
from typing import NamedTuple

import numpy as np


class Work(NamedTuple):
    """A launch.

    Attributes:
        name: of the kernel.
        n_bytes: of the arrays that it reads and writes, each once.
        flops: of products, else 0.
        grain: bytes that a thread loads for an element, where each thread has one; else 0.
        copied: bytes that a library copies beside, to change the order of axes.
    """

    name: str
    n_bytes: int
    flops: float = 0.0
    grain: int = 0
    copied: int = 0


class RaceError(RuntimeError):
    """Two accesses to memory that no event and no wait puts in order."""


class CUDARuntimeError(RuntimeError):
    """An error that the CUDA runtime would return.

    Attributes:
        status: its number, of those that mpchain asks for; -1 for others.
    """

    @property
    def status(self):
        return 2 if str(self).startswith("cudaErrorMemoryAllocation") else -1


class OutOfMemoryError(MemoryError):
    """A device has not enough memory."""

    def __init__(self, size, held):
        super().__init__(
            f"Out of memory allocating {size:,} bytes (allocated so far: {held:,} bytes)."
        )


class CaptureError(RuntimeError):
    """What would become a wrong graph, though CUDA does not notice."""


class History:
    """The accesses to a block of memory that later ones need an order with.

    Attributes:
        written: (stamp, line) of the last write, or None.
        read: the same of reads since then, by the number of the stream.
    """

    def __init__(self):
        self.written, self.read = None, {}

    def stamps(self):
        """Returns all (stamp, line)."""
        return [*self.read.values(), *filter(None, [self.written])]


class Fate:
    """What became of a block of memory, which outlives it.

    Attributes:
        pool: refers to the pool that has the block.
        freed_at: how many blocks the pool had served when this one was freed; None if it lives.
    """

    def __init__(self, pool):
        self.pool, self.freed_at = weakref.ref(pool), None


def bytes_of(host):
    """The bytes of an array that owns its memory, whose axes are in any order."""
    order = np.argsort([-n for n in host.strides], kind="stable")
    found = host.transpose(order).reshape(-1)
    assert np.may_share_memory(found, host) or not host.size
    return found.view(np.uint8)
