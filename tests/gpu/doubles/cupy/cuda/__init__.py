"""Devices, streams, events and memory."""

from cupy._graphs import Graph
from cupy._machine import (
    Device,
    Event,
    MemoryHook,
    MemoryPointer,
    MemoryPool,
    PinnedMemoryPointer,
    Stream,
    alloc_pinned_memory,
    get_allocator,
    get_current_stream,
    null_stream,
    pool,
    using_allocator,
)
from cupy._machine import DeviceMemory as Memory
from cupy.cuda import cublas, nccl, nvtx, runtime

Stream.null = null_stream(0)


def is_available():
    """Returns True, because the imitated devices are always present."""
    return True


def get_device_id():
    """Returns the number of the current device."""
    return Device().id


def get_cublas_handle():
    """Returns the handle of the current device."""
    import cublas_double

    cublas_double.load()
    return Device().id + 1


def get_elapsed_time(start_event, end_event):
    """Returns the milliseconds between two events."""
    if not (start_event._is_timing and end_event._is_timing):
        raise runtime.CUDARuntimeError("cudaErrorInvalidResourceHandle: invalid resource handle")
    return 1000 * (end_event._seconds - start_event._seconds)


def get_default_memory_pool():
    """Returns the pool of device memory."""
    return pool


def get_default_pinned_memory_pool():
    """Returns a pool that counts nothing."""
    return MemoryPool()
