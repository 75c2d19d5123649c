"""Fixtures of tests of kernels."""

import pytest

from mpchain.kernels import thresholds
from mpchain.kernels.cpu import loops, onednn, onednn_library


@pytest.fixture(autouse=True)
def _tiles():
    """Tiles as in a new process: reproducible communicators of other tests have turned them off."""
    with thresholds.using(tiles=1 << 24):
        yield


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
