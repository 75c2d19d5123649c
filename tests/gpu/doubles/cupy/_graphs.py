"""Captures of streams, and the graphs that they produce.

Captured work is computed, because the shapes of results are needed, but without effect: at the end,
memory that existed before gets its values back, and new memory is filled with NaN. A graph computes
all of the work again at the same addresses. Like CUDA's graphs, it keeps no memory, but it notices
memory that was freed and may have got another owner.
"""

import weakref

from cupy import _machine
from cupy._machine import get_current_stream, ledger, place
from cupy._records import CaptureError, CUDARuntimeError, History, bytes_of


class _Use:
    """A graph's use of a block of memory; ``is_made`` if the graph writes the block before it reads
    it."""

    def __init__(self, memory, is_made):
        self.memory, self.fate, self.line = weakref.ref(memory), memory.fate, memory.line
        self.is_made = is_made
        self.history, self.writes = History(), False

    def why_lost(self, n_served):
        """Returns why the memory may belong to another array, or None."""
        if self.memory() is not None:
            return None
        pool = self.fate.pool()
        if pool is None:
            return "was returned to CUDA with its pool"
        since = max(self.fate.freed_at, n_served[pool])
        if self.is_made and pool.returned_at <= since and not pool.serves_since(since):
            return None  # the graph overwrites values that others have written meanwhile
        if pool is _machine.pool or pool.n_served > since:
            return "was freed and may have another owner"
        return None


class Capture:
    """Work that is being captured.

    Args:
        origin: the stream that began.
    """

    def __init__(self, origin):
        self.origin, self.streams = origin, [origin]
        self._uses, self._saved, self._made, self.work = {}, {}, {}, []
        self._invalid = False

    def refuse(self, code, what):
        """Raises CUDA's error for a call that makes the graph impossible."""
        self._invalid = True
        raise CUDARuntimeError(f"cudaErrorStreamCapture{code}: {what}")

    def allocate(self, memory):
        """Records memory that is allocated in a stream that captures; raises CaptureError if it is
        from the pool that all share."""
        if memory.fate.pool() is _machine.pool:
            self._invalid = True
            raise CaptureError(
                "memory is allocated from the pool that all share, in a stream that captures: "
                "others would get it before the graph runs: use a pool of its own"
            )
        self._made[id(memory.host)] = memory.host

    def refuse_outside(self, memory):
        """Raises CUDARuntimeError if a stream outside of the capture uses memory of the graph."""
        if id(memory.host) in self._made:
            self.refuse("Isolation", "a stream that does not capture uses what the graph computes")

    def keep(self, arrays):
        """Keeps the values of arrays that are about to be used."""
        self.keep_blocks([array._memory for array in arrays])

    def keep_blocks(self, blocks):
        """Keeps the values of blocks of memory."""
        for host in [block.host for block in blocks]:
            if id(host) not in self._made and id(host) not in self._saved:
                self._saved[id(host)] = host, host.copy()

    def history_of(self, memory, writes):
        """Returns the accesses to memory within this capture."""
        if memory.fate not in self._uses:
            self._uses[memory.fate] = _Use(memory, id(memory.host) in self._made)
        use = self._uses[memory.fate]
        use.writes |= writes
        return use.history

    def stamps_of(self, memory):
        """Returns the stamps of the accesses within this capture."""
        use = self._uses.get(memory.fate)
        return [] if use is None else use.history.stamps()

    def end(self, stream):
        """Undoes the computed work; returns the graph, or raises CUDARuntimeError if there is
        none."""
        is_unjoined = any(
            not stream._knows((other._number, other._clock[other._number]))
            for other in self.streams
        )
        for other in self.streams:
            other.capture = None
        for host, values in self._saved.values():
            host[...] = values
        for host in self._made.values():
            bytes_of(host)[...] = 0xFF
        for what, is_so in (
            ("Unmatched", stream is not self.origin),
            ("Invalidated", self._invalid),
            ("Unjoined", is_unjoined),
        ):
            if is_so:
                raise CUDARuntimeError(f"cudaErrorStreamCapture{what}: there is no graph")
        return Graph._of(self)


class Graph:
    """A graph of captured work."""

    def __init__(self, *args, **kwargs):
        raise NotImplementedError(
            "currently this class cannot be initiated by the user and must be created via stream "
            "capture"
        )

    @classmethod
    def _of(cls, capture):
        self = object.__new__(cls)
        self._device_id = capture.origin.device_id
        self._uses, self._work = [*capture._uses.values()], capture.work
        pools = {use.fate.pool() for use in self._uses} - {None}
        self._n_served = weakref.WeakKeyDictionary({pool: pool.n_served for pool in pools})
        return self

    def upload(self, stream=None):
        """Does nothing, because the double needs no preparation."""

    def launch(self, stream=None):
        """Runs the work, as one piece of work of a stream."""
        stream = stream or get_current_stream()
        if stream.capture is not None:
            raise CaptureError("the double has no graphs within graphs")
        if stream.device_id != self._device_id:
            raise CUDARuntimeError("cudaErrorInvalidResourceHandle: a stream of another device")
        for use in self._uses:
            if why := use.why_lost(self._n_served):
                fault = f"a graph uses memory, allocated at {use.line}, that {why}"
                ledger.faults.append(fault)
                raise CaptureError(fault)
        ledger.launches["graph", place()] += 1
        for use in self._uses:
            if (memory := use.memory()) is not None:
                memory.access(stream, use.writes)
        for again in self._work:
            again()


def in_use():
    """Returns the capture in which the current stream takes part, or None."""
    return get_current_stream().capture


def refuse_library(name):
    """Raises NotImplementedError in a stream that captures, as CuPy does for the library."""
    if in_use() is not None:
        raise NotImplementedError(
            f"calling {name} API during stream capture is currently unsupported"
        )


def refuse_copy():
    """Raises CaptureError for a copy from the host in a stream that captures."""
    if in_use() is not None:
        in_use()._invalid = True
        raise CaptureError(
            "a copy from the host's memory is captured by its address: each launch would copy "
            "what is there by then"
        )
