"""The memory of a CUDA graph: a pool that serves nothing else.

A graph owns no memory, only addresses. Its pool must keep the memory that the graph uses, but may
lend that memory to other code between two launches.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from mpchain.backends import cuda
from mpchain.typing import Array


class GraphMemory:
    """The memory pool of one graph of the current device.

    Attributes:
        stream: the stream of the capture. CuPy keeps free memory for the stream that it was
            allocated on.

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
        """Returns a context manager: within, arrays are allocated in this pool."""
        return self._cuda.using_allocator(self._pool.malloc)

    def is_short(self) -> bool:
        """Returns whether the GPU has less free memory than the graph needs."""
        free, _ = self._cuda.Device().mem_info
        return free < self._pool.total_bytes()

    def used_bytes(self) -> int:
        """Returns the number of bytes that arrays use."""
        return self._pool.used_bytes()

    def free(self) -> None:
        """Returns unused memory to CUDA, after the last launch of the graph."""
        self._pool.free_all_blocks()

    @contextlib.contextmanager
    def lent(self) -> Iterator[Any]:
        """Context manager: between launches, other arrays may use the memory of the graph.

        The next launch overwrites them. Yields a function that returns a copy of such an array in
        memory that no launch overwrites.
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
        # CUDA's own error would make the pool return the graph's memory to CUDA, and retry.
        raise MemoryError("the GPU's memory does not suffice for a graph") from error
    return cuda.cupy.cuda.MemoryPointer(memory, 0)
