"""Fixtures of tests of kernels."""

import numpy as np
import pytest

from mpchain.kernels import thresholds
from mpchain.kernels.cpu import channels_last, loops, onednn, onednn_library

FENCE = 1 << 12  # bytes on each side of an array


class Memory:
    """Allocates arrays of NaN between fences of NaN, and finds fences that were written to."""

    def __init__(self):
        self.buffers = []

    def empty(self, shape, dtype=float, **_):
        dtype = np.dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        buffer = np.full(size + 2 * FENCE, 255, np.uint8)  # NaN, in each floating dtype
        self.buffers.append(buffer)
        return buffer[FENCE : FENCE + size].view(dtype).reshape(shape)

    def copy(self, x):
        fenced = self.empty(x.shape, x.dtype)
        fenced[...] = x
        return fenced

    def empty_like(self, x, dtype=None, shape=None, **_):
        """The axes lie in memory as those of ``x`` do."""
        shape = x.shape if shape is None else shape
        order = sorted(range(x.ndim), key=lambda i: -x.strides[i])
        made = self.empty([shape[i] for i in order], dtype or x.dtype)
        return made.transpose(np.argsort(order))

    def copy_last(self, x):
        """Channels lie side by side."""
        fenced = self.empty_like(channels_last.empty_last(x.shape, x.dtype))
        fenced[...] = x
        return fenced

    def has_broken_fences(self):
        buffers, self.buffers = self.buffers, []
        return any((b[:FENCE] != 255).any() or (b[-FENCE:] != 255).any() for b in buffers)


@pytest.fixture(autouse=True)
def _tiles():
    """Tiles as in a new process: reproducible communicators of other tests have turned them off."""
    with thresholds.using(tiles=1 << 24):
        yield


@pytest.fixture
def memory(monkeypatch):
    """The :class:`Memory` from which NumPy and kernels get their arrays."""
    memory = Memory()
    monkeypatch.setattr(np, "empty", memory.empty)
    monkeypatch.setattr(np, "empty_like", memory.empty_like)
    return memory


@pytest.fixture
def computed(monkeypatch):
    """A list that grows with each call that a loop computes."""
    computed, compute = [], loops.Loop.compute
    monkeypatch.setattr(
        loops.Loop, "compute", lambda *a, **k: computed.append(1) or compute(*a, **k)
    )
    return computed


@pytest.fixture
def with_onednn(monkeypatch):
    """As where oneDNN is installed."""
    monkeypatch.setattr(onednn, "why_absent", lambda: None)


@pytest.fixture
def load_onednn(monkeypatch):
    """Function that says what loading oneDNN returns: a library, or why there is none."""

    def load(library):
        for module in (onednn, onednn_library):
            monkeypatch.setattr(module, "load", lambda: library)

    return load


@pytest.fixture
def onednn_threads():
    """Function that sets the number of oneDNN's threads until the test ends."""
    library = onednn_library.load()
    before = library.threads

    def set_threads(n):
        library.threads = n

    yield set_threads
    library.threads = before
