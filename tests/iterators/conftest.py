import sys

import pytest


@pytest.fixture(autouse=True)
def _quick_processes(monkeypatch):
    """Processes that tests start need not import pytest, the main module."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)
