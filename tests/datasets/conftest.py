import pytest

from mpchain.datasets import downloads


@pytest.fixture
def forbid_downloads(monkeypatch):
    """Function after whose call a data set that is downloaded fails."""
    return lambda: monkeypatch.setattr(downloads, "cached_download", None)
