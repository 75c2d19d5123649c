"""The memory of a CUDA graph, which is a separate memory pool.

A graph contains addresses, but owns no memory. The pool must keep the memory that the graph uses,
but other code may use this memory between two launches.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from mpchain.backends import cuda
from mpchain.typing import Array


class GraphMemory:
    """The memory pool of one graph of the current device.

    Attributes:
        stream: the stream of the capture. CuPy's pools keep free memory separately for each stream.

    Example:
        >>> memory = GraphMemory()  # doctest: +SKIP
        >>> with memory.serving():  # doctest: +SKIP
        ...     x = cupy.zeros(3)
    """

    def __init__(self) -> None:
        self._cuda = cuda.cupy.cuda
        self._pool = self._cuda.MemoryPool(_from_cuda)
        self.stream = self._cuda.Stream(non_blocking=True)

    def serving(self) -> contextlib.AbstractContextManager:
        """Returns a context manager within which arrays are allocated in this pool."""
        return self._cuda.using_allocator(self._pool.malloc)

    def is_short(self) -> bool:
        """Returns whether the GPU has less free memory than the graph needs."""
        free, _ = self._cuda.Device().mem_info
        return free < self._pool.total_bytes()

    def used_bytes(self) -> int:
        """Returns the number of bytes of this pool that arrays use."""
        return self._pool.used_bytes()

    def free(self) -> None:
        """Returns unused memory to CUDA, after the last launch of the graph."""
        self._pool.free_all_blocks()

    @contextlib.contextmanager
    def lent(self) -> Iterator[Any]:
        """Context manager: between launches, other arrays may use the memory of the graph.

        The next launch overwrites these arrays. The context manager yields a function that copies
        such an array into memory that no launch overwrites, and returns the copy.
        """
        outer, allocator = self._cuda.get_current_stream(), self._cuda.get_allocator()

        def moved_out(array: Array) -> Array:
            outer.wait_event(self.stream.record())
            with outer, self._cuda.using_allocator(allocator):
                copy = array.copy()
            self.stream.wait_event(outer.record())
            return copy

        self.stream.wait_event(outer.record())
        try:
            with self.stream, self.serving():
                yield moved_out
        finally:
            outer.wait_event(self.stream.record())


def _from_cuda(n_bytes):
    runtime = cuda.cupy.cuda.runtime
    try:
        memory = cuda.cupy.cuda.Memory(n_bytes)
    except runtime.CUDARuntimeError as error:
        if error.status != runtime.errorMemoryAllocation:
            raise
        # The error is not CUDA's error, because CuPy's pool would then return the graph's memory to
        # CUDA and retry.
        raise MemoryError("the GPU's memory does not suffice for a graph") from error
    return cuda.cupy.cuda.MemoryPointer(memory, 0)
