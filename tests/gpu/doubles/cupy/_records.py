"""Records about memory, and the errors that follow from them."""

import weakref
from typing import NamedTuple

import numpy as np


class Work(NamedTuple):
    """A launch of a kernel.

    Attributes:
        name: the name of the kernel.
        n_bytes: the bytes of the arrays that the kernel reads and writes, each once.
        flops: the number of floating-point operations of a product; 0 for other kernels.
        grain: the bytes that a thread loads for one element; 0 if threads have several elements.
        copied: the bytes that a library copies in addition, to change the order of axes.
    """

    name: str
    n_bytes: int
    flops: float = 0.0
    grain: int = 0
    copied: int = 0


class RaceError(RuntimeError):
    """Two accesses to memory that no event and no wait orders."""


class CUDARuntimeError(RuntimeError):
    """An error that the CUDA runtime would return.

    Attributes:
        status: the number of the error if mpchain checks for it; -1 for other errors.
    """

    @property
    def status(self):
        return 2 if str(self).startswith("cudaErrorMemoryAllocation") else -1


class OutOfMemoryError(MemoryError):
    """A device has too little memory."""

    def __init__(self, size, held):
        super().__init__(
            f"Out of memory allocating {size:,} bytes (allocated so far: {held:,} bytes)."
        )


class CaptureError(RuntimeError):
    """A capture that would become a wrong graph, although CUDA does not notice."""


class History:
    """The accesses to a block of memory that later accesses must follow.

    Attributes:
        written: (stamp, line) of the last write, or None.
        read: (stamp, line) of the last read since this write, by the number of the stream.
    """

    def __init__(self):
        self.written, self.read = None, {}

    def stamps(self):
        """Returns the (stamp, line) of all accesses."""
        return [*self.read.values(), *filter(None, [self.written])]


class Fate:
    """The fate of a block of memory; this object outlives the block.

    Attributes:
        pool: a reference to the pool of the block.
        freed_at: the number of blocks that the pool had served when this block was freed; None
            while the block exists.
    """

    def __init__(self, pool):
        self.pool, self.freed_at = weakref.ref(pool), None


def bytes_of(host):
    """Returns the bytes of an array that owns its memory, with axes in any order."""
    order = np.argsort([-n for n in host.strides], kind="stable")
    found = host.transpose(order).reshape(-1)
    assert np.may_share_memory(found, host) or not host.size
    return found.view(np.uint8)
