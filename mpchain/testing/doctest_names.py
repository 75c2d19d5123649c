"""Plugin of pytest: gives examples in docstrings the usual names and a temporary folder.

The names are np, F, L, comm, and others. Examples may write files into the current folder.
"""

import functools
import pathlib
import unittest

import numpy as np
import pytest

import mpchain
from mpchain import functions, links, optimizers, testing, training
from mpchain.training import extensions


@functools.cache
def _communicator():
    return mpchain.create_communicator()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Adds the fixture `usual_names` only to examples: an autouse fixture would slow all tests.

    Args:
        items: The tests.
    """
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.fixturenames.insert(0, "usual_names")


@pytest.fixture
def usual_names(
    doctest_namespace: dict, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Fixture: gives an example in a docstring the usual names and a temporary folder."""
    monkeypatch.chdir(tmp_path)
    np.random.seed(0)
    modules = mpchain, optimizers, training, extensions, testing, unittest
    doctest_namespace.update({module.__name__.rpartition(".")[2]: module for module in modules})
    doctest_namespace.update(np=np, Variable=mpchain.Variable, F=functions, L=links)
    # Functions that an example declares must not belong to the example's module.
    doctest_namespace.update(comm=_communicator(), __name__="__main__")
