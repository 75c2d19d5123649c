import pytest

from mpchain.datasets import downloads


@pytest.fixture
def forbid_downloads(monkeypatch):
    """Returns a function; after its call, each download of a data set fails."""
    return lambda: monkeypatch.setattr(downloads, "cached_download", None)


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Returns a function that replaces the address of a data set by files in a folder of the test,
    and its checksums by theirs."""

    def publish(module, prefix, digests):
        monkeypatch.setenv("MPCHAIN_DATASET_ROOT", str(tmp_path / "root"))
        monkeypatch.setattr(module, "_URL", f"{tmp_path.as_uri()}/{prefix}")
        monkeypatch.setattr(module, "_SHA256", digests)

    return publish
