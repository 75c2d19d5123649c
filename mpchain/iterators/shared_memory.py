"""Objects that are sent between processes, with their arrays in shared memory.

Pickle's protocol 5 leaves the contents of arrays out of the pickled bytes. They are copied into a
segment of shared memory, where the other process finds them.
"""

import mmap
import os
import pickle
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

_ALIGNMENT = 64


class Segment(SharedMemory):
    """A segment of shared memory; the process that creates it must call ``unlink``.

    Args:
        size: the number of bytes of a new segment; not used if ``name`` is given.
        name: the name of the segment to open; None makes a new segment.

    Raises:
        OSError: not enough shared memory is left, or no segment has the name.

    Example:
        >>> segment = Segment(8)
        >>> other = Segment(name=segment.name)
        >>> other.buf[0] = 7
        >>> segment.buf[0], other.close(), segment.close(), segment.unlink()
        (7, None, None, None)
    """

    def __init__(self, size: int = 0, name: str | None = None):
        super().__init__(name, create=name is None, size=size)
        path = _path(self.name)
        if name is None and os.path.exists(path):
            try:
                # If the system found only during a write that memory is missing, it would end the
                # process.
                with open(path, "r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, size)
            except OSError:
                self.close()
                self.unlink()
                raise


def _path(name):
    return name if name.startswith("/") else f"/dev/shm/{name}"


class _Nameless:
    """Shared memory that the size of ``/dev/shm`` (often 64 MB in a container) does not limit.

    The memory is freed when no process has it open or mapped. Other processes open the file
    ``name``.
    """

    def __init__(self, size):
        self._file = os.memfd_create("mpchain_dataset")
        os.ftruncate(self._file, size)
        self._map = mmap.mmap(self._file, size)
        self.buf = memoryview(self._map)
        self.name = f"/proc/{os.getpid()}/fd/{self._file}"

    def close(self):
        self.buf.release()
        self._map.close()
        os.close(self._file)

    def unlink(self):
        """Does nothing, because the memory has no name to remove."""


def _memory(size):
    """Returns shared memory for a dataset; if possible, only the machine's memory limits its
    size."""
    if hasattr(os, "memfd_create") and os.path.exists("/proc/self/fd"):
        return _Nameless(size)
    return Segment(size)


class Pickled:
    """A pickled object whose arrays have not been copied yet.

    Attributes:
        text (bytes): the pickled object without the contents of its arrays.
        nbytes (int): bytes that the arrays need in shared memory.

    Example:
        >>> pickled = Pickled({"x": np.arange(3)})
        >>> memory = bytearray(pickled.nbytes)
        >>> unpickle_copy(*pickled.lay_into(memory), memory)
        {'x': array([0, 1, 2])}
    """

    def __init__(self, obj: object):
        buffers = []
        self.text = pickle.dumps(obj, 5, buffer_callback=buffers.append)
        self._contents = [buffer.raw() for buffer in buffers]
        self._places, self.nbytes = [], 0
        for content in self._contents:
            self._places.append((self.nbytes, content.nbytes))
            self.nbytes += -(-content.nbytes // _ALIGNMENT) * _ALIGNMENT

    def lay_into(self, memory: Any) -> tuple[bytes, list, int]:
        """Copies the arrays to the start of ``memory``; returns all arguments of
        :func:`unpickle_copy` except ``memory``."""
        for (start, nbytes), content in zip(self._places, self._contents):
            memory[start : start + nbytes] = content
        return self.text, self._places, self.nbytes


def unpickle(text: bytes, places: list, memory: Any) -> Any:
    """Returns the object; its arrays are writable views into ``memory``.

    Example:
        >>> pickled = Pickled([np.arange(3)])
        >>> memory = bytearray(pickled.nbytes)
        >>> text, places, _ = pickled.lay_into(memory)
        >>> unpickle(text, places, memory)
        [array([0, 1, 2])]
    """
    memory = memoryview(memory)
    buffers = [memory[start : start + nbytes] for start, nbytes in places]
    return pickle.loads(text, buffers=buffers)


def unpickle_copy(text: bytes, places: list, nbytes: int, memory: Any) -> Any:
    """Returns the object, whose arrays are copies from the start of ``memory``.

    Example:
        >>> pickled = Pickled([np.arange(3)])
        >>> memory = bytearray(pickled.nbytes)
        >>> unpickle_copy(*pickled.lay_into(memory), memory)
        [array([0, 1, 2])]
    """
    copy = np.empty(nbytes, np.uint8)
    copy[:] = np.frombuffer(memory, np.uint8, nbytes)
    return unpickle(text, places, copy)


class Shared:
    """An object that several processes read, with one copy of its arrays.

    Writes to the arrays are private to each process. One process creates the object and sends it to
    other processes, which load it; :meth:`unlink` frees the memory when they have ended.

    Example:
        >>> shared = Shared([np.zeros(2), "text"])
        >>> shared.load(), shared.unlink()
        ([array([0., 0.]), 'text'], None)
    """

    def __init__(self, obj: object):
        pickled = Pickled(obj)
        self._segment = _memory(max(pickled.nbytes, 1))
        self._name = self._segment.name
        self._content = pickled.lay_into(self._segment.buf)

    def __getstate__(self) -> Any:
        return self._name, self._content

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._name, self._content = state

    def load(self) -> Any:
        """Returns the object, whose arrays are in the shared memory."""
        text, places, nbytes = self._content
        return unpickle(text, places, _private_memory(self._name, max(nbytes, 1)))

    def unlink(self) -> None:
        """Frees the memory as soon as no process uses it."""
        self._segment.close()
        self._segment.unlink()


def _private_memory(name, nbytes):
    """Returns the content of a segment as memory that is copied on write."""
    path = _path(name)
    if os.path.exists(path):
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_COPY)
    segment = Segment(name=name)
    try:
        view: Any = segment.buf
        return bytearray(view[:nbytes])
    finally:
        segment.close()
