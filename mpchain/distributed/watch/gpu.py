"""A communicator's work on a GPU: if a rank is missing, the work hangs there, not on the host.

NCCL's calls return before the work is done. Any thread may query CUDA's events to see if the work
is done.
"""

from collections.abc import Callable
from typing import Any

from mpchain.backends import cuda
from mpchain.observers import current


class GpuWork:
    """The work of one NCCL communicator.

    Args:
        nccl: the rank's connection, with the methods ``find_error`` and ``abort``.
        device: the communicator's GPU.
        own_stream: the ``cupy.cuda.Stream`` that the communicator uses besides the current stream.
    """

    def __init__(self, nccl: Any, device: Any, own_stream: Any):
        self._device, self._own_stream = device, own_stream
        self.find_error: Callable[[], str | None] = nccl.find_error
        self.abort: Callable[[], None] = nccl.abort

    def mark(self) -> Callable[[], bool]:
        """Returns a function that returns whether all work begun before this call is done."""
        # During a capture, no work has begun, and the events of the capture must not be queried.
        if current.graph is not None:
            return lambda: True
        events = []
        with self._device:
            for stream in (cuda.cupy.cuda.get_current_stream(), self._own_stream):
                event = cuda.cupy.cuda.Event(disable_timing=True)
                event.record(stream)
                events.append(event)
        return lambda: all(event.done for event in events)
