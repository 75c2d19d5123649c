"""Fixtures of tests of kernels."""

import numpy as np
import pytest

from mpchain.kernels import thresholds
from mpchain.kernels.cpu import channels_last, loops, onednn, onednn_library

FENCE = 1 << 12  # the number of bytes on each side of an array


class Memory:
    """Allocates arrays of NaN between fences of NaN, and finds fences that a kernel has
    overwritten."""

    def __init__(self):
        self.buffers = []

    def empty(self, shape, dtype=float, **_):
        dtype = np.dtype(dtype)
        if not dtype.itemsize:  # np.broadcast_shapes makes arrays without bytes
            return np.zeros(shape, dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        # These bytes are NaN in each floating-point dtype.
        buffer = np.full(size + 2 * FENCE, 255, np.uint8)
        self.buffers.append(buffer)
        return buffer[FENCE : FENCE + size].view(dtype).reshape(shape)

    def copy(self, x):
        fenced = self.empty(x.shape, x.dtype)
        fenced[...] = x
        return fenced

    def empty_like(self, x, dtype=None, shape=None, **_):
        """Allocates an array whose axes have the same memory order as the axes of ``x``."""
        shape = x.shape if shape is None else shape
        order = sorted(range(x.ndim), key=lambda i: -x.strides[i])
        made = self.empty([shape[i] for i in order], dtype or x.dtype)
        return made.transpose(np.argsort(order))

    def copy_last(self, x):
        """Copies an array, with channels adjacent in memory."""
        fenced = self.empty_like(channels_last.empty_last(x.shape, x.dtype))
        fenced[...] = x
        return fenced

    def has_broken_fences(self):
        buffers, self.buffers = self.buffers, []
        return any((b[:FENCE] != 255).any() or (b[-FENCE:] != 255).any() for b in buffers)


@pytest.fixture(autouse=True)
def _tiles():
    """Enables convolution by tiles, for the same sizes on every processor; reproducible
    communicators of other tests disable it."""
    with thresholds.using(tiles=1 << 24, saved_by_wide=thresholds.saved):
        yield


@pytest.fixture
def memory(monkeypatch):
    """Returns the :class:`Memory` from which NumPy and kernels get their arrays."""
    memory = Memory()
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(np, name, getattr(memory, name))
    return memory


@pytest.fixture
def computed(calls_of):
    """Returns a list to which each call of a compiled loop is appended."""
    return calls_of(loops.Loop, "compute", lambda *args: len(args))


@pytest.fixture
def with_onednn(monkeypatch):
    """Makes oneDNN appear to be installed."""
    monkeypatch.setattr(onednn, "why_absent", lambda: None)


@pytest.fixture
def set_avx512(monkeypatch):
    """Returns a function that sets whether kernels find that the processor has AVX-512."""

    def set_avx512(has_avx512):
        monkeypatch.setattr(onednn_library.load(), "has_avx512", has_avx512)
        thresholds.forget()

    yield set_avx512
    thresholds.forget()


@pytest.fixture
def load_onednn(monkeypatch):
    """Returns a function that sets the result of loading oneDNN: a library, or the reason why there
    is none."""

    def load(library):
        for module in (onednn, onednn_library):
            monkeypatch.setattr(module, "load", lambda: library)

    return load


@pytest.fixture
def onednn_threads():
    """Returns a function that sets the number of oneDNN's threads until the test ends."""
    library = onednn_library.load()
    before = library.threads

    def set_threads(n):
        library.threads = n

    yield set_threads
    library.threads = before
