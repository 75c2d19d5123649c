"""Fixtures of tests of kernels."""

import pytest

from mpchain.kernels import thresholds
from mpchain.kernels.cpu import loops


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
