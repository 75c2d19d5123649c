"""What a communicator has begun on a GPU, where a missing rank makes the work hang, not the host.

NCCL's calls return before the work is done. Whether it is, events tell, which any thread may ask.
"""

from mpchain.backends import cuda


class GpuWork:
    """The work of one NCCL communicator.

    Args:
        nccl_comm (cupy.cuda.nccl.NcclCommunicator): the communicator.
        own_stream (cupy.cuda.Stream): the stream on which it works beside the current one.
    """

    def __init__(self, nccl_comm, own_stream):
        self._nccl_comm, self._own_stream = nccl_comm, own_stream

    def mark(self):
        """Returns a function that tells whether all that was begun until now is done."""
        events = []
        for stream in (cuda.cupy.cuda.get_current_stream(), self._own_stream):
            event = cuda.cupy.cuda.Event(disable_timing=True)
            event.record(stream)
            events.append(event)
        return lambda: all(event.done for event in events)

    def find_error(self):
        """Returns what NCCL has noticed meanwhile, such as a connection that broke; None if all is
        well."""
        try:
            self._nccl_comm.check_async_error()
        except cuda.cupy.cuda.nccl.NcclError as error:
            return f"NCCL has failed: {error}"
        return None

    def abort(self):
        """Ends the work: without that the process might not end either."""
        self._nccl_comm.abort()
