"""The tests of compat run with it installed, and leave the process as they found it."""

import pytest

from mpchain import compat

collect_ignore_glob = ["programs/*", "chainermn_programs/*", "dtypes/*"]  # tests run them


@pytest.fixture(scope="module", autouse=True)
def _as_before():
    yield
    compat.uninstall()


@pytest.fixture(autouse=True)
def _installed(_as_before):
    compat.install()
