"""Installs compat for the tests in this folder, and restores the process afterwards."""

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
