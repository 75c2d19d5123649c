"""Fixtures of tests of kernels."""

import pytest

from mpchain.kernels import thresholds


@pytest.fixture(autouse=True)
def _tiles():
    """Tiles as in a new process: reproducible communicators of other tests have turned them off."""
    with thresholds.using(tiles=1 << 24):
        yield
