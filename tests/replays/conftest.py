import pathlib

import pytest

from tests.distributed.ranks import why_not


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks the tests of this folder that start the launcher and ranks as slow tests of the annex
    ``launcher``."""
    folder = f"{pathlib.Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(folder) and "run" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
            item.add_marker(pytest.mark.annex("launcher"))


@pytest.fixture
def run(tmp_path):
    """Returns the folder of a run; skips the test if no ranks can be started."""
    if reason := why_not():
        pytest.skip(reason)
    return tmp_path
