"""Work that a communicator has begun on a GPU: if a rank is missing, the work hangs, not the host.

NCCL's calls return before the work is done. Any thread may ask CUDA's events whether it is.
"""

from collections.abc import Callable
from typing import Any

from mpchain.backends import cuda


class GpuWork:
    """The work of one NCCL communicator.

    Args:
        nccl_comm: the ``cupy.cuda.nccl.NcclCommunicator``.
        own_stream: the ``cupy.cuda.Stream`` on which it works beside the current one.
    """

    def __init__(self, nccl_comm: Any, own_stream: Any):
        self._nccl_comm, self._own_stream = nccl_comm, own_stream

    def mark(self) -> Callable[[], bool]:
        """Returns a function that returns whether all work begun until now is done."""
        events = []
        for stream in (cuda.cupy.cuda.get_current_stream(), self._own_stream):
            event = cuda.cupy.cuda.Event(disable_timing=True)
            event.record(stream)
            events.append(event)
        return lambda: all(event.done for event in events)

    def find_error(self) -> str | None:
        """Returns an error of NCCL in the background, such as a broken connection; None if all is
        well."""
        try:
            self._nccl_comm.check_async_error()
        except cuda.cupy.cuda.nccl.NcclError as error:
            return f"NCCL has failed: {error}"
        return None

    def abort(self) -> None:
        """Ends the work; otherwise the process might not end."""
        self._nccl_comm.abort()
